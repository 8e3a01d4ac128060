//! Questions of subagents on other servers that were settled there: answered, or dropped.
//!
//! While such a subagent waits for a human here, it is looked now and then whether its server still asks what is asked
//! here. If not, a run goes on with the subagent: the question counts as answered, by nobody here, in the transaction that
//! starts the run. What came of it is seen there by whoever does the subagent's work.

use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Map, json};
use tokio::time::timeout;

use super::{JobHandler, JobLimits, JobOutcome};
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::background::{TaskSnapshot, TaskStatus};
use crate::domain::backoff::spread;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::answered_remotely;
use crate::domain::job::ClaimedJob;
use crate::domain::remote_run::RemoteRun;
use crate::domain::run::{Command, Multitask, Resume, RunRequest, RunStatus};
use crate::peer::is_asked;
use crate::runtime::admission::{self, AdmissionContext, AdmissionDeps, Admitted};
use crate::runtime::background::followed;
use crate::runtime::{AssistantRef, NewRun, Runs, Target};

/// How much work is scheduled in one transaction.
const AT_ONCE: i64 = 64;
/// For how long it is claimed: longer than a look can take.
const LEASE: Duration = Duration::from_secs(30);

pub(super) struct WatchInterruptHandler;

#[async_trait]
impl JobHandler for WatchInterruptHandler {
    fn limits(&self) -> JobLimits {
        JobLimits { at_once: 32, batch: 1 }
    }

    fn lease(&self, _: &Runs) -> Duration {
        LEASE
    }

    async fn discover(&self, runs: &Runs) -> DbResult<()> {
        let read = runs.0.db.read(|tx| Box::pin(db::remote_runs::any_unwatched(tx)));
        if !read.await? {
            return Ok(());
        }
        let now = runs.0.clock.now();
        let write = runs
            .0
            .db
            .write(move |tx| Box::pin(db::remote_runs::schedule_watching(tx, now, AT_ONCE)));
        write.await
    }

    async fn run(&self, runs: &Runs, job: &ClaimedJob) -> DbResult<JobOutcome> {
        let soft = runs.0.shutdown.soft().clone();
        // Another server looks at it when this one is gone.
        let looked = soft.run_until_cancelled(runs.look_for_answer(RunId(job.key))).await;
        looked.unwrap_or(Ok(JobOutcome::Settled))
    }
}

impl Runs {
    /// Looks once whether the questions of a subagent are still asked where it works, and goes on with it if not.
    async fn look_for_answer(&self, child: RunId) -> DbResult<JobOutcome> {
        let read = self.0.db.read(move |tx| {
            Box::pin(async move {
                let work = match db::remote_runs::waits(tx, child).await? {
                    true => db::remote_runs::find(tx, child).await?,
                    false => None,
                };
                Ok((work, asked_by(tx, child).await?))
            })
        });
        let (work, asked) = read.await?;
        let newest = asked.iter().map(|asked| asked.created_at).max();
        // When it waits again it is scheduled anew.
        let (Some(work), Some(newest)) = (work, newest) else {
            return Ok(JobOutcome::Done);
        };
        let is_settled = match self.place_of(&work).await {
            Ok((place, _)) => match timeout(LEASE / 2, place.snapshot()).await {
                Ok(Ok(seen)) => is_settled(&asked, seen.as_ref()),
                Ok(Err(error)) => out_of_reach(&work, &error.to_string()),
                Err(_) => out_of_reach(&work, "it took too long"),
            },
            Err(reason) => out_of_reach(&work, &reason),
        };
        if is_settled {
            self.go_on_with(asked, child).await?;
        }
        // The longer it was waited, the seldomer it is looked.
        let now = self.0.clock.now();
        let looks = self.0.registry.workshop.peers.poll_policy();
        let pause = now.since(newest).clamp(looks.first, looks.longest);
        Ok(JobOutcome::Again(now.plus(spread(pause, child.0))))
    }

    /// Starts the run that goes on with a subagent whose questions were settled, unless somebody was quicker.
    async fn go_on_with(&self, asked: Vec<InterruptRecord>, child: RunId) -> DbResult<()> {
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
async fn asked_by(tx: &mut Tx<'_>, child: RunId) -> DbResult<Vec<InterruptRecord>> {
    let Some(run) = db::runs::get_by_id(tx, child).await? else {
        return Ok(vec![]);
    };
    let mut open = db::interrupts::of_thread(tx, run.thread, Some(InterruptState::Pending)).await?;
    open.retain(|asked| asked.lane == Lane::Child(child));
    Ok(open)
}

/// Whether what is asked here is not asked there any more.
fn is_settled(asked: &[InterruptRecord], seen: Option<&TaskSnapshot>) -> bool {
    let Some(seen) = seen.filter(|seen| seen.status == TaskStatus::Waiting) else {
        return true;
    };
    let is_open = |asked: &InterruptRecord| {
        let question = &asked.interrupt.question;
        seen.interrupts
            .iter()
            .any(|there| is_asked(there["id"].as_str(), question))
    };
    !asked.iter().all(is_open)
}

fn out_of_reach(work: &RemoteRun, reason: &str) -> bool {
    tracing::debug!(run = %work.run, agent = %work.agent, reason, "a server that asks was not to be seen");
    false
}

/// Starts a run that goes on with what was settled. None if it was answered here meanwhile, something is at work on the
/// thread, or no run could be started: then it is looked again.
async fn start(
    tx: &mut Tx<'_>,
    (asked, child): (&[InterruptRecord], RunId),
    (house, occasion): (&AdmissionDeps, AdmissionContext),
) -> DbResult<Option<Admitted>> {
    let Some(thread) = asked.first().map(|asked| asked.thread) else {
        return Ok(None);
    };
    db::threads::lock(tx, thread).await?;
    let ids = |all: &[InterruptRecord]| all.iter().map(|asked| asked.interrupt.id.clone()).collect::<Vec<_>>();
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
            let answer = answered_remotely();
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

fn wish(thread: ThreadId, assistant: AssistantRef, asked: &[InterruptRecord], child: RunId) -> NewRun {
    let answers: Resume = asked
        .iter()
        .map(|asked| (asked.interrupt.id.clone(), answered_remotely()))
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
    NewRun {
        target: Target::Thread(thread),
        assistant,
        request,
        resume: None,
        metadata,
        after: Duration::ZERO,
    }
}
