//! Middleware: file tools, the tool that runs commands on files, and files for tool results and human messages that are
//! too long for the conversation.
//!
//! The middleware also prevents two calls of one answer from changing the same file: both would start from the same
//! content, and one change would be lost.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::{Contribution, Middleware, ModelAnswer, NextCall, NextModel, open_calls};
use crate::definition::builtins;
use crate::definition::{AgentSpec, FileRules};
use crate::domain::call::ToolOutput;
use crate::domain::graph::Field;
use crate::domain::long_message::LongMessagePlace;
use crate::domain::message::{Message, ToolCall};
use crate::domain::path::{file_name, numbered};
use crate::domain::state::{File, FileWrites, State, Update};
use crate::domain::summarization::{can_be_shortened, shortened};
use crate::domain::text_limits::cut_after;
use crate::model::ModelRequest;
use crate::tool::files::{FileWorkspace, NAMES, changed_path, tools};
use crate::tool::{CallOutcome, Halt, Scope, Tool};

/// The estimated number of characters of a token.
const CHARS_PER_TOKEN: usize = 4;
/// The number of lines that a preview shows of the start, and of the end.
const PREVIEW_LINES: usize = 5;
/// The maximum number of characters of a line in a preview.
const PREVIEW_CHARS: usize = 1_000;
/// The maximum number of files of one result that a notice names one by one.
const MAX_NAMED_PARTS: usize = 5;
/// The part of a digest of an id that is in the name of a file, in bytes.
const DIGEST_BYTES: usize = 8;
/// The folder for long results.
const FOLDER: &str = "/large_tool_results";

/// The file middleware.
pub struct FileTools {
    workspace: Arc<dyn FileWorkspace>,
    rules: FileRules,
    /// The maximum length of a result that stays in the conversation, in characters.
    max_result_chars: usize,
    /// The maximum length of a human message that the model reads whole, in characters.
    max_message_chars: usize,
    /// The tool that runs commands, if the agent may.
    execute: Option<Arc<dyn Tool>>,
}

impl FileTools {
    /// Creates the middleware for `workspace`, with the rules of the agent `spec`.
    pub fn new(workspace: Arc<dyn FileWorkspace>, spec: &AgentSpec) -> Self {
        Self {
            workspace,
            rules: FileRules::new(&spec.permissions),
            max_result_chars: chars(spec.tool_token_limit_before_evict),
            max_message_chars: chars(spec.human_message_token_limit_before_evict),
            execute: None,
        }
    }

    /// Returns whether a message is a human one that the model does not read whole.
    fn is_too_long(&self, message: &Message) -> bool {
        message.is_human()
            && message.content.text_bytes() > self.max_message_chars
            && message.content.text().chars().count() > self.max_message_chars
            && can_be_shortened(message)
    }

    /// Adds the tool that runs commands.
    #[must_use]
    pub fn with_execute(self, execute: Option<Arc<dyn Tool>>) -> Self {
        Self { execute, ..self }
    }
}

#[async_trait]
impl Middleware for FileTools {
    fn name(&self) -> &str {
        builtins::FILES
    }

    fn contribution(&self) -> Contribution {
        let schema = json!({"title": "Files", "type": "object", "additionalProperties": {"type": "object", "properties": {
            "content": {"type": "string"}, "encoding": {"enum": ["utf-8", "base64"]},
            "created_at": {"type": "string"}, "modified_at": {"type": "string"}}, "required": ["content"]}});
        let files = tools(&self.workspace, &self.rules, self.max_result_chars).into_iter();
        Contribution {
            tools: files.chain(self.execute.clone()).collect(),
            prompt: None,
            fields: vec![Field { name: "files", schema }],
        }
    }

