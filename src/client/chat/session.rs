//! The state of a chat: its thread, what is shown of it, and the person in front of it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::event::{FrameKind, Outcome, RunSummary, ThreadFrame};
use super::input::{Entered, LineReader, PromptPrinter};
use super::subscription::{StreamItem, Subscription};
use super::view::{View, ViewStyle};
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::client::resources::{find, text, threads};
use crate::client::{escape, output};
use crate::domain::backoff::Backoff;
use crate::domain::id::RunId;

/// The time without events after which the status of the run is read.
const CHECK: Duration = Duration::from_secs(20);

/// The time for which a request that starts a run is sent again.
const PATIENCE: Duration = Duration::from_secs(60);

/// The pauses before a request is sent again.
const BACKOFF: Backoff = Backoff::doubling(Duration::from_secs(1), Duration::from_secs(5));

/// The time after which a text above the line is offered to the editor again.
const PRINT_AGAIN: Duration = Duration::from_millis(20);

/// The width of lines that go to no terminal.
const WIDE: usize = 400;

/// The number of messages of an earlier conversation that are shown.
const MAX_EARLIER: usize = 6;

/// The place where a chat is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Screen {
    /// On standard output, which is a terminal.
    Terminal,
    /// On standard error. The answer goes to standard output.
    Progress,
    /// JSON lines on standard output.
    Json,
}

/// A chat.
pub(super) struct Session {
    pub(super) api: ApiClient,
    pub(super) agent: String,
    pub(super) context: Option<Value>,
    screen: Screen,
    view: View,
    thread: Option<String>,
    subscription: Option<Subscription>,
    /// The events up to this run are from before this chat.
    earlier: Option<EarlierRun>,
    /// The run that is at work.
    pub(super) active: Option<String>,
    /// The number of runs that have begun.
    begun: u64,
    /// The number of runs that had begun when the current question was asked.
    begun_before_question: u64,
    /// The run that has ended last, and how.
    pub(super) last_end: Option<(String, RunSummary)>,
    /// The interrupts that are left to later, or to others.
    pub(super) put_off: BTreeSet<String>,
    pub(super) reader: Option<LineReader>,
}

/// The newest run of a thread when a chat joins it.
struct EarlierRun {
    run: String,
    /// True if it is still at work: then its events are shown.
    is_active: bool,
}

impl Session {
    /// Creates a chat without a thread: the first message makes one.
    pub(super) fn new(api: ApiClient, agent: String, context: Option<Value>, screen: Screen) -> Self {
        let is_terminal = match screen {
            Screen::Terminal => true,
            Screen::Progress | Screen::Json => std::io::stderr().is_terminal(),
        };
        let style = ViewStyle {
            has_colours: output::has_colours(is_terminal),
            is_live: screen == Screen::Terminal,
            width: output::width().unwrap_or(WIDE),
        };
        Self {
            api,
            agent,
            context,
            screen,
            view: View::new(style),
            thread: None,
            subscription: None,
            earlier: None,
            active: None,
            begun: 0,
            begun_before_question: 0,
            last_end: None,
            put_off: BTreeSet::new(),
            reader: None,
        }
    }

    /// Returns the thread.
    pub(super) fn thread(&self) -> Option<&str> {
        self.thread.as_deref()
    }

    /// Returns where the chat is shown.
    pub(super) fn screen(&self) -> Screen {
        self.screen
    }

    /// Lets a person answer questions.
    pub(super) fn open_reader(&mut self) -> ClientResult<()> {
        self.reader = Some(LineReader::new()?);
        Ok(())
    }

