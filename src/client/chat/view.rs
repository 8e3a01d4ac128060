//! Shows the events of a thread as lines that begin with the name of the agent.
//!
//! One agent at a time is in the foreground: its answer appears piece by piece. The lines of agents that speak at the
//! same time are kept until they are complete and the foreground is at the end of a line.

use std::collections::{BTreeMap, HashMap};

use serde_json::Value;
use unicode_width::UnicodeWidthStr;

use super::event::{EventAgent, FrameKind, Outcome, RunSummary, ThreadFrame};
use crate::client::resources::{runs, threads};
use crate::client::table::cut;
use crate::client::{escape, resources};
use crate::domain::text_limits::first_chars;

/// The longest line that is kept, in bytes; a longer one is broken.
const MAX_LINE_BYTES: usize = 16 * 1024;

/// The number of lines that wait for the foreground. Beyond that, its line is broken.
const MAX_WAITING_LINES: usize = 500;

/// The number of todos and lines of a result that are shown.
const MAX_LINES: usize = 50;

/// The colours of agents, in the order in which they appear.
const COLOURS: [&str; 6] = ["36", "33", "35", "32", "34", "31"];

const DIM: &str = "2";
const BOLD: &str = "1";
const RED: &str = "31";

/// The style of a view.
#[derive(Debug, Clone, Copy)]
pub(super) struct ViewStyle {
    /// True if there are colours.
    pub(super) has_colours: bool,
    /// True if pieces appear at once; otherwise only whole lines do.
    pub(super) is_live: bool,
    /// The width, to which short texts are cut.
    pub(super) width: usize,
}

/// The view of a thread.
pub(super) struct View {
    style: ViewStyle,
    lines_of_agents: BTreeMap<String, AgentLines>,
    /// The agents, by the order in which they spoke first, for their colours.
    names: Vec<String>,
    /// The agent whose line is being written.
    foreground: Option<String>,
    /// True if the last line that was written is not at its end.
    is_mid_line: bool,
    /// The names of tools by their calls.
    calls: HashMap<String, String>,
    /// The last list of todos of each agent.
    todos: BTreeMap<String, Value>,
    /// When the run began, in milliseconds.
    began: Option<i64>,
}

/// The line that an agent is writing.
#[derive(Default)]
struct AgentLines {
    /// The beginning of every line.
    prefix: String,
    /// The complete lines that are not written yet.
    ready: Vec<String>,
    /// The incomplete line.
    partial: String,
    /// The text that has come of each block of the current answer.
    said: BTreeMap<u64, String>,
    /// True while an answer comes.
    is_speaking: bool,
}

impl View {
    /// Creates an empty view.
    pub(super) fn new(style: ViewStyle) -> Self {
        Self {
            style,
            lines_of_agents: BTreeMap::new(),
            names: vec![],
            foreground: None,
            is_mid_line: false,
            calls: HashMap::new(),
            todos: BTreeMap::new(),
            began: None,
        }
    }

    /// Sets whether pieces appear at once. If not, the line that is being written is ended; the result is the text to write.
    pub(super) fn set_live(&mut self, is_live: bool) -> String {
        self.style.is_live = is_live;
        if is_live {
            return String::new();
        }
        self.foreground = None;
        self.end_line()
    }