    /// Shows the model the beginning and the end of human messages that are too long. The state keeps the whole message;
    /// the file is written together with the answer.
    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut files = FileWrites::new();
        for message in &mut request.messages {
            if !self.is_too_long(message) {
                continue;
            }
            let text = message.content.text();
            // A larger file is not kept.
            let id = message.id.as_deref().filter(|_| text.len() <= next.scope.sizes.file);
            let Some(id) = id else {
                *message = Arc::new(shortened(message, ""));
                continue;
            };
            let written = |path: &str| files.get(path).and_then(Option::as_ref);
            let file_at = |path: &str| written(path).or_else(|| next.state.files.get(path));
            let place = LongMessagePlace::of(id, &text, |path| next.scope.files.own_path(path), file_at);
            *message = Arc::new(shortened(message, &place.path));
            if !place.is_written {
                files.insert(place.path, Some(Arc::new(File::text(text, next.scope.now()))));
            }
        }
        let mut answer = next.ask(request).await?;
        if !files.is_empty() {
            let mut extra = Update {
                files,
                ..Update::none()
            };
            extra.merge(answer.extra);
            answer.extra = extra;
        }
        Ok(answer)
    }

    async fn wrap_tool_call(&self, call: ToolCall, next: NextCall<'_>) -> Result<CallOutcome, Halt> {
        if let Some(refusal) = collision(&call, next.state) {
            return Ok(CallOutcome::Answer(ToolOutput::error(&call, refusal)));
        }
        next.call(call).await
    }

    fn receive(&self, scope: &Scope, state: &State, _: &ToolCall, answer: ToolOutput) -> ToolOutput {
        shorten(answer, scope, state, self.max_result_chars)
    }
}

/// Returns a number of tokens in characters.
fn chars(tokens: u32) -> usize {
    usize::try_from(tokens)
        .unwrap_or(usize::MAX)
        .saturating_mul(CHARS_PER_TOKEN)
}

/// Returns the reason why `call` must not run: an earlier call of its message changes the same file.
fn collision(call: &ToolCall, state: &State) -> Option<String> {
    let path = changed_path(call)?;
    let calls = open_calls(state);
    let mut earlier = calls.iter().take_while(|other| other.id != call.id);
    let first = earlier.find(|other| changed_path(other).as_ref() == Some(&path))?;
    Some(format!(
        "Error: another call of the same message ({}) changes '{path}'. Only the first one runs; look at its result \
         and then make this call again if it is still needed.",
        first.name
    ))
}

/// Moves the texts of an answer that are too long into files, and replaces them by notices.
fn shorten(mut answer: ToolOutput, scope: &Scope, state: &State, max_chars: usize) -> ToolOutput {
    let Update { messages, files, .. } = &mut answer.writes;
    for message in messages {
        let Some((call, text)) = too_long(message, max_chars) else {
            continue;
        };
        let path = result_path(call, scope, state, files);
        let pieces = parts(&text, scope.sizes.file);
        let paths: Vec<String> = (1..=pieces.len()).map(|number| part_path(&path, number)).collect();
        let notice = with_notice(message, &paths, &text);
        let written = pieces
            .into_iter()
            .map(|part| Some(Arc::new(File::text(part, scope.now()))));
        files.extend(paths.into_iter().zip(written));
        *message = Arc::new(notice);
    }
    answer
}

/// Returns the path of the file with the long result of the call `id`. Some models use the id of a call again in later
/// answers, subagents use those of their callers, and different ids may have the same name. The results of one step are
/// written together, so the paths of the other calls of the answer are known by their order alone. What else a client has sent
/// for the step is not known.
fn result_path(id: &str, scope: &Scope, state: &State, written: &FileWrites) -> String {
    let is_there = |path: &str| state.files.contains_key(path);
    let own_path = |path: String| scope.files.own_path(path);
    let calls = open_calls(state);
    let is_sent = calls.iter().all(|call| call.id != id);
    let mut others: BTreeSet<String> = BTreeSet::new();
    for call in calls.iter().take_while(|call| call.id != id) {
        let path = own_path(common_result_path(&call.id));
        let other = numbered(path, |path| is_there(path) || others.contains(path));
        others.insert(other);
    }
    let path = match is_sent && file_name(id) != id {
        true => format!("{}-{}", common_result_path(id), digest_of(id)),
        false => common_result_path(id),
    };
    numbered(own_path(path), |path| {
        is_there(path) || others.contains(path) || written.contains_key(path)
    })
}

