//! `adjutant runs`.

use serde_json::{Value, json};

use super::find::{self, FoundRun};
use super::{instant, items, text, time};
use crate::client::api::ApiClient;
use crate::client::error::ClientResult;
use crate::client::escape;
use crate::client::output::{self, fields, print_list, print_one};
use crate::client::table::Table;
use crate::config::client::RunsCommand;
use crate::domain::time::{Clock, Timestamp};

/// The number of threads whose runs are listed: those that changed last.
const MAX_THREADS: usize = 300;

/// Executes a command.
pub(in crate::client) async fn run(api: &ApiClient, command: &RunsCommand, clock: &dyn Clock) -> ClientResult<()> {
    match command {
        RunsCommand::List {
            thread,
            status,
            agent,
            since,
            limit,
            output,
            ..
        } => {
            let filter = RunFilter {
                status: status.as_deref(),
                agent: agent.as_deref(),
                since: find::parse_since(since.as_deref(), clock)?,
                limit: *limit,
            };
            let runs = match thread {
                Some(given) => {
                    let thread = find::thread(api, given).await?;
                    filter.pick(find::runs_of(api, &thread, filter.status, filter.page()).await?)
                }
                None => filter.of_all_threads(api).await?,
            };
            print_list(output.format(), &runs, || table(&runs))
        }
        RunsCommand::Show {
            run, thread, output, ..
        } => {
            let FoundRun { thread, run } = find::run(api, run, thread.as_deref()).await?;
            let found = api.get(&["threads", &thread, "runs", &run], &[]).await?;
            print_one(output.format(), &found, || page(&found))
        }
        RunsCommand::Tree {
            run, thread, output, ..
        } => {
            let FoundRun { thread, run } = find::run(api, run, thread.as_deref()).await?;
            let tree = api.get(&["threads", &thread, "runs", &run, "tree"], &[]).await?;
            print_one(output.format(), &tree, || {
                let mut text = String::new();
                add_node(&mut text, &tree, "", "");
                text
            })
        }
        RunsCommand::Cancel {
            run,
            thread,
            rollback,
            output,
            ..
        } => {
            let FoundRun { thread, run } = find::run(api, run, thread.as_deref()).await?;
            let action = if *rollback { "rollback" } else { "interrupt" };
            let is_cancelled = api.cancel(&thread, &run, action).await?;
            let result = json!({"thread_id": thread, "run_id": run, "cancelled": is_cancelled});
            print_one(output.format(), &result, || match is_cancelled {
                true => format!("The run {run} is being cancelled.\n"),
                false => format!("The run {run} has already ended.\n"),
            })
        }
    }
}

/// The runs that are listed.
struct RunFilter<'a> {
    status: Option<&'a str>,
    agent: Option<&'a str>,
    since: Option<Timestamp>,
    limit: u32,
}

impl RunFilter<'_> {
    /// The number of runs that are read of one thread.
    fn page(&self) -> u32 {
        if self.agent.is_some() { 1000 } else { self.limit }
    }

    fn pick(&self, mut runs: Vec<Value>) -> Vec<Value> {
        runs.retain(|run| self.is_wanted(run));
        runs.sort_by_key(|run| std::cmp::Reverse(instant(run, "created_at")));
        runs.truncate(usize::try_from(self.limit).unwrap_or(usize::MAX));
        runs
    }

    fn is_wanted(&self, run: &Value) -> bool {
        let is_agent = |agent: &str| run["assistant_id"] == agent || run["metadata"]["graph_id"] == agent;
        let is_new = |since: Timestamp| instant(run, "created_at").is_none_or(|created| created >= since);
        self.agent.is_none_or(is_agent)
            && self.since.is_none_or(is_new)
            && self.status.is_none_or(|status| run["status"] == status)
    }

    /// Returns the newest runs of all threads. A thread changes with its runs, so the search ends at the first thread
    /// that has not changed since the last of the runs that were found was made.
    async fn of_all_threads(&self, api: &ApiClient) -> ClientResult<Vec<Value>> {
        let body = json!({
            "limit": MAX_THREADS, "sort_by": "updated_at", "sort_order": "desc",
            "select": ["thread_id", "updated_at"],
        });
        let threads = items(api.post(&["threads", "search"], &body).await?);
        let mut runs: Vec<Value> = vec![];
        for thread in &threads {
            let changed = instant(thread, "updated_at");
            let is_full = runs.len() >= usize::try_from(self.limit).unwrap_or(usize::MAX);
            let oldest = runs.last().and_then(|run| instant(run, "created_at"));
            let is_older = self
                .since
                .is_some_and(|since| changed.is_some_and(|changed| changed < since));
            if is_older || (is_full && oldest > changed) {
                return Ok(runs);
            }
            runs.extend(find::runs_of(api, &text(thread, "thread_id"), self.status, self.page()).await?);
            runs = self.pick(runs);
        }
        if threads.len() == MAX_THREADS {
            output::inform(&format!(
                "Only the {MAX_THREADS} threads that changed last were searched; --thread names another one.\n"
            ));
        }
        Ok(runs)
    }
}