    /// Adds an event, and returns what to write.
    pub(super) fn show(&mut self, frame: &ThreadFrame) -> String {
        let source = &frame.source;
        match &frame.kind {
            FrameKind::MessageStarted { .. } => self.begin_message(source),
            FrameKind::Text { block, text } => {
                let lines = self.lines_of(source);
                lines.is_speaking = true;
                lines.said.entry(*block).or_default().push_str(text);
                self.add_text(source, text)
            }
            FrameKind::TextFinished { block, text } => self.finish_text(source, *block, text),
            FrameKind::MessageFinished => self.end_message(source),
            FrameKind::MessageFailed { reason } => {
                let mut text = self.end_message(source);
                text += &self.note(source, RED, &format!("the answer broke off: {reason}"));
                text
            }
            FrameKind::ToolStarted { call, tool, args } => self.show_call(source, call, tool, args),
            FrameKind::ToolFinished { call, output, is_error } => self.show_result(source, call, output, *is_error),
            FrameKind::SubagentFailed { reason } => self.note(source, RED, &format!("failed: {reason}")),
            FrameKind::Custom { data } => self.note(source, DIM, &format!("· {data}")),
            FrameKind::RunStarted { .. } => {
                self.began = Some(frame.at);
                String::new()
            }
            FrameKind::RunEnded { end, .. } => self.show_end(frame.at, end),
            FrameKind::Requested { question, .. } => {
                let names = question["action_requests"].as_array().into_iter().flatten();
                let names: Vec<String> = names.map(|request| resources::text(request, "name")).collect();
                let what = if names.is_empty() {
                    "a question".to_owned()
                } else {
                    names.join(", ")
                };
                self.note(source, BOLD, &format!("? waits for an answer: {what}"))
            }
            FrameKind::Other => String::new(),
        }
    }

    /// Returns a line about the chat itself.
    pub(super) fn remark(&mut self, text: &str) -> String {
        let line = self.paint(DIM, &format!("── {}", escape::line(text)));
        format!("{}{line}\n", self.end_line())
    }

    /// Ends all answers: what is left of them is written.
    pub(super) fn settle(&mut self) -> String {
        let mut text = self.end_line();
        self.foreground = None;
        for lines in self.lines_of_agents.values_mut() {
            lines.complete();
            lines.is_speaking = false;
            lines.said.clear();
        }
        text += &self.take_ready();
        text
    }

    fn begin_message(&mut self, source: &EventAgent) -> String {
        let was_speaking = std::mem::replace(&mut self.lines_of(source).is_speaking, true);
        let has_said = !std::mem::take(&mut self.lines_of(source).said).is_empty();
        if was_speaking && has_said {
            let text = self.finish_line(source);
            return text + &self.note(source, DIM, "the answer broke off and begins again");
        }
        String::new()
    }

    /// The whole text of a block: what has not come piece by piece is added.
    fn finish_text(&mut self, source: &EventAgent, block: u64, whole: &str) -> String {
        let said = self.lines_of(source).said.entry(block).or_default();
        let rest = whole.strip_prefix(said.as_str()).map(str::to_owned);
        whole.clone_into(said);
        match rest {
            Some(rest) => self.add_text(source, &rest),
            // The text before is not the beginning of the answer.
            None => self.finish_line(source) + &self.add_text(source, whole),
        }
    }

    fn end_message(&mut self, source: &EventAgent) -> String {
        let lines = self.lines_of(source);
        lines.is_speaking = false;
        lines.said.clear();
        let mut text = self.finish_line(source);
        if self.foreground.as_ref() == Some(&source.namespace) {
            self.foreground = None;
            text += &self.take_ready();
        }
        text + &self.promote()
    }

    /// Adds a piece of text.
    fn add_text(&mut self, source: &EventAgent, piece: &str) -> String {
        let piece = escape::text(&piece.replace("\r\n", "\n"));
        if piece.is_empty() {
            return String::new();
        }
        let is_free = self.style.is_live && !self.is_mid_line;
        if is_free && self.foreground.is_none() {
            self.foreground = Some(source.namespace.clone());
        }
        if self.style.is_live && self.foreground.as_ref() == Some(&source.namespace) {
            return self.write_piece(source, &piece);
        }
        let lines = self.lines_of(source);
        lines.add(&piece);
        let waiting = lines.ready.len();
        if self.is_mid_line && waiting < MAX_WAITING_LINES {
            return String::new();
        }
        self.end_line() + &self.take_ready()
    }