/// The text before the number in the path of a part. The names of files that are made of ids have no dot.
const PART: &str = ".part";

/// Returns the path of a part of the result at `path`, from 1 on. No other file of a result has such a name.
fn part_path(path: &str, number: usize) -> String {
    match number {
        1 => path.to_owned(),
        number => format!("{path}{PART}{number}"),
    }
}

/// Returns the path of the first part of the result whose part is at `path`.
pub(super) fn first_part_path(path: &str) -> &str {
    path.split_once(PART).map_or(path, |(first, _)| first)
}

/// Splits a text into parts that are no larger than a file may be.
fn parts(text: &str, max_bytes: usize) -> Vec<&str> {
    let mut parts = vec![];
    let mut rest = text;
    while rest.len() > max_bytes {
        // A part has one letter at least, however small a file may be.
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let (part, next) = rest.split_at(rest.floor_char_boundary(max_bytes).max(first));
        parts.push(part);
        rest = next;
    }
    if !rest.is_empty() || parts.is_empty() {
        parts.push(rest);
    }
    parts
}

/// Returns the id of the call and the text of `message`, if the text is too long.
fn too_long(message: &Message, max_chars: usize) -> Option<(&str, String)> {
    let call = message.answers()?;
    if message.name.as_deref().is_some_and(|name| NAMES.contains(&name)) {
        return None;
    }
    let text = message.content.text();
    // Most results are short, and the length in bytes is known without counting characters.
    if text.len() <= max_chars || text.chars().count() <= max_chars {
        return None;
    }
    Some((call, text))
}

/// Returns the beginning of the path of the file with the long result of a call.
pub(super) fn common_result_path(call: &str) -> String {
    format!("{FOLDER}/{}", file_name(call))
}

/// Returns what tells an id from others of the same name.
fn digest_of(id: &str) -> String {
    hex::encode(&Sha256::digest(id)[..DIGEST_BYTES])
}

/// Returns `message` with a notice instead of its `text`, which is in these files. Blocks that are not text stay.
fn with_notice(message: &Message, paths: &[String], text: &str) -> Message {
    let place = match paths {
        [path] => format!("in the file {path}. Read it"),
        [first, second, .., last] if paths.len() > MAX_NAMED_PARTS => format!(
            "in {} files, one after the other: {first}, {second} and so on to {last}. Read them",
            paths.len()
        ),
        several => format!(
            "in {} files, one after the other: {}. Read them",
            several.len(),
            several.join(", ")
        ),
    };
    let notice = format!(
        "The result of this call is too long to be shown: {} characters. All of it is {place} in parts with read_file \
         (offset and limit; char_offset in long lines), or find what you need with grep.\n\nIts beginning and end:\n{}",
        text.chars().count(),
        preview(text)
    );
    Message {
        content: message.content.with_text(notice),
        ..message.clone()
    }
}

/// Returns the first and the last lines with their numbers.
fn preview(text: &str) -> String {
    let total = text.lines().count();
    let head = PREVIEW_LINES.min(total);
    let tail = total.saturating_sub(PREVIEW_LINES).max(head);
    let mut lines: Vec<String> = vec![];
    for (at, line) in text.lines().enumerate().filter(|(at, _)| *at < head || *at >= tail) {
        if at == tail && tail > head {
            lines.push(format!("[{} lines left out]", tail - head));
        }
        lines.push(format!("{}: {}", at + 1, cut_after(line, PREVIEW_CHARS, " [cut]")));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
