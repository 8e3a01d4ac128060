//! Answers to open questions: which question, whether the answer is valid, and the way down to whoever asked.

use serde_json::{Value, json};

use super::StartError;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{RunId, ThreadId};
use crate::domain::interrupt::is_id;
use crate::domain::machine::Machine;
use crate::domain::run::{Resume, Run};

/// The open questions of a thread, in the order in which they were asked.
pub(super) async fn pending(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Vec<InterruptRecord>> {
    db::interrupts::of_thread(tx, thread, Some(InterruptState::Pending)).await
}

/// Marks the open questions of the thread as answered by `run`: `answer` is one answer to the only one, a map by id, or a
/// list in the order in which they were asked. Whoever asked hears of it when the run begins.
pub(super) async fn answer(tx: &mut Tx<'_>, run: &Run, answer: &Value) -> Result<Resume, StartError> {
    let open = pending(tx, run.thread).await?;
    let answers = assign(&open, answer)?;
    for (asked, answer) in &answers {
        asked.interrupt.question.check(answer)?;
        db::interrupts::resolve(tx, run.thread, &asked.interrupt.id, answer, run.id, run.created_at).await?;
    }
    Ok(answers
        .into_iter()
        .map(|(asked, answer)| (asked.interrupt.id.clone(), answer))
        .collect())
}

/// Which answer is for which question.
fn assign<'a>(open: &'a [InterruptRecord], answer: &Value) -> Result<Vec<(&'a InterruptRecord, Value)>, StartError> {
    let ids = || open.iter().map(|asked| asked.interrupt.id.clone()).collect::<Vec<_>>();
    if let Some(by_id) = answer
        .as_object()
        .filter(|map| !map.is_empty() && map.keys().all(|key| is_id(key)))
    {
        let find = |(id, answer): (&String, &Value)| {
            let asked = open.iter().find(|asked| asked.interrupt.id.0 == *id);
            let asked = asked.ok_or_else(|| {
                Invalid::new(
                    format!("command.resume.{id}"),
                    "is not the id of a question that waits for an answer",
                )
            })?;
            Ok((asked, answer.clone()))
        };
        return by_id.iter().map(find).collect();
    }
    match (open, answer) {
        ([], _) => Err(StartError::NoOpenInterrupt),
        (open, Value::Array(list)) if open.iter().all(|asked| asked.interrupt.question.wants_decisions()) => {
            in_order(open, list)
        }
        ([only], _) => Ok(vec![(only, answer.clone())]),
        _ => Err(StartError::AmbiguousAnswer(ids())),
    }
}

/// The answers of a list: one for each question, or one decision for each call that is asked about.
fn in_order<'a>(open: &'a [InterruptRecord], list: &[Value]) -> Result<Vec<(&'a InterruptRecord, Value)>, StartError> {
    let are_decisions = list.iter().all(|one| one.get("type").is_some());
    let calls: usize = open.iter().map(|asked| asked.interrupt.question.calls.len()).sum();
    if are_decisions && list.len() == calls {
        let mut rest = list;
        let mut take = |asked: &'a InterruptRecord| {
            let (own, after) = rest.split_at(asked.interrupt.question.calls.len());
            rest = after;
            (asked, json!({"decisions": own}))
        };
        return Ok(open.iter().map(&mut take).collect());
    }
    if !are_decisions && list.len() == open.len() {
        let answer = |one: &Value| {
            if one.is_array() {
                json!({"decisions": one})
            } else {
                one.clone()
            }
        };
        return Ok(open.iter().zip(list.iter().map(answer)).collect());
    }
    let wanted = format!(
        "must be a list of {calls} decisions, one for each call, or of {} answers, one for each question; it has {} entries",
        open.len(),
        list.len()
    );
    Err(Invalid::new("command.resume", wanted).into())
}

/// Takes the answers of `run` to whoever asked, and clears the way from the main agent to there. Doing it again after a
/// crash changes nothing, and an answer goes to the question that it was given to, not to one asked anew since.
pub(super) async fn deliver(tx: &mut Tx<'_>, thread: ThreadId, run: RunId, answers: &Resume) -> DbResult<()> {
    for (id, answer) in answers {
        let asked = db::interrupts::find(tx, thread, id).await?;
        let Some(asked) = asked.filter(|asked| asked.resumed_by == Some(run)) else {
            continue;
        };
        let mut machine = position(tx, thread, asked.lane).await?;
        if !machine.resolve(id, answer.clone()) {
            continue;
        }
        store(tx, thread, &machine, run).await?;
        clear_way(tx, thread, asked.lane, run).await?;
    }
    Ok(())
}

/// Lets everybody above `lane` who waits for it go on with it.
pub(super) async fn clear_way(tx: &mut Tx<'_>, thread: ThreadId, mut lane: Lane, by: RunId) -> DbResult<()> {
    while let Lane::Child(child) = lane {
        lane = parent_lane(tx, child).await?;
        unpark(tx, thread, (lane, child), by).await?;
    }
    Ok(())
}

/// Lets the agent of `lane` go on with `child`.
pub(super) async fn unpark(tx: &mut Tx<'_>, thread: ThreadId, (lane, child): (Lane, RunId), by: RunId) -> DbResult<()> {
    let mut machine = position(tx, thread, lane).await?;
    machine.unpark(child);
    store(tx, thread, &machine, by).await
}

/// The lane of the agent that delegated to `child`.
pub(super) async fn parent_lane(tx: &mut Tx<'_>, child: RunId) -> DbResult<Lane> {
    let run = db::runs::get_by_id(tx, child).await?;
    Ok(match run.map(|run| run.lineage) {
        Some(lineage) if lineage.depth > 1 => lineage.parent.map_or(Lane::Main, Lane::Child),
        Some(_) | None => Lane::Main,
    })
}

/// Where a lane stands, without its state.
pub(super) async fn position(tx: &mut Tx<'_>, thread: ThreadId, lane: Lane) -> DbResult<Machine> {
    let head = db::checkpoints::head(tx, thread, lane).await?;
    Ok(head.map_or_else(Machine::default, |head| Machine {
        head: Some(head.id),
        step: Some(head.step),
        position: head.position,
        ..Machine::default()
    }))
}

async fn store(tx: &mut Tx<'_>, thread: ThreadId, machine: &Machine, by: RunId) -> DbResult<()> {
    if let Some(head) = machine.head {
        db::checkpoints::set_position(tx, thread, head, &machine.position, by).await?;
    }
    Ok(())
}
