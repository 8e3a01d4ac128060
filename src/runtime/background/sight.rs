//! How a task on this server stands: what the newest run on its thread came to.

use serde_json::{Value, json};

use super::status_of;
use crate::db::interrupts::{self, AskedStatus};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{Sight, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::message::Content;
use crate::domain::state::State;

/// How the task on this thread stands.
pub(super) async fn look(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Sight> {
    let Some(run) = db::runs::list(tx, thread, None, 1, 0).await?.pop() else {
        let error = "The thread of the task, or its work there, was deleted.".to_owned();
        return Ok(Sight { error: Some(error), ..Sight::of("", TaskStatus::Error) });
    };
    let seen = Sight::of(run.id.to_string(), status_of(run.status));
    match seen.status {
        TaskStatus::Success => {
            let asked = interrupts::of_thread(tx, thread, Some(AskedStatus::Pending)).await?;
            if !asked.is_empty() {
                let one = |asked: &interrupts::Asked| json!({"id": asked.interrupt.id, "value": asked.interrupt.question.value});
                let interrupts = asked.iter().map(one).collect();
                return Ok(Sight { status: TaskStatus::Waiting, interrupts, ..seen });
            }
            let (machine, _) = db::checkpoints::machine(tx, thread, Lane::Main).await?;
            Ok(Sight { result: machine.state.conclusion(), media: media(&machine.state), ..seen })
        }
        TaskStatus::Error | TaskStatus::Timeout => {
            let error = run.error.map(|failure| format!("{}: {}", failure.class, failure.message));
            Ok(Sight { error, ..seen })
        }
        TaskStatus::Running | TaskStatus::Pending | TaskStatus::Waiting | TaskStatus::Cancelled => Ok(seen),
    }
}

/// What the agent said last that is no text.
fn media(state: &State) -> Vec<Value> {
    let is_media = |block: &&Value| {
        let kind = block.get("type").and_then(Value::as_str);
        matches!(kind, Some("image" | "image_url" | "audio" | "input_audio" | "video" | "file"))
    };
    match state.last_ai().map(|message| &message.content) {
        Some(Content::Blocks(blocks)) => blocks.iter().filter(is_media).cloned().collect(),
        Some(Content::Text(_)) | None => vec![],
    }
}