    /// Writes a piece of the agent in the foreground.
    fn write_piece(&mut self, source: &EventAgent, piece: &str) -> String {
        let mut text = String::new();
        let piece = std::mem::take(&mut self.lines_of(source).partial) + piece;
        for part in piece.split_inclusive('\n') {
            if !self.is_mid_line {
                text += &self.take_ready();
                text += &self.lines_of(source).prefix;
            }
            text += part;
            self.is_mid_line = !part.ends_with('\n');
        }
        if !self.is_mid_line {
            text += &self.take_ready();
        }
        text
    }

    /// Ends the line of an agent, wherever it is.
    fn finish_line(&mut self, source: &EventAgent) -> String {
        let is_own = self.foreground.as_ref() == Some(&source.namespace);
        let text = if is_own { self.end_line() } else { String::new() };
        self.lines_of(source).complete();
        if self.is_mid_line {
            text
        } else {
            text + &self.take_ready()
        }
    }

    /// Lets the agent speak whose line waits, if nobody does.
    fn promote(&mut self) -> String {
        if self.foreground.is_some() || self.is_mid_line || !self.style.is_live {
            return String::new();
        }
        let waiting = self
            .lines_of_agents
            .iter_mut()
            .find(|lines| !lines.1.partial.is_empty());
        let Some((namespace, lines)) = waiting else {
            return String::new();
        };
        let text = format!("{}{}", lines.prefix, std::mem::take(&mut lines.partial));
        self.foreground = Some(namespace.clone());
        self.is_mid_line = true;
        text
    }

    /// Adds a line about what an agent does.
    fn note(&mut self, source: &EventAgent, style: &str, text: &str) -> String {
        let width = self.style.width;
        let prefix = self.lines_of(source).prefix.clone();
        let room = width.saturating_sub(plain_width(&prefix)).max(20);
        let line = prefix + &self.paint(style, &cut(&escape::line(text), room));
        self.add_line(source, line)
    }

    fn add_line(&mut self, source: &EventAgent, line: String) -> String {
        let is_own = self.foreground.as_ref() == Some(&source.namespace);
        let text = if is_own { self.end_line() } else { String::new() };
        let lines = self.lines_of(source);
        lines.complete();
        lines.ready.push(line);
        if self.is_mid_line {
            text
        } else {
            text + &self.take_ready()
        }
    }

    fn show_call(&mut self, source: &EventAgent, call: &str, tool: &str, args: &Value) -> String {
        self.calls.insert(call.to_owned(), tool.to_owned());
        if tool == "write_todos" && args["todos"].is_array() {
            return self.show_todos(source, &args["todos"]);
        }
        if tool == "task" {
            let to = ["subagent_type", "agent_type"].map(|field| resources::text(args, field));
            let work = ["description", "instructions"].map(|field| resources::text(args, field));
            return self.note(source, DIM, &format!("→ task {}: {}", to.concat(), work.concat()));
        }
        self.note(source, DIM, &format!("→ {tool}({})", short_args(args)))
    }

    fn show_result(&mut self, source: &EventAgent, call: &str, output: &str, is_error: bool) -> String {
        let tool = self.calls.remove(call).unwrap_or_else(|| "tool".to_owned());
        if tool == "write_todos" && !is_error {
            return String::new();
        }
        let style = if is_error { RED } else { DIM };
        let mark = if is_error { "✗" } else { "←" };
        self.note(source, style, &format!("{mark} {tool}: {output}"))
    }

    fn show_todos(&mut self, source: &EventAgent, todos: &Value) -> String {
        if self.todos.insert(source.namespace.clone(), todos.clone()).as_ref() == Some(todos) {
            return String::new();
        }
        let lines = threads::todos(todos);
        let lines: Vec<&str> = lines.lines().take(MAX_LINES).collect();
        lines
            .into_iter()
            .fold(String::new(), |text, line| text + &self.note(source, "", line))
    }

