//! `adjutant threads`.

use std::io::{BufRead, Write};

use serde_json::{Value, json};

use super::{content_text, find, instant, items, text, time};
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::client::output::{self, fields, print_list, print_one};
use crate::client::table::Table;
use crate::client::{escape, is_interactive};
use crate::config::client::{OutputFormat, ThreadsCommand};
use crate::domain::text_limits::first_chars;
use crate::domain::time::Clock;

/// The number of messages that a page shows.
const MAX_MESSAGES: usize = 20;

/// Executes a command.
pub(in crate::client) async fn run(api: &ApiClient, command: &ThreadsCommand, clock: &dyn Clock) -> ClientResult<()> {
    match command {
        ThreadsCommand::List {
            status,
            agent,
            since,
            limit,
            output,
            ..
        } => {
            let since = find::parse_since(since.as_deref(), clock)?;
            let filter = ThreadFilter {
                status: status.as_deref(),
                agent: agent.as_deref(),
                limit: *limit,
                has_values: output.format() != OutputFormat::Table,
            };
            let mut threads = search(api, &filter).await?;
            threads.retain(|thread| {
                since.is_none_or(|since| instant(thread, "updated_at").is_none_or(|updated| updated >= since))
            });
            print_list(output.format(), &threads, || table(&threads))
        }
        ThreadsCommand::Show { thread, output, .. } => {
            let thread = find::thread(api, thread).await?;
            let mut shown = api.get(&["threads", &thread], &[]).await?;
            let pending = find::interrupts(api, Some(&thread), "pending", u32::MAX).await;
            // Other servers of this API have no such list.
            let pending = pending.unwrap_or_default();
            print_one(output.format(), &shown.clone(), || {
                let values = shown["values"].take();
                page(&shown, &values, &pending)
            })
        }
        ThreadsCommand::History {
            thread, limit, output, ..
        } => {
            let thread = find::thread(api, thread).await?;
            let query = [("limit", limit.to_string())];
            let query = query.each_ref().map(|(name, value)| (*name, value.as_str()));
            let states = items(api.get(&["threads", &thread, "history"], &query).await?);
            print_list(output.format(), &states, || history(&states))
        }
        ThreadsCommand::Delete { thread, yes, .. } => {
            if !find::is_uuid(thread.trim()) {
                let message = "name the whole id of the thread that is deleted";
                return Err(ClientError::Usage(message.to_owned()));
            }
            if !yes && !is_confirmed(thread)? {
                return Err(ClientError::Left);
            }
            api.delete(&["threads", thread.trim()]).await?;
            output::print(&format!("The thread {} is deleted.\n", escape::line(thread)))?;
            Ok(())
        }
    }
}

/// The threads that are listed.
pub(in crate::client) struct ThreadFilter<'a> {
    pub(in crate::client) status: Option<&'a str>,
    pub(in crate::client) agent: Option<&'a str>,
    pub(in crate::client) limit: u32,
    pub(in crate::client) has_values: bool,
}

/// Returns threads, the last changed first.
pub(in crate::client) async fn search(api: &ApiClient, filter: &ThreadFilter<'_>) -> ClientResult<Vec<Value>> {
    let mut body = json!({"limit": filter.limit, "sort_by": "updated_at", "sort_order": "desc"});
    if let Some(status) = filter.status {
        body["status"] = json!(status);
    }
    if let Some(agent) = filter.agent {
        let field = if find::is_uuid(agent) {
            "assistant_id"
        } else {
            "graph_id"
        };
        body["metadata"] = json!({field: agent});
    }
    if !filter.has_values {
        body["select"] = json!(["thread_id", "status", "metadata", "created_at", "updated_at"]);
        body["extract"] = json!({"first": "values.messages[0].content"});
    }
    Ok(items(api.post(&["threads", "search"], &body).await?))
}