fn table(runs: &[Value]) -> Table {
    let mut table = Table::new(&["RUN", "STATUS", "AGENT", "CREATED", "THREAD"]);
    for run in runs {
        let agent = text(&run["metadata"], "graph_id");
        table.add(vec![
            text(run, "run_id"),
            text(run, "status"),
            if agent.is_empty() {
                text(run, "assistant_id")
            } else {
                agent
            },
            time(run, "created_at"),
            text(run, "thread_id"),
        ]);
    }
    table
}

fn page(run: &Value) -> String {
    let agent = text(&run["metadata"], "graph_id");
    fields(&[
        ("Run", text(run, "run_id")),
        ("Thread", text(run, "thread_id")),
        ("Status", text(run, "status")),
        (
            "Agent",
            if agent.is_empty() {
                text(run, "agent_name")
            } else {
                agent
            },
        ),
        ("Parent run", text(run, "parent_run_id")),
        ("Strategy", text(run, "multitask_strategy")),
        ("Created", time(run, "created_at")),
        ("Updated", time(run, "updated_at")),
        ("Usage", usage(&run["usage"])),
        ("Error", error(&run["error"])),
    ])
}

/// Returns what was used, in words.
pub(in crate::client) fn usage(usage: &Value) -> String {
    if !usage.is_object() {
        return String::new();
    }
    let number = |field: &str| usage[field].as_u64().unwrap_or_default();
    let seconds = usage["seconds"].as_f64().unwrap_or_default();
    let model_calls = number("model_calls");
    let tool_calls = number("tool_calls");
    format!(
        "{model_calls} model {}, {tool_calls} tool {}, {} tokens in, {} tokens out, {seconds:.1} s",
        if model_calls == 1 { "call" } else { "calls" },
        if tool_calls == 1 { "call" } else { "calls" },
        number("input_tokens"),
        number("output_tokens"),
    )
}

fn error(error: &Value) -> String {
    if !error.is_object() {
        return String::new();
    }
    format!("{}: {}", text(error, "error"), text(error, "message"))
}

/// Adds a run and the runs below it.
fn add_node(tree: &mut String, node: &Value, first: &str, rest: &str) {
    let name = text(node, "agent_name");
    let about = text(node, "display_text");
    let mut line = format!("{name}  {}  {}", text(node, "status"), text(node, "run_id"));
    for more in [usage(&node["usage"]), about, error(&node["error"])] {
        if !more.is_empty() {
            line.push_str("  ");
            line.push_str(&more);
        }
    }
    tree.push_str(first);
    tree.push_str(&escape::line(&line));
    tree.push('\n');
    let children = node["children"].as_array();
    let children: Vec<&Value> = children.into_iter().flatten().collect();
    for (at, child) in children.iter().enumerate() {
        let is_last = at + 1 == children.len();
        let (branch, below) = if is_last {
            ("└─ ", "   ")
        } else {
            ("├─ ", "│  ")
        };
        add_node(tree, child, &format!("{rest}{branch}"), &format!("{rest}{below}"));
    }
}