    /// Continues a thread: shows the end of its conversation, and follows the run that is at work.
    pub(super) async fn join(&mut self, thread: String) -> ClientResult<()> {
        let shown = self.api.get(&["threads", &thread], &[]).await?;
        let runs = find::runs_of(&self.api, &thread, None, 20).await?;
        self.leave_thread();
        let is_active = |run: &&Value| run["status"] == "pending" || run["status"] == "running";
        let oldest_active = runs.iter().rev().find(is_active);
        self.active = runs.iter().find(is_active).map(|run| text(run, "run_id"));
        self.earlier = oldest_active.or(runs.first()).map(|run| EarlierRun {
            run: text(run, "run_id"),
            is_active: oldest_active.is_some(),
        });
        self.subscription = Some(Subscription::new(self.api.clone(), thread.clone()));
        self.thread = Some(thread);
        let messages: Vec<&Value> = shown["values"]["messages"].as_array().into_iter().flatten().collect();
        let skipped = messages.len().saturating_sub(MAX_EARLIER);
        if self.screen == Screen::Terminal {
            let earlier = messages
                .iter()
                .skip(skipped)
                .map(|message| threads::describe_message(message));
            let earlier: String = earlier.collect();
            self.write(&earlier)?;
            self.remark(&format!(
                "{} messages so far, status {}",
                messages.len(),
                text(&shown, "status")
            ))?;
        }
        Ok(())
    }

    /// Leaves the thread: the next message makes one.
    pub(super) fn leave_thread(&mut self) {
        self.thread = None;
        self.subscription = None;
        self.earlier = None;
        self.active = None;
        self.put_off.clear();
    }

    /// Returns the thread, which a command needs.
    pub(super) fn known_thread(&self) -> ClientResult<&str> {
        let missing = || ClientError::NotFound("there is no thread yet: send a message".to_owned());
        self.thread().ok_or_else(missing)
    }

    /// Returns the values of the thread.
    pub(super) async fn values(&self) -> ClientResult<Value> {
        let mut state = self.api.get(&["threads", self.known_thread()?, "state"], &[]).await?;
        Ok(state["values"].take())
    }

    /// Returns the questions for which the thread waits.
    pub(super) async fn pending(&self) -> ClientResult<Vec<Value>> {
        match &self.thread {
            Some(thread) => find::interrupts(&self.api, Some(thread), "pending", u32::MAX).await,
            None => Ok(vec![]),
        }
    }

    /// Returns the thread. If there is none yet, it is made.
    pub(super) async fn open_thread(&mut self) -> ClientResult<String> {
        if let Some(thread) = &self.thread {
            return Ok(thread.clone());
        }
        let made = self.post_persistently(&["threads"], &json!({})).await?;
        let thread = text(&made, "thread_id");
        self.subscription = Some(Subscription::new(self.api.clone(), thread.clone()));
        self.thread = Some(thread.clone());
        Ok(thread)
    }

    /// Sends a request that makes something, again and again while the server cannot be reached. It is made once.
    pub(super) async fn post_persistently(&mut self, path: &[&str], body: &Value) -> ClientResult<Value> {
        let key = RunId::mint().to_string();
        let began = Instant::now();
        let mut failures = 0;
        loop {
            match self.api.post_once(path, body, &key).await {
                Err(error) if error.is_transient() && began.elapsed() < PATIENCE => {
                    self.remark(&format!("{error}; trying again"))?;
                    failures += 1;
                    tokio::time::sleep(BACKOFF.pause(failures)).await;
                }
                other => return other,
            }
        }
    }

    /// Shows events until a run of the main agent ends. Ctrl-C cancels it, and a second one leaves.
    pub(super) async fn follow(&mut self, run: &str) -> ClientResult<RunSummary> {
        // Another client may have given the same answer before.
        if let Some(ended) = self.last_end.as_ref().filter(|ended| ended.0 == run) {
            return Ok(ended.1.clone());
        }
        let mut is_cancelled = false;
        let mut interrupt = Box::pin(tokio::signal::ctrl_c());
        loop {
            let Some(subscription) = &mut self.subscription else {
                return Err(ClientError::Left);
            };
            tokio::select! {
                incoming = subscription.next() => {
                    if let Some(end) = self.take(incoming?)?.filter(|ended| ended.0 == run) {
                        return Ok(end.1);
                    }
                }
                pressed = &mut interrupt => {
                    pressed?;
                    if is_cancelled {
                        return Err(ClientError::Left);
                    }
                    is_cancelled = true;
                    interrupt = Box::pin(tokio::signal::ctrl_c());
                    self.cancel(run).await?;
                }
                () = tokio::time::sleep(CHECK) => {
                    if let Some(end) = self.check(run).await? {
                        return Ok(end);
                    }
                }
            }
        }
    }