/// Returns a table of threads with their first messages.
pub(in crate::client) fn table(threads: &[Value]) -> Table {
    let mut table = Table::new(&["THREAD", "STATUS", "AGENT", "UPDATED", "FIRST MESSAGE"]);
    for thread in threads {
        table.add(vec![
            text(thread, "thread_id"),
            text(thread, "status"),
            text(&thread["metadata"], "graph_id"),
            time(thread, "updated_at"),
            first_chars(&content_text(&thread["extracted"]["first"]), 200).to_owned(),
        ]);
    }
    table
}

/// Asks whether the thread shall be deleted.
fn is_confirmed(thread: &str) -> ClientResult<bool> {
    if !is_interactive() {
        return Err(ClientError::Usage(
            "a thread is deleted without a question only with --yes".to_owned(),
        ));
    }
    let mut output = std::io::stdout().lock();
    write!(
        output,
        "Delete the thread {} with its history? [y/N] ",
        escape::line(thread)
    )?;
    output.flush()?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

fn page(thread: &Value, values: &Value, pending: &[Value]) -> String {
    let messages: Vec<&Value> = values["messages"].as_array().into_iter().flatten().collect();
    let names = |field: &str| {
        let files = values[field].as_object();
        files
            .map(|files| files.keys().cloned().collect::<Vec<_>>().join("\n"))
            .unwrap_or_default()
    };
    let ids: Vec<String> = pending
        .iter()
        .map(|interrupt| format!("{}  {}", text(interrupt, "id"), text(interrupt, "agent_name")))
        .collect();
    let mut page = fields(&[
        ("Thread", text(thread, "thread_id")),
        ("Status", text(thread, "status")),
        ("Agent", text(&thread["metadata"], "graph_id")),
        ("Created", time(thread, "created_at")),
        ("Updated", time(thread, "updated_at")),
        ("Error", text(thread, "error")),
        ("Pending", ids.join("\n")),
        ("Todos", todos(&values["todos"])),
        ("Files", names("files")),
        ("Messages", messages.len().to_string()),
    ]);
    let skipped = messages.len().saturating_sub(MAX_MESSAGES);
    if skipped > 0 {
        page.push_str(&format!("\n… {skipped} earlier messages\n"));
    }
    for message in messages.iter().skip(skipped) {
        page.push_str(&describe_message(message));
    }
    page
}

/// Returns a message with its speaker, for people.
pub(in crate::client) fn describe_message(message: &Value) -> String {
    let kind = text(message, "type");
    let name = text(message, "name");
    let speaker = match (kind.as_str(), name.is_empty()) {
        ("human", true) => "you".to_owned(),
        (_, true) => kind,
        (_, false) => name,
    };
    let said = content_text(&message["content"]);
    let calls = message["tool_calls"].as_array().into_iter().flatten();
    let calls: Vec<String> = calls
        .map(|call| format!("→ {}({})", text(call, "name"), text(call, "args")))
        .collect();
    let all: Vec<&str> = std::iter::once(said.trim_end())
        .chain(calls.iter().map(String::as_str))
        .filter(|text| !text.is_empty())
        .collect();
    let body = escape::text(&all.join("\n")).replace('\n', "\n  ");
    format!("\n{}:\n  {body}\n", escape::line(&speaker))
}

/// Returns todos, one on each line.
pub(in crate::client) fn todos(todos: &Value) -> String {
    let lines = todos.as_array().into_iter().flatten().map(|todo| {
        let mark = match todo["status"].as_str() {
            Some("completed") => "[x]",
            Some("in_progress") => "[>]",
            Some(_) | None => "[ ]",
        };
        format!("{mark} {}", text(todo, "content"))
    });
    lines.collect::<Vec<_>>().join("\n")
}

fn history(states: &[Value]) -> Table {
    let mut table = Table::new(&["CHECKPOINT", "STEP", "SOURCE", "NEXT", "MESSAGES", "CREATED"]);
    for state in states {
        let next: Vec<&str> = state["next"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let messages = state["values"]["messages"].as_array().map_or(0, Vec::len);
        table.add(vec![
            text(&state["checkpoint"], "checkpoint_id"),
            text(&state["metadata"], "step"),
            text(&state["metadata"], "source"),
            next.join(", "),
            messages.to_string(),
            time(state, "created_at"),
        ]);
    }
    table
}
