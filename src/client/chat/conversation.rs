//! The conversation with a person: the lines and commands that they enter, and their answers to the questions of agents.

use serde_json::{Value, json};

use super::event::RunSummary;
use super::input::Entered;
use super::reply::Reply;
use super::session::Session;
use super::{approval, slash};
use crate::client::error::{ClientError, ClientResult};
use crate::client::resources::threads::{self, ThreadFilter};
use crate::client::resources::{agents, approvals, find, text};
use crate::client::{escape, output};

impl Session {
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
        if let Some(thread) = self.thread().map(str::to_owned) {
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

    async fn cancel_all(&mut self) -> ClientResult<()> {
        let Some(thread) = self.thread().map(str::to_owned) else {
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
}