    async fn cancel(&mut self, run: &str) -> ClientResult<()> {
        self.remark("cancelling the run; Ctrl-C again leaves it to the server")?;
        let thread = self.thread.clone().unwrap_or_default();
        match self.api.cancel(&thread, run, "interrupt").await {
            Ok(_) => Ok(()),
            Err(error) => self.remark(&error.to_string()),
        }
    }

    /// Reads the status of a run whose stream is silent: its end may have been taken away from the log.
    async fn check(&mut self, run: &str) -> ClientResult<Option<RunSummary>> {
        let thread = self.thread.clone().unwrap_or_default();
        let end = |outcome, reason: &str| RunSummary {
            outcome,
            reason: reason.to_owned(),
            usage: Value::Null,
        };
        match self.api.get(&["threads", &thread, "runs", run], &[]).await {
            Ok(found) => Ok(match found["status"].as_str() {
                Some("success") if self.pending().await?.is_empty() => Some(end(Outcome::Completed, "")),
                Some("success" | "interrupted") => Some(end(Outcome::Interrupted, "")),
                Some("error" | "timeout") => Some(end(Outcome::Failed, "")),
                Some(_) | None => None,
            }),
            Err(error) if error.is_refusal(&[404]) => Ok(Some(end(Outcome::Failed, "the run was taken back"))),
            Err(error) if error.is_transient() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Shows what comes from the stream. Returns the run that has ended, and how.
    fn take(&mut self, incoming: StreamItem) -> ClientResult<Option<(String, RunSummary)>> {
        let shown = self.render(incoming);
        if !shown.text.is_empty() {
            match self.screen {
                Screen::Json => output::print(&shown.text)?,
                Screen::Terminal | Screen::Progress => self.write(&shown.text)?,
            }
        }
        Ok(shown.ended)
    }

    /// Returns the text to show for what comes from the stream.
    fn render(&mut self, incoming: StreamItem) -> Rendered {
        let is_json = self.screen == Screen::Json;
        let remark = match &incoming {
            StreamItem::Event(frame, event) => {
                if self.is_earlier(frame) {
                    return Rendered::default();
                }
                let text = match is_json {
                    true => escape::json(&event.to_string()) + "\n",
                    false => self.view.show(frame),
                };
                return Rendered {
                    text,
                    ended: self.note_runs(frame),
                };
            }
            StreamItem::Lost(reason) => format!("the connection is lost: {reason}. Connecting again …"),
            StreamItem::Back => "connected again".to_owned(),
            StreamItem::Gap => "the server has no longer what happened meanwhile; /state shows the state".to_owned(),
        };
        if is_json {
            output::inform(&format!("{}\n", escape::line(&remark)));
            return Rendered::default();
        }
        Rendered {
            text: self.view.remark(&remark),
            ended: None,
        }
    }

    /// Keeps in mind which run is at work. Returns the one that has ended.
    fn note_runs(&mut self, frame: &ThreadFrame) -> Option<(String, RunSummary)> {
        if let FrameKind::RunStarted { run } = &frame.kind {
            self.active = Some(run.clone());
            self.begun += 1;
        }
        let FrameKind::RunEnded { run, end } = &frame.kind else {
            return None;
        };
        if self.active.as_ref() == Some(run) {
            self.active = None;
        }
        self.last_end = Some((run.clone(), end.clone()));
        Some((run.clone(), end.clone()))
    }

    /// Returns whether an event is from before this chat. Ids of runs grow with time.
    fn is_earlier(&mut self, frame: &ThreadFrame) -> bool {
        let Some(last) = &self.earlier else {
            return false;
        };
        match &frame.kind {
            FrameKind::RunStarted { run } if *run > last.run || (*run == last.run && last.is_active) => {
                self.earlier = None;
                false
            }
            FrameKind::RunEnded { run, .. } if *run == last.run => {
                self.earlier = None;
                true
            }
            FrameKind::RunStarted { .. }
            | FrameKind::RunEnded { .. }
            | FrameKind::MessageStarted { .. }
            | FrameKind::Text { .. }
            | FrameKind::TextFinished { .. }
            | FrameKind::MessageFinished
            | FrameKind::MessageFailed { .. }
            | FrameKind::ToolStarted { .. }
            | FrameKind::ToolFinished { .. }
            | FrameKind::SubagentFailed { .. }
            | FrameKind::Requested { .. }
            | FrameKind::Custom { .. }
            | FrameKind::Other => true,
        }
    }

    /// Marks the beginning of a question.
    pub(super) fn begin_question(&mut self) {
        self.begun_before_question = self.begun;
    }

    /// Returns whether a run has begun since the question was asked: another client has answered.
    pub(super) fn is_answered_elsewhere(&self) -> bool {
        self.begun > self.begun_before_question
    }

    /// Reads a line. What happens on the thread meanwhile is shown above it.
    pub(super) async fn read_line(&mut self, prompt: &str, initial: &str, is_kept: bool) -> ClientResult<Entered> {
        let Some(mut reader) = self.reader.take() else {
            return Ok(Entered::End);
        };
        let mut printer = reader.printer()?;
        let end = self.view.set_live(false);
        self.write(&end)?;
        let prompt = prompt.to_owned();
        let initial = initial.to_owned();
        let mut reading = tokio::task::spawn_blocking(move || {
            let entered = reader.read(&prompt, &initial, is_kept);
            (reader, entered)
        });
        let begun = self.begun;
        let mut is_told = false;
        loop {
            tokio::select! {
                done = &mut reading => {
                    let (reader, entered) = done.map_err(std::io::Error::other)?;
                    self.close_prompt(reader, printer)?;
                    let _ = self.view.set_live(self.screen == Screen::Terminal);
                    return entered;
                }
                incoming = next_of(&mut self.subscription) => {
                    let mut shown = match incoming {
                        Ok(incoming) => self.render(incoming).text,
                        Err(error) => {
                            self.subscription = None;
                            self.view.remark(&format!("the thread is not followed any more: {error}"))
                        }
                    };
                    if !is_kept && self.begun > begun && !is_told {
                        is_told = true;
                        shown += &self.view.remark("another client has answered; Enter goes on");
                    }
                    printer.add(&shown);
                }
                () = tokio::time::sleep(PRINT_AGAIN), if printer.is_waiting() => printer.advance(),
            }
        }
    }

    /// Shows what was not shown above the line. An editor that has kept some of it is replaced.
    fn close_prompt(&mut self, mut reader: LineReader, printer: PromptPrinter) -> ClientResult<()> {
        let [given, waiting] = printer.end();
        if !given.is_empty() {
            reader.store_history();
            reader = LineReader::new()?;
        }
        self.reader = Some(reader);
        self.write(&(given + &waiting))
    }

    /// Shows all that is left of answers.
    pub(super) fn settle(&mut self) -> ClientResult<()> {
        let text = self.view.settle();
        self.write(&text)
    }

    /// Writes a line about the chat itself.
    pub(super) fn remark(&mut self, text: &str) -> ClientResult<()> {
        let text = self.view.remark(text);
        self.write(&text)
    }

    /// Writes a text that is already safe for the terminal.
    pub(super) fn write(&self, text: &str) -> ClientResult<()> {
        match self.screen {
            Screen::Terminal => output::print(text)?,
            Screen::Progress | Screen::Json => output::inform(text),
        }
        Ok(())
    }
}

/// The text for the terminal, and the run that has ended with it.
#[derive(Default)]
struct Rendered {
    text: String,
    ended: Option<(String, RunSummary)>,
}

/// Waits for what comes next; forever without a stream.
async fn next_of(subscription: &mut Option<Subscription>) -> ClientResult<StreamItem> {
    match subscription {
        Some(subscription) => subscription.next().await,
        None => std::future::pending().await,
    }
}
