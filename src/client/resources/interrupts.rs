//! `adjutant interrupts`.

use serde_json::Value;

use super::{content_text, find, instant, text, time};
use crate::client::api::ApiClient;
use crate::client::decisions::{self, action_requests};
use crate::client::error::ClientResult;
use crate::client::escape;
use crate::client::output::{fields, print_list, print_one};
use crate::client::table::Table;
use crate::config::client::{InterruptsCommand, ResolveArguments};
use crate::domain::time::Clock;

/// The shortest beginning of an id by which an interrupt is answered.
const MIN_RESOLVE_PREFIX: usize = 8;

/// The shortest beginning of an id by which an interrupt is shown.
const MIN_SHOW_PREFIX: usize = 4;

/// The statuses of interrupts.
const STATUSES: [&str; 4] = ["pending", "resolved", "dropped", "expired"];

/// Executes a command.
pub(in crate::client) async fn run(
    api: &ApiClient,
    command: &InterruptsCommand,
    clock: &dyn Clock,
) -> ClientResult<()> {
    match command {
        InterruptsCommand::List {
            status,
            thread,
            agent,
            since,
            limit,
            output,
            ..
        } => {
            let since = find::parse_since(since.as_deref(), clock)?;
            let thread = match thread {
                Some(given) => Some(find::thread(api, given).await?),
                None => None,
            };
            // A filter of this program is applied to all.
            let has_filter = agent.is_some() || since.is_some() || thread.is_some();
            let most = if has_filter { u32::MAX } else { *limit };
            let mut found = find::interrupts(api, thread.as_deref(), status, most).await?;
            found.retain(|interrupt| {
                let is_agent = |agent: &String| interrupt["agent_name"] == agent.as_str();
                let is_new = |since| instant(interrupt, "created_at").is_none_or(|created| created >= since);
                agent.as_ref().is_none_or(is_agent) && since.is_none_or(is_new)
            });
            found.truncate(usize::try_from(*limit).unwrap_or(usize::MAX));
            print_list(output.format(), &found, || table(&found))
        }
        InterruptsCommand::Show { interrupt, output, .. } => {
            let found = find::interrupt(api, interrupt, &STATUSES, MIN_SHOW_PREFIX).await?;
            print_one(output.format(), &found, || page(&found))
        }
        InterruptsCommand::Resolve(arguments) => resolve(api, arguments).await,
    }
}

async fn resolve(api: &ApiClient, arguments: &ResolveArguments) -> ClientResult<()> {
    // Answered ones are found, too: the same answer again is the same, and another one is refused with the reason.
    let found = find::interrupt(api, &arguments.interrupt, &STATUSES, MIN_RESOLVE_PREFIX).await?;
    let body = decisions::answer(&found, &arguments.answer, arguments.always)?;
    let thread = text(&found, "thread_id");
    let id = text(&found, "id");
    let result = api
        .post(&["threads", &thread, "interrupts", &id, "resolve"], &body)
        .await?;
    print_one(arguments.output.format(), &result, || {
        let run = text(&result, "run_id");
        format!("The interrupt {id} is answered. The run {run} of the thread {thread} continues.\n")
    })
}

fn table(interrupts: &[Value]) -> Table {
    let mut table = Table::new(&["INTERRUPT", "KIND", "AGENT", "QUESTION", "CREATED", "THREAD"]);
    for interrupt in interrupts {
        table.add(vec![
            text(interrupt, "id"),
            text(interrupt, "kind"),
            text(interrupt, "agent_name"),
            question(interrupt),
            time(interrupt, "created_at"),
            text(interrupt, "thread_id"),
        ]);
    }
    table
}

/// Returns the question of an interrupt in a line: the tools that shall be called, or what is asked.
pub(in crate::client) fn question(interrupt: &Value) -> String {
    if decisions::wants_decisions(interrupt) {
        let names: Vec<String> = action_requests(interrupt)
            .into_iter()
            .map(|request| request.name)
            .collect();
        return names.join(", ");
    }
    let value = &interrupt["value"];
    if value["type"] == "ask_user" {
        let questions = value["questions"].as_array().into_iter().flatten();
        let texts: Vec<&str> = questions.filter_map(|one| one["question"].as_str()).collect();
        return texts.join(" / ");
    }
    let text = content_text(value);
    if text.is_empty() { value.to_string() } else { text }
}

fn page(interrupt: &Value) -> String {
    let path: Vec<&str> = interrupt["agent_path"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut page = fields(&[
        ("Interrupt", text(interrupt, "id")),
        ("Status", text(interrupt, "status")),
        ("Kind", text(interrupt, "kind")),
        ("Agent", path.join(" / ")),
        ("Thread", text(interrupt, "thread_id")),
        ("Run", text(interrupt, "run_id")),
        ("Approvers", text(interrupt, "approvers")),
        ("Created", time(interrupt, "created_at")),
        ("Expires", time(interrupt, "expires_at")),
        ("Answer", text(interrupt, "resolution")),
    ]);
    for request in action_requests(interrupt) {
        page.push_str(&format!(
            "\nTool       {}\nDecisions  {}\nArguments\n{}\n",
            escape::line(&request.name),
            escape::line(&request.allowed.join(", ")),
            escape::json(&format!("{:#}", request.args)),
        ));
    }
    if !decisions::wants_decisions(interrupt) {
        page.push_str(&format!(
            "\nQuestion\n{}\n\nSchema of the answer\n{}\n",
            escape::text(&question(interrupt)),
            escape::json(&format!("{:#}", interrupt["response_schema"])),
        ));
    }
    page
}
