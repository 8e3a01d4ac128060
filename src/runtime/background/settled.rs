//! Questions of subagents on other servers that were settled there: answered, or dropped.
//!
//! While such a subagent waits for a human here, it is looked now and then whether its server still asks what is asked
//! here. If not, a run goes on with the subagent: the question counts as answered, by nobody here, in the transaction that
//! starts the run. What came of it is seen there by whoever does the subagent's work.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::followed;
use super::lookout::LOOK;
use crate::db::interrupts::{Asked, AskedStatus};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{Sight, TaskStatus};
use crate::domain::checkpoint::Lane;
use crate::domain::errand::RemoteErrand;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::settled_elsewhere;
use crate::domain::run::{Command, Multitask, Resume, RunRequest, RunStatus};
use crate::domain::time::Timestamp;
use crate::peer::is_asked;
use crate::runtime::admission::{self, Admitted, House, Occasion};
use crate::runtime::{AssistantRef, Runs, Target, Wish};

/// For how long one is taken up: longer than a look can take.
const CLAIM: Duration = Duration::from_secs(30);

impl Runs {
    /// Looks at those subagents on other servers that wait for a human here and are due. Returns when the next one is, if
    /// any waits.
    pub(super) async fn look_for_answers(&self) -> DbResult<Option<Timestamp>> {
        let next = self.0.db.read(|tx| Box::pin(db::errands::next_look(tx))).await?;
        let now = self.0.clock.now();
        if next.is_none_or(|next| next > now) {
            return Ok(next);
        }
        let until = now.plus(CLAIM);
        let slots = &self.0.waker.lookout.slots;
        let limit = i64::try_from(slots.available_permits()).unwrap_or(i64::MAX);
        if limit == 0 {
            // Who has looked rings when there is room.
            return Ok(Some(now.plus(LOOK)));
        }
        let claim = self
            .0
            .db
            .write(move |tx| Box::pin(db::errands::claim_waiting(tx, now, until, limit)));
        for errand in claim.await? {
            let permit = Arc::clone(slots).try_acquire_owned().ok();
            drop(self.0.shutdown.spawn(
                "question of another server",
                self.clone().look_for_answer(errand, permit),
            ));
        }
        Ok(Some(now))
    }

    async fn look_for_answer(self, errand: RemoteErrand, permit: Option<OwnedSemaphorePermit>) {
        let soft = self.0.shutdown.soft().clone();
        // Another server looks at it when the claim runs out.
        let Some(looked) = soft.run_until_cancelled(self.settle(&errand)).await else {
            return;
        };
        if let Err(error) = looked {
            tracing::warn!(run = %errand.run, %error, "could not note whether a question was answered at another server");
        }
        drop(permit);
        self.0.waker.lookout.ring();
    }

    /// Looks once whether the questions of a subagent are still asked where it works, and goes on with it if not.
    async fn settle(&self, errand: &RemoteErrand) -> DbResult<()> {
        let child = errand.run;
        let asked = self.0.db.read(move |tx| Box::pin(asked_by(tx, child))).await?;
        let Some(newest) = asked.iter().map(|asked| asked.created_at).max() else {
            return Ok(());
        };
        let is_settled = match self.place_of(errand).await {
            Ok((place, _)) => match timeout(CLAIM / 2, place.look()).await {
                Ok(Ok(seen)) => is_settled(&asked, seen.as_ref()),
                Ok(Err(error)) => out_of_reach(errand, &error.to_string()),
                Err(_) => out_of_reach(errand, "it took too long"),
            },
            Err(reason) => out_of_reach(errand, &reason),
        };
        if is_settled {
            self.go_on_with(asked, child).await?;
        }
        // The longer it was waited, the seldomer it is looked.
        let now = self.0.clock.now();
        let looks = self.0.registry.workshop.peers.looks();
        let pause = now.since(newest).clamp(looks.first, looks.longest);
        let look_at = now.plus(looks.spread(pause, child.0));
        self.0
            .db
            .write(move |tx| Box::pin(db::errands::look_later(tx, child, look_at)))
            .await
    }

