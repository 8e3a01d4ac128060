//! Reads lines from a person: with a history, editing and pastes of several lines.

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustyline::completion::{Completer, Pair};
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Context, Editor, ExternalPrinter, Helper, Prompt};

use super::slash::COMMANDS;
use crate::client::error::{ClientError, ClientResult};
use crate::config;

/// The number of lines that the history keeps.
const MAX_HISTORY: usize = 1000;

/// The largest message, in bytes.
pub(super) const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;

/// The input of a person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entered {
    /// A line, or several.
    Line(String),
    /// Ctrl-C.
    Interrupt,
    /// Ctrl-D.
    End,
}

/// Reads lines with editing.
pub(super) struct LineReader {
    editor: Editor<LineHelper, FileHistory>,
    history: Option<PathBuf>,
    state: Arc<PromptState>,
}

/// The state of a prompt, which the thread of the editor tells.
#[derive(Default)]
struct PromptState {
    /// The number of times that the prompt was drawn.
    draws: AtomicU64,
    /// True if the line is complete.
    is_accepted: AtomicBool,
}

/// Prints above the line that is being edited. The editor takes one text at a time, and draws the prompt again below it;
/// until then the next text waits. A text that is given while the editor ends would stay in it and block the next one.
pub(super) struct PromptPrinter {
    printer: Box<dyn ExternalPrinter + Send>,
    state: Arc<PromptState>,
    /// The text that was given to the editor, and the number of draws before.
    given: Option<(String, u64)>,
    waiting: String,
}

impl PromptPrinter {
    /// Prints a text of whole lines as soon as possible.
    pub(super) fn add(&mut self, text: &str) {
        self.waiting.push_str(text);
        self.advance();
    }

    /// Gives the editor what waits, if it has shown what it was given before.
    pub(super) fn advance(&mut self) {
        let draws = self.state.draws.load(Ordering::SeqCst);
        self.given = self.given.take().filter(|given| given.1 == draws);
        // An editor that has no prompt yet, or ends, takes nothing.
        let is_editing = draws > 0 && !self.state.is_accepted.load(Ordering::SeqCst);
        if !is_editing || self.given.is_some() || self.waiting.is_empty() {
            return;
        }
        let text = std::mem::take(&mut self.waiting);
        // The line being edited is more important than a line above it.
        let _ = self.printer.print(text.clone());
        self.given = Some((text, draws));
    }

    /// Returns whether a text waits.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Returns the text that the editor was given and has not shown, and the text that waits.
    pub(super) fn end(mut self) -> [String; 2] {
        let draws = self.state.draws.load(Ordering::SeqCst);
        let given = self.given.take().filter(|given| given.1 == draws);
        [given.map(|given| given.0).unwrap_or_default(), self.waiting]
    }
}

/// A prompt that counts how often it is drawn.
struct CountedPrompt<'a> {
    text: &'a str,
    draws: &'a AtomicU64,
}

impl Prompt for CountedPrompt<'_> {
    fn raw(&self) -> &str {
        self.draws.fetch_add(1, Ordering::SeqCst);
        self.text
    }
}

impl LineReader {
    /// Creates a reader on the terminal, with the history of earlier chats.
    pub(super) fn new() -> ClientResult<Self> {
        let settings = Config::builder()
            .max_history_size(MAX_HISTORY)
            .map_err(broken)?
            .history_ignore_space(true)
            .bracketed_paste(true)
            .auto_add_history(false)
            .build();
        let mut editor: Editor<LineHelper, FileHistory> = Editor::with_config(settings).map_err(broken)?;
        let state = Arc::<PromptState>::default();
        editor.set_helper(Some(LineHelper(Arc::clone(&state))));
        let history = history_file();
        if let Some(path) = &history {
            // There is none before the first chat.
            let _ = editor.load_history(path);
        }
        Ok(Self { editor, history, state })
    }

