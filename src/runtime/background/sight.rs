//! How a task on this server stands: what the newest run on its thread came to.

use serde_json::{Value, json};

use super::status_of;
use crate::db::interrupts::{self, Asked, AskedStatus};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{Sight, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::id::ThreadId;
use crate::domain::message::Content;
use crate::domain::run::Run;
use crate::domain::state::State;

/// How a task on this server stands, without what came of it.
#[derive(Debug)]
pub struct Standing {
    /// The newest run on its thread; none if that is gone.
    pub run: Option<Run>,
    /// How it stands.
    pub status: TaskStatus,
    /// The questions that it waits for.
    pub asked: Vec<Asked>,
}

/// How the task on this thread stands, without what came of it.
///
/// # Errors
/// When the database fails.
pub async fn standing(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Standing> {
    let Some(run) = db::runs::list(tx, thread, None, 1, 0).await?.pop() else {
        return Ok(Standing { run: None, status: TaskStatus::Error, asked: vec![] });
    };
    let (mut status, mut asked) = (status_of(run.status), vec![]);
    if status == TaskStatus::Success {
        asked = interrupts::of_thread(tx, thread, Some(AskedStatus::Pending)).await?;
        if !asked.is_empty() {
            status = TaskStatus::Waiting;
        }
    }
    Ok(Standing { run: Some(run), status, asked })
}

/// How the task on this thread stands.
pub(super) async fn look(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Sight> {
    let Standing { run, status, asked } = standing(tx, thread).await?;
    let Some(run) = run else {
        let error = "The thread of the task, or its work there, was deleted.".to_owned();
        return Ok(Sight { error: Some(error), ..Sight::of("", status) });
    };
    let seen = Sight::of(run.id.to_string(), status);
    match status {
        TaskStatus::Success => {
            let (machine, _) = db::checkpoints::machine(tx, thread, Lane::Main).await?;
            Ok(Sight { result: machine.state.conclusion(), media: media(&machine.state), ..seen })
        }
        TaskStatus::Waiting => {
            let one = |asked: &Asked| json!({"id": asked.interrupt.id, "value": asked.interrupt.question.value});
            Ok(Sight { interrupts: asked.iter().map(one).collect(), ..seen })
        }
        TaskStatus::Error | TaskStatus::Timeout => {
            let error = run.error.map(|failure| format!("{}: {}", failure.class, failure.message));
            Ok(Sight { error, ..seen })
        }
        TaskStatus::Running | TaskStatus::Pending | TaskStatus::Cancelled => Ok(seen),
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