    /// Starts the run that goes on with a subagent whose questions were settled, unless somebody was quicker.
    async fn go_on_with(&self, asked: Vec<Asked>, child: RunId) -> DbResult<()> {
        let started = self.seen_through(move |runs| async move {
            let house = runs.0.house();
            let (permit, occasion) = runs.occasion();
            let write = runs
                .0
                .db
                .write(move |tx| Box::pin(async move { start(tx, (&asked, child), (&house, occasion)).await }));
            if let Some(admitted) = write.await? {
                tracing::info!(run = %admitted.run.id, %child, "a question was settled at another server");
                drop(runs.take_up(admitted, permit));
                runs.0.bell.notify_one();
            }
            Ok(())
        });
        started.await
    }
}

/// The open questions of a subagent.
async fn asked_by(tx: &mut Tx<'_>, child: RunId) -> DbResult<Vec<Asked>> {
    let Some(run) = db::runs::get_by_id(tx, child).await? else {
        return Ok(vec![]);
    };
    let mut open = db::interrupts::of_thread(tx, run.thread, Some(AskedStatus::Pending)).await?;
    open.retain(|asked| asked.lane == Lane::Child(child));
    Ok(open)
}

/// Whether what is asked here is not asked there any more.
fn is_settled(asked: &[Asked], seen: Option<&Sight>) -> bool {
    let Some(seen) = seen.filter(|seen| seen.status == TaskStatus::Waiting) else {
        return true;
    };
    let is_open = |asked: &Asked| {
        let question = &asked.interrupt.question;
        seen.interrupts
            .iter()
            .any(|there| is_asked(there["id"].as_str(), question))
    };
    !asked.iter().all(is_open)
}

fn out_of_reach(errand: &RemoteErrand, reason: &str) -> bool {
    tracing::debug!(run = %errand.run, agent = %errand.agent, reason, "a server that asks was not to be seen");
    false
}

/// Starts a run that goes on with what was settled. None if it was answered here meanwhile, something is at work on the
/// thread, or no run could be started: then it is looked again.
async fn start(
    tx: &mut Tx<'_>,
    (asked, child): (&[Asked], RunId),
    (house, occasion): (&House, Occasion),
) -> DbResult<Option<Admitted>> {
    let Some(thread) = asked.first().map(|asked| asked.thread) else {
        return Ok(None);
    };
    db::threads::lock(tx, thread).await?;
    let ids = |all: &[Asked]| all.iter().map(|asked| asked.interrupt.id.clone()).collect::<Vec<_>>();
    let newest = db::runs::newest(tx, thread).await?;
    let Some(newest) = newest.filter(|run| run.status == RunStatus::Success) else {
        return Ok(None);
    };
    if ids(&asked_by(tx, child).await?) != ids(asked) {
        return Ok(None);
    }
    let wish = wish(thread, AssistantRef::Id(newest.assistant), asked, child);
    match admission::start(tx, &wish, house, occasion).await? {
        Ok(admitted) => {
            let answer = settled_elsewhere();
            let run = &admitted.run;
            for asked in asked {
                db::interrupts::resolve(tx, thread, &asked.interrupt.id, &answer, run.id, run.created_at).await?;
            }
            Ok(Some(admitted))
        }
        Err(refusal) => {
            tracing::warn!(%thread, %refusal, "no run could be started after a question was settled elsewhere");
            Ok(None)
        }
    }
}

fn wish(thread: ThreadId, assistant: AssistantRef, asked: &[Asked], child: RunId) -> Wish {
    let answers: Resume = asked
        .iter()
        .map(|asked| (asked.interrupt.id.clone(), settled_elsewhere()))
        .collect();
    let command = Command {
        resume: Some(answers),
        ..Command::default()
    };
    let request = RunRequest {
        command: Some(command),
        multitask: Multitask::Reject,
        ..followed()
    };
    let metadata = Map::from_iter([("settled_elsewhere".to_owned(), json!([child]))]);
    Wish {
        target: Target::Thread(thread),
        assistant,
        request,
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}