    /// Returns what prints above the line that is being edited.
    pub(super) fn printer(&mut self) -> ClientResult<PromptPrinter> {
        self.state.draws.store(0, Ordering::SeqCst);
        self.state.is_accepted.store(false, Ordering::SeqCst);
        Ok(PromptPrinter {
            printer: Box::new(self.editor.create_external_printer().map_err(broken)?),
            state: Arc::clone(&self.state),
            given: None,
            waiting: String::new(),
        })
    }

    /// Reads a line. It blocks, so it runs on a thread for that.
    pub(super) fn read(&mut self, prompt: &str, initial: &str, is_kept: bool) -> ClientResult<Entered> {
        let prompt = CountedPrompt {
            text: prompt,
            draws: &self.state.draws,
        };
        match self.editor.readline_with_initial(&prompt, (initial, "")) {
            Ok(line) => {
                if is_kept && !line.trim().is_empty() {
                    // A line that is not kept is no reason to end the chat.
                    let _ = self.editor.add_history_entry(line.as_str());
                }
                Ok(Entered::Line(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Entered::Interrupt),
            Err(ReadlineError::Eof) => Ok(Entered::End),
            Err(error) => Err(broken(error)),
        }
    }

    /// Stores the history, which only its owner can read.
    pub(super) fn store_history(&mut self) {
        let Some(path) = &self.history else { return };
        if let Some(folder) = path.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        // Without a history the chat works, too.
        let _ = self.editor.append_history(path);
    }
}

/// Returns the file of the history, by the rules of freedesktop.org.
fn history_file() -> Option<PathBuf> {
    let state = config::variable("XDG_STATE_HOME").map(PathBuf::from);
    let home = || config::variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let folder = state.filter(|path| path.is_absolute()).or_else(home)?;
    Some(folder.join("adjutant").join("chat_history"))
}

fn broken(error: ReadlineError) -> ClientError {
    if let ReadlineError::Io(error) = error {
        return ClientError::Io(error);
    }
    ClientError::Io(std::io::Error::other(error.to_string()))
}

/// Completes commands, and lets a line that ends with `\` go on.
struct LineHelper(Arc<PromptState>);

impl Helper for LineHelper {}
impl Highlighter for LineHelper {}

impl Hinter for LineHelper {
    type Hint = String;
}

impl Completer for LineHelper {
    type Candidate = Pair;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<Pair>)> {
        let typed = line.get(..at).unwrap_or_default();
        let names = COMMANDS.iter().map(|command| command.name);
        let fitting = names.filter(|name| typed.starts_with('/') && name.starts_with(typed));
        let pairs = fitting.map(|name| Pair {
            display: name.to_owned(),
            replacement: format!("{name} "),
        });
        Ok((0, pairs.collect()))
    }
}

impl Validator for LineHelper {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        if context.input().ends_with('\\') {
            return Ok(ValidationResult::Incomplete);
        }
        self.0.is_accepted.store(true, Ordering::SeqCst);
        Ok(ValidationResult::Valid(None))
    }
}

/// Opens a text in the editor of the person. `None` if there is none.
///
/// # Errors
/// The file cannot be written or read, or the editor fails.
pub(super) fn edit_in_editor(text: &str) -> ClientResult<Option<String>> {
    let Some(editor) = config::variable("VISUAL").or_else(|| config::variable("EDITOR")) else {
        return Ok(None);
    };
    // Only its owner can read the file.
    let mut file = tempfile::Builder::new()
        .prefix("adjutant-")
        .suffix(".json")
        .tempfile()?;
    file.write_all(text.as_bytes())?;
    file.flush()?;
    // The variable may have arguments.
    let status = std::process::Command::new("sh")
        .arg("-c")
        .arg(format!("{editor} \"$1\""))
        .arg("sh")
        .arg(file.path())
        .status()?;
    if !status.success() {
        return Err(ClientError::Io(std::io::Error::other("the editor failed")));
    }
    let size = std::fs::metadata(file.path())?.len();
    if usize::try_from(size).map_or(true, |size| size > MAX_MESSAGE_BYTES) {
        return Err(ClientError::Usage(format!(
            "the text is larger than {MAX_MESSAGE_BYTES} bytes"
        )));
    }
    Ok(Some(std::fs::read_to_string(file.path())?))
}
