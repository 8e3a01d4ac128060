//! The state of a chat: its thread, what is shown of it, and the person in front of it.

use std::collections::BTreeSet;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::approval::{self, Reply};
use super::event::{FrameKind, Outcome, RunSummary, ThreadFrame};
use super::input::{Entered, LineReader, PromptPrinter};
use super::slash;
use super::subscription::{StreamItem, Subscription};
use super::view::{View, ViewStyle};
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::client::resources::threads::{self, ThreadFilter};
use crate::client::resources::{agents, approvals, find, text};
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
    agent: String,
    context: Option<Value>,
    screen: Screen,
    view: View,
    thread: Option<String>,
    subscription: Option<Subscription>,
    /// The events up to this run are from before this chat.
    earlier: Option<EarlierRun>,
    /// The run that is at work.
    active: Option<String>,
    /// The number of runs that have begun.
    begun: u64,
    /// The number of runs that had begun when the current question was asked.
    begun_before_question: u64,
    /// The run that has ended last, and how.
    last_end: Option<(String, RunSummary)>,
    /// The interrupts that are left to later, or to others.
    put_off: BTreeSet<String>,
    reader: Option<LineReader>,
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

    fn leave_thread(&mut self) {
        self.thread = None;
        self.subscription = None;
        self.earlier = None;
        self.active = None;
        self.put_off.clear();
    }

    /// Talks with a person until they leave.
    pub(super) async fn run(&mut self) -> ClientResult<()> {
        self.open_reader()?;
        let server = self.api.display_server();
        let agent = self.agent.clone();
        self.remark(&format!("{agent} at {server}. /help lists the commands; Ctrl-D leaves"))?;
        self.go_on().await?;
        let mut is_leaving = false;
        loop {
            let entered = self.read_line("> ", "", true).await?;
            match entered {
                Entered::End => break,
                Entered::Interrupt if is_leaving => break,
                Entered::Interrupt => {
                    is_leaving = true;
                    self.remark("Ctrl-C again, or Ctrl-D, leaves the chat")?;
                }
                Entered::Line(line) => {
                    is_leaving = false;
                    match Box::pin(self.run_line(&line)).await {
                        Ok(true) => {}
                        Ok(false) | Err(ClientError::Left) => break,
                        Err(ClientError::Io(error)) => return Err(ClientError::Io(error)),
                        Err(error) => self.remark(&error.to_string())?,
                    }
                }
            }
        }
        self.end()
    }

    /// Ends the chat. Runs go on.
    fn end(&mut self) -> ClientResult<()> {
        if let Some(reader) = &mut self.reader {
            reader.store_history();
        }
        if let Some(thread) = self.thread.clone() {
            self.remark(&format!(
                "the thread is {thread}; go on with `adjutant chat --thread {thread}`"
            ))?;
        }
        Ok(())
    }

    /// Does what a line says. False ends the chat.
    async fn run_line(&mut self, line: &str) -> ClientResult<bool> {
        let line = line.replace("\\\n", "\n");
        let line = line.trim();
        if line.is_empty() {
            self.go_on().await?;
            return Ok(true);
        }
        if let Some(message) = line.strip_prefix('/').filter(|rest| rest.starts_with('/')) {
            self.send(message).await?;
            return Ok(true);
        }
        if !line.starts_with('/') {
            self.send(line).await?;
            return Ok(true);
        }
        let (command, argument) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        self.execute(command, argument.trim()).await
    }

    /// Executes a command of the chat. False ends the chat.
    async fn execute(&mut self, command: &str, argument: &str) -> ClientResult<bool> {
        match command {
            "/quit" | "/exit" => return Ok(false),
            "/help" => self.write(&slash::help())?,
            "/agents" => {
                let agents = agents::list(&self.api, None, 100).await?;
                self.write(&agents::table(&agents).render(output::width()))?;
            }
            "/agent" if !argument.is_empty() => {
                self.leave_thread();
                argument.clone_into(&mut self.agent);
                self.remark(&format!("a new thread with {argument}"))?;
            }
            "/threads" => {
                let filter = ThreadFilter {
                    status: None,
                    agent: None,
                    limit: 20,
                    has_values: false,
                };
                let found = threads::search(&self.api, &filter).await?;
                self.write(&threads::table(&found).render(output::width()))?;
            }
            "/thread" if !argument.is_empty() => {
                let thread = find::thread(&self.api, argument).await?;
                self.join(thread).await?;
                self.go_on().await?;
            }
            "/new" => {
                self.leave_thread();
                self.remark("a new thread")?;
            }
            "/state" => {
                let values = self.values().await?;
                self.write(&output::pretty(&values))?;
            }
            "/files" => self.show_files(argument).await?,
            "/todos" => {
                let values = self.values().await?;
                let todos = threads::todos(&values["todos"]);
                let todos = if todos.is_empty() { "there are none" } else { &todos };
                self.write(&format!("{}\n", escape::text(todos)))?;
            }
            "/approvals" => {
                self.put_off.clear();
                self.go_on().await?;
            }
            "/decisions" => self.show_decisions().await?,
            "/revoke" if !argument.is_empty() => self.revoke(argument).await?,
            "/cancel" => self.cancel_all().await?,
            _ => self.remark(&format!("there is no command `{command}` like this; /help lists all"))?,
        }
        Ok(true)
    }

    async fn show_files(&mut self, path: &str) -> ClientResult<()> {
        let values = self.values().await?;
        let files = values["files"].as_object();
        if path.is_empty() {
            let names = files.into_iter().flatten().map(|file| escape::line(file.0) + "\n");
            let names: String = names.collect();
            return self.write(if names.is_empty() { "there are none\n" } else { &names });
        }
        let Some(file) = files.and_then(|files| files.get(path)) else {
            return self.remark(&format!("there is no file {path}"));
        };
        let lines = file["content"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str);
        let content = file["content"].as_str().map(str::to_owned);
        let content = content.unwrap_or_else(|| lines.collect::<Vec<_>>().join("\n"));
        self.write(&format!("{}\n", escape::text(&content)))
    }

    /// Shows the decisions that hold for the rest of the thread.
    async fn show_decisions(&self) -> ClientResult<()> {
        let found = find::approvals(&self.api, self.known_thread()?).await?;
        let page = approvals::page(&found);
        self.write(if page.is_empty() { "there are none\n" } else { &page })
    }

    /// Revokes a decision that holds for the rest of the thread.
    async fn revoke(&mut self, given: &str) -> ClientResult<()> {
        let revoked = approvals::revoke(&self.api, self.known_thread()?, given).await?;
        self.remark(&revoked)
    }

    /// Returns the thread, which a command needs.
    fn known_thread(&self) -> ClientResult<&str> {
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

    async fn cancel_all(&mut self) -> ClientResult<()> {
        let Some(thread) = self.thread.clone() else {
            return self.remark("there is nothing to cancel");
        };
        let runs = find::runs_of(&self.api, &thread, None, 100).await?;
        let active = runs
            .iter()
            .filter(|run| run["status"] == "pending" || run["status"] == "running");
        let mut number = 0;
        for run in active {
            self.api.cancel(&thread, &text(run, "run_id"), "interrupt").await?;
            number += 1;
        }
        self.remark(&format!("{number} runs are being cancelled"))
    }

    /// Sends a message, follows its run, and asks what it asks. Returns how it ended.
    pub(super) async fn send(&mut self, message: &str) -> ClientResult<RunSummary> {
        let thread = self.open_thread().await?;
        let mut body = json!({
            "assistant_id": self.agent,
            "input": {"messages": [{"role": "user", "content": message}]},
            "stream_mode": ["values", "updates", "messages-tuple", "custom"],
            "stream_subgraphs": true,
            "stream_resumable": true,
            "multitask_strategy": "enqueue",
        });
        if let Some(context) = &self.context {
            body["context"] = context.clone();
        }
        let run = self.post_persistently(&["threads", &thread, "runs"], &body).await?;
        let run = text(&run, "run_id");
        // An ordinary message may drop a question, or be refused while there is one: that is up to the agent.
        let end = self.follow(&run).await?;
        self.answer_questions().await?;
        // Another person may have answered, so that it was no run of this chat.
        Ok(self.last_end.take().map_or(end, |ended| ended.1))
    }

    /// Follows what is at work, and asks what waits.
    async fn go_on(&mut self) -> ClientResult<()> {
        if let Some(run) = self.active.clone() {
            self.follow(&run).await?;
        }
        self.answer_questions().await
    }

    /// Returns the thread. If there is none yet, it is made.
    async fn open_thread(&mut self) -> ClientResult<String> {
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
    async fn post_persistently(&mut self, path: &[&str], body: &Value) -> ClientResult<Value> {
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
    async fn follow(&mut self, run: &str) -> ClientResult<RunSummary> {
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

    /// Asks a person what the thread asks, one question after the other, and follows the runs that continue.
    async fn answer_questions(&mut self) -> ClientResult<()> {
        while self.reader.is_some() {
            if let Some(run) = self.active.clone() {
                self.follow(&run).await?;
            }
            let pending = self.pending().await?;
            let next = pending
                .into_iter()
                .find(|interrupt| !self.put_off.contains(&text(interrupt, "id")));
            let Some(interrupt) = next else { break };
            if let Some(run) = self.answer(&interrupt).await? {
                self.follow(&run).await?;
            }
        }
        Ok(())
    }

    /// Asks one question. Returns the run that continues.
    async fn answer(&mut self, interrupt: &Value) -> ClientResult<Option<String>> {
        let id = text(interrupt, "id");
        let thread = text(interrupt, "thread_id");
        let reply = Box::pin(approval::ask(self, interrupt)).await?;
        let body = match reply {
            Reply::Answer(body) => body,
            Reply::Later => {
                self.put_off.insert(id);
                self.remark("the question waits; /approvals asks it again")?;
                return Ok(None);
            }
            Reply::AnsweredElsewhere => return Ok(None),
        };
        match self
            .api
            .post(&["threads", &thread, "interrupts", &id, "resolve"], &body)
            .await
        {
            Ok(resolved) => Ok(Some(text(&resolved, "run_id"))),
            // The answer is corrected: the question is asked again.
            Err(error) if error.is_refusal(&[400, 422]) => self.remark(&error.to_string()).map(|()| None),
            Err(error) if error.is_refusal(&[409]) => {
                self.remark(&format!("another client was faster: {error}"))?;
                Ok(None)
            }
            Err(error) if error.is_refusal(&[403]) => {
                self.put_off.insert(id);
                self.remark(&error.to_string())?;
                Ok(None)
            }
            Err(error) => Err(error),
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
