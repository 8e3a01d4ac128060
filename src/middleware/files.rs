//! Middleware: file tools, the tool that runs commands on files, and files for tool results and human messages that are
//! too long for the conversation.
//!
//! The middleware also prevents two calls of one answer from changing the same file: both would start from the same
//! content, and one change would be lost.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{Contribution, Middleware, ModelAnswer, NextCall, NextModel, open_calls};
use crate::definition::builtins;
use crate::definition::{AgentSpec, FileRules};
use crate::domain::call::ToolOutput;
use crate::domain::graph::Field;
use crate::domain::message::{Message, ToolCall};
use crate::domain::state::{File, State, Update};
use crate::domain::summarization::{can_be_shortened, long_message_path, shortened};
use crate::domain::time::Timestamp;
use crate::model::ModelRequest;
use crate::tool::files::{FileWorkspace, NAMES, changed_path, tools};
use crate::tool::{CallOutcome, Halt, Scope, Tool};

/// The estimated number of characters of a token.
const CHARS_PER_TOKEN: usize = 4;
/// The number of lines that a preview shows of the start, and of the end.
const PREVIEW_LINES: usize = 5;
/// The maximum number of characters of a line in a preview.
const PREVIEW_CHARS: usize = 1_000;
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
        let files = tools(&self.workspace, &self.rules).into_iter();
        Contribution {
            tools: files.chain(self.execute.clone()).collect(),
            prompt: None,
            fields: vec![Field { name: "files", schema }],
        }
    }

    /// Shows the model the beginning and the end of human messages that are too long. The state keeps the whole message;
    /// the file is written together with the answer.
    async fn wrap_model_call(&self, mut request: ModelRequest, next: NextModel<'_>) -> Result<ModelAnswer, Halt> {
        let mut files = vec![];
        for message in &mut request.messages {
            if !self.is_too_long(message) {
                continue;
            }
            let text = message.content.text();
            let path = message.id.as_deref().map(long_message_path);
            // A larger file is not kept.
            let path = path.filter(|_| text.len() <= next.scope.sizes.file).unwrap_or_default();
            *message = Arc::new(shortened(message, &path));
            if !path.is_empty() && !next.state.files.contains_key(&path) {
                files.push((path, Some(Arc::new(File::text(text, next.scope.now())))));
            }
        }
        let mut answer = next.ask(request).await?;
        if !files.is_empty() {
            let mut extra = Update {
                files: files.into_iter().collect(),
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
        shorten(answer, state, self.max_result_chars, scope.now())
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
    let first = open_calls(state)
        .into_iter()
        .find(|other| changed_path(other).as_ref() == Some(&path))?;
    (first.id != call.id).then(|| {
        format!(
            "Error: another call of the same message ({}) changes '{path}'. Only the first one runs; look at its result \
             and then make this call again if it is still needed.",
            first.name
        )
    })
}

/// Moves the texts of an answer that are too long into files, and replaces them by notices.
fn shorten(mut answer: ToolOutput, state: &State, max_chars: usize, now: Timestamp) -> ToolOutput {
    let Update { messages, files, .. } = &mut answer.writes;
    for message in messages {
        if let Some((path, text)) = too_long(message, max_chars) {
            let path = free_path(path, |path| state.files.contains_key(path) || files.contains_key(path));
            *message = Arc::new(with_notice(message, &path, &text));
            files.insert(path, Some(Arc::new(File::text(text, now))));
        }
    }
    answer
}

/// Returns `path`, with a number if there is a file: some models use the id of a call again in later answers, and subagents
/// use those of their callers.
fn free_path(path: String, is_taken: impl Fn(&str) -> bool) -> String {
    if !is_taken(&path) {
        return path;
    }
    let mut number = 2_u64;
    loop {
        let numbered = format!("{path}-{number}");
        if !is_taken(&numbered) {
            return numbered;
        }
        number += 1;
    }
}

/// Returns the file path and the text of `message`, if the text is too long.
fn too_long(message: &Message, max_chars: usize) -> Option<(String, String)> {
    let call = message.answers()?;
    if message.name.as_deref().is_some_and(|name| NAMES.contains(&name)) {
        return None;
    }
    let text = message.content.text();
    // Most results are short, and the length in bytes is known without counting characters.
    if text.len() <= max_chars || text.chars().count() <= max_chars {
        return None;
    }
    Some((result_path(call), text))
}

/// Returns the path of the file with the long result of a call. If the id is used again, a number follows.
pub(super) fn result_path(call: &str) -> String {
    let safe = |letter: char| {
        if letter.is_ascii_alphanumeric() || "-_".contains(letter) {
            letter
        } else {
            '_'
        }
    };
    let name: String = call.chars().map(safe).collect();
    let name = if name.is_empty() { "result".to_owned() } else { name };
    format!("{FOLDER}/{name}")
}

/// Returns `message` with a notice instead of its `text`. Blocks that are not text stay.
fn with_notice(message: &Message, path: &str, text: &str) -> Message {
    let notice = format!(
        "The result of this call is too long to be shown: {} characters. All of it is in the file {path}. Read it in \
         parts with read_file (offset and limit), or find what you need in it with grep.\n\nIts beginning and end:\n{}",
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
        let cut = line.char_indices().nth(PREVIEW_CHARS).map(|(end, _)| end);
        let shown = cut.map_or(line.to_owned(), |end| format!("{} [cut]", &line[..end]));
        lines.push(format!("{}: {shown}", at + 1));
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests;