    fn show_end(&mut self, at: i64, end: &RunSummary) -> String {
        let mut text = self.settle();
        let word = match end.outcome {
            Outcome::Completed => "completed",
            Outcome::Failed => "failed",
            Outcome::Interrupted => "interrupted",
        };
        let millis = self
            .began
            .take()
            .map(|began| u64::try_from(at.saturating_sub(began)).unwrap_or_default());
        let took = millis.map(|millis| format!(" after {}.{} s", millis / 1000, millis % 1000 / 100));
        let usage = runs::usage(&end.usage);
        let usage = if usage.is_empty() {
            usage
        } else {
            format!(" · {usage}")
        };
        text += &self.remark(&format!("{word}{}{usage}", took.unwrap_or_default()));
        if !end.reason.is_empty() {
            let reason = escape::text(&end.reason);
            text += &self.paint(RED, &reason);
            text.push('\n');
        }
        text
    }

    /// Returns the lines of an agent.
    fn lines_of(&mut self, source: &EventAgent) -> &mut AgentLines {
        let prefix = match self.lines_of_agents.contains_key(&source.namespace) {
            true => String::new(),
            false => self.prefix(source),
        };
        self.lines_of_agents
            .entry(source.namespace.clone())
            .or_insert_with(|| AgentLines {
                prefix,
                ..AgentLines::default()
            })
    }

    fn prefix(&mut self, source: &EventAgent) -> String {
        let name = source.name().to_owned();
        let known = self.names.iter().position(|known| *known == name);
        let number = known.unwrap_or_else(|| {
            self.names.push(name.clone());
            self.names.len() - 1
        });
        let colour = COLOURS.get(number % COLOURS.len()).copied().unwrap_or(BOLD);
        let indent = "  ".repeat(source.path.len().saturating_sub(1).min(8));
        let label = escape::line(&name);
        let label = first_chars(&label, 40);
        format!("{indent}{} ", self.paint(colour, &format!("{label} │")))
    }

    fn end_line(&mut self) -> String {
        match std::mem::take(&mut self.is_mid_line) {
            true => "\n".to_owned(),
            false => String::new(),
        }
    }

    /// Takes all complete lines.
    fn take_ready(&mut self) -> String {
        let lines = self
            .lines_of_agents
            .values_mut()
            .flat_map(|lines| lines.ready.drain(..));
        lines.fold(String::new(), |text, line| text + &line + "\n")
    }

    fn paint(&self, style: &str, text: &str) -> String {
        match self.style.has_colours && !style.is_empty() {
            true => format!("\u{1b}[{style}m{text}\u{1b}[0m"),
            false => text.to_owned(),
        }
    }
}

impl AgentLines {
    /// Adds text, and completes the lines that have come to their end.
    fn add(&mut self, text: &str) {
        for part in text.split_inclusive('\n') {
            self.partial.push_str(part.trim_end_matches('\n'));
            if part.ends_with('\n') || self.partial.len() > MAX_LINE_BYTES {
                self.ready
                    .push(format!("{}{}", self.prefix, std::mem::take(&mut self.partial)));
            }
        }
    }

    fn complete(&mut self) {
        if !self.partial.is_empty() {
            self.ready
                .push(format!("{}{}", self.prefix, std::mem::take(&mut self.partial)));
        }
    }
}

/// Returns the arguments of a call in the manner of a program.
pub(super) fn short_args(args: &Value) -> String {
    let fields = args.as_object().into_iter().flatten();
    let fields: Vec<String> = fields.map(|(name, value)| format!("{name}={value}")).collect();
    fields.join(", ")
}

/// Returns the width of a text without its colours.
fn plain_width(text: &str) -> usize {
    let mut rest = text;
    let mut width = 0;
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        width += before.width();
        rest = after.split_once('m').map_or("", |parts| parts.1);
    }
    width + rest.width()
}

#[cfg(test)]
mod tests;
