//! `adjutant approvals`: decisions that hold for the rest of a thread.

use serde_json::Value;

use super::{find, text, time};
use crate::client::api::ApiClient;
use crate::client::error::ClientResult;
use crate::client::escape;
use crate::client::output::{self, fields, print_list};
use crate::client::table::Table;
use crate::config::client::ApprovalsCommand;
use crate::domain::text_limits::first_chars;

/// The number of characters that are shown of the condition of a decision.
const MAX_CONDITION_CHARS: usize = 400;

/// Executes a command.
pub(in crate::client) async fn run(api: &ApiClient, command: &ApprovalsCommand) -> ClientResult<()> {
    match command {
        ApprovalsCommand::List { thread, output, .. } => {
            let thread = find::thread(api, thread).await?;
            let found = find::approvals(api, &thread).await?;
            print_list(output.format(), &found, || table(&found))
        }
        ApprovalsCommand::Revoke { thread, approval, .. } => {
            let thread = find::thread(api, thread).await?;
            let revoked = revoke(api, &thread, approval).await?;
            output::print(&format!("{revoked}\n"))?;
            Ok(())
        }
    }
}

/// Revokes the decision of a thread that a person means, and returns a line about it.
pub(in crate::client) async fn revoke(api: &ApiClient, thread: &str, given: &str) -> ClientResult<String> {
    let id = find::approval(api, thread, given).await?;
    api.delete(&["threads", thread, "approvals", &id]).await?;
    Ok(format!("The decision {} is revoked.", escape::line(&id)))
}

fn table(approvals: &[Value]) -> Table {
    let mut table = Table::new(&["APPROVAL", "DECISION", "TOOL", "ARGUMENTS", "AGENT", "BY", "CREATED"]);
    for approval in approvals {
        table.add(vec![
            text(approval, "id"),
            text(approval, "decision"),
            text(approval, "tool"),
            arguments(approval),
            agent(approval),
            text(approval, "decided_by"),
            time(approval, "created_at"),
        ]);
    }
    table
}

/// Returns the decisions one below the other. Unlike in a table, no id is cut.
pub(in crate::client) fn page(approvals: &[Value]) -> String {
    let of_one = |approval: &Value| {
        fields(&[
            ("Approval", text(approval, "id")),
            ("Decision", text(approval, "decision")),
            ("Tool", text(approval, "tool")),
            ("Arguments", arguments(approval)),
            ("Agent", agent(approval)),
            ("By", text(approval, "decided_by")),
            ("Created", time(approval, "created_at")),
            ("Reason", text(approval, "message")),
        ])
    };
    approvals.iter().map(of_one).collect::<Vec<_>>().join("\n")
}

/// Returns the condition on the arguments of the calls that a decision covers, cut if it is long.
fn arguments(approval: &Value) -> String {
    match text(approval, "for") {
        all if all.is_empty() => "any".to_owned(),
        condition => first_chars(&condition, MAX_CONDITION_CHARS).to_owned(),
    }
}

fn agent(approval: &Value) -> String {
    let path = approval["agent_path"].as_array().into_iter().flatten();
    path.filter_map(Value::as_str).collect::<Vec<_>>().join(" / ")
}
