//! The assignment of answers to interrupts.

use serde_json::{Map, Value, json};

use super::approvers::check_answers;
use super::branches::{LaterOpen, OpenAt, OpenInterrupts, open_at, place_of};
use super::remember;
use crate::db::interrupts::{InterruptRecord, InterruptState};
use crate::db::{self, Tx};
use crate::domain::Invalid;
use crate::domain::id::{CheckpointId, InterruptId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::interrupt::is_id;
use crate::domain::run::{Resume, Run};
use crate::runtime::error::StartError;
use crate::runtime::new_run::ANSWERS;

/// The reason for which an answer by the id of no open interrupt is refused.
pub(in crate::runtime) const NOT_OPEN: &str = "is not the id of a question that waits for an answer";

/// The answer of a resolution, by the interrupts that it answers.
#[derive(Default)]
pub(super) struct MatchedAnswer {
    /// The answers; none if the resolution has none.
    pub(super) answers: Option<Resume>,
    /// The open interrupts, among which are those that a client has answered.
    pub(super) open: Vec<InterruptRecord>,
    /// The checkpoint at which the interrupts wait that a client has answered.
    pub(super) place: Option<CheckpointId>,
}

impl MatchedAnswer {
    /// Returns answers that the server gives.
    pub(super) fn of_server(answers: Resume) -> Self {
        Self {
            answers: Some(answers),
            ..Self::default()
        }
    }
}

/// Assigns the answer of a client to the open interrupts at the checkpoint that its run names, or at the newest one, and
/// checks it. An answer by ids that are not open there goes to the branch on which they are. `open` are the open interrupts, if
/// they were read already.
///
/// # Errors
/// Returns the refusal of an answer that does not fit, or is not the caller's to give.
pub(super) async fn match_answer(
    tx: &mut Tx<'_>,
    run: &Run,
    answer: &Value,
    caller: &Identity,
    open: Option<OpenInterrupts>,
) -> Result<MatchedAnswer, StartError> {
    let thread = run.thread;
    let mut branch = run.request.checkpoint;
    let open = match open {
        Some(open) => open,
        None => LaterOpen::begin(tx, thread).await?.read(tx).await?,
    };
    let OpenAt { mut open, newest } = open.at(tx, branch).await?;
    if branch.is_none()
        && let Some(id) = id_elsewhere(&open, answer)
        && let Some(record) = db::interrupts::find(tx, thread, &id).await?
        && record.status == InterruptState::Pending
        && let Some(place) = place_of(tx, &record).await?
    {
        branch = Some(place);
        open = open_at(tx, thread, branch).await?;
    }
    check_in_time(tx, thread, &open, answer).await?;
    let answers = assign(&open, answer)?;
    check_answers(caller, answers.iter().map(|given| given.record))?;
    let mut checked = Resume::default();
    for given in answers {
        let record = given.record;
        let question = &record.interrupt.question;
        let answer = question.normalised(given.answer.clone());
        let result = question.check(&answer).and_then(|()| remember::check(record, &answer));
        result.map_err(|refusal| given.refused(refusal))?;
        checked.insert(record.interrupt.id.clone(), answer);
    }
    Ok(MatchedAnswer {
        answers: Some(checked),
        open,
        place: branch.or(newest),
    })
}

/// Returns the first id in an answer by ids of which none is open.
fn id_elsewhere(open: &[InterruptRecord], answer: &Value) -> Option<InterruptId> {
    let by_id = answers_by_id(answer)?;
    let is_open = |id: &String| open.iter().any(|record| record.interrupt.id.0 == *id);
    let first = by_id.keys().next()?;
    (!by_id.keys().any(is_open)).then(|| InterruptId(first.clone()))
}

/// Returns the answers by interrupt id, if the answer has that form.
fn answers_by_id(answer: &Value) -> Option<&Map<String, Value>> {
    answer
        .as_object()
        .filter(|map| !map.is_empty() && map.keys().all(|key| is_id(key)))
}

/// Refuses answers to interrupts of a thread that are not open any more.
async fn check_in_time(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    open: &[InterruptRecord],
    answer: &Value,
) -> Result<(), StartError> {
    let mut named: Vec<InterruptId> = answers_by_id(answer)
        .into_iter()
        .flat_map(Map::keys)
        .map(|id| InterruptId(id.clone()))
        .collect();
    named.retain(|id| open.iter().all(|record| record.interrupt.id != *id));
    for id in named {
        let found = db::interrupts::find(tx, thread, &id).await?;
        if let Some(record) = found.filter(|record| record.status != InterruptState::Pending) {
            return Err(StartError::StaleInterrupt(id, record.status.word()));
        }
    }
    Ok(())
}

/// An answer to an open interrupt.
struct GivenAnswer<'a> {
    record: &'a InterruptRecord,
    answer: Value,
    /// The field of the request in which it was given.
    field: String,
    /// The position of its first decision, if the field has a list of decisions in place of the answer.
    first: Option<usize>,
}

impl<'a> GivenAnswer<'a> {
    /// The answer that is in this field as it is.
    fn whole(record: &'a InterruptRecord, answer: Value, field: String) -> Self {
        Self {
            record,
            answer,
            field,
            first: None,
        }
    }

    /// The answer of decisions that are in the list in this field, from a position on.
    fn listed(record: &'a InterruptRecord, decisions: &[Value], field: String, first: usize) -> Self {
        Self {
            record,
            answer: json!({"decisions": decisions}),
            field,
            first: Some(first),
        }
    }

    /// Returns a refusal of the answer with the field as it was given.
    fn refused(&self, refusal: Invalid) -> Invalid {
        let question = &self.record.interrupt.question;
        let Some(first) = self.first else {
            return question.refusal_in(&self.field, &self.answer, refusal);
        };
        let refusal = question.refusal_in("", &self.answer, refusal);
        let place = refusal.field.strip_prefix(".decisions").unwrap_or_default();
        let field = format!("{}{}", self.field, place_in_list(place, first));
        Invalid::new(field, refusal.reason)
    }
}

/// Returns the place in a list (`[3].type`) for a place among those of its decisions that begin at `first` (`[1].type`, or
/// `.1.type`); an empty one for all of them.
fn place_in_list(place: &str, first: usize) -> String {
    let place = place.trim_start_matches(['[', '.']);
    let end = place.find(|c: char| !c.is_ascii_digit()).unwrap_or(place.len());
    let (at, rest) = place.split_at(end);
    match at.parse::<usize>() {
        Ok(at) => format!("[{}]{}", first + at, rest.trim_start_matches(']')),
        Err(_) => String::new(),
    }
}

/// Assigns the answers to the open interrupts.
fn assign<'a>(open: &'a [InterruptRecord], answer: &Value) -> Result<Vec<GivenAnswer<'a>>, StartError> {
    let ids = || {
        open.iter()
            .map(|record| record.interrupt.id.clone())
            .collect::<Vec<_>>()
    };
    if let Some(by_id) = answers_by_id(answer) {
        let find = |(id, answer): (&String, &Value)| {
            let field = format!("{ANSWERS}.{id}");
            let record = open.iter().find(|record| record.interrupt.id.0 == *id);
            let record = record.ok_or_else(|| Invalid::new(field.clone(), NOT_OPEN))?;
            Ok(GivenAnswer::whole(record, answer.clone(), field))
        };
        return by_id.iter().map(find).collect();
    }
    match (open, answer) {
        ([], _) => Err(StartError::NoOpenInterrupt),
        (open, Value::Array(list)) if open.iter().all(|record| record.interrupt.question.wants_decisions()) => {
            in_order(open, list)
        }
        ([only], _) => Ok(vec![GivenAnswer::whole(only, answer.clone(), ANSWERS.to_owned())]),
        _ => Err(StartError::AmbiguousAnswer(ids())),
    }
}

/// Assigns a list: one answer for each interrupt, or one decision for each tool call in question.
fn in_order<'a>(open: &'a [InterruptRecord], list: &[Value]) -> Result<Vec<GivenAnswer<'a>>, StartError> {
    let are_decisions = list.iter().all(|one| one.get("type").is_some());
    let calls: usize = open.iter().map(|record| record.interrupt.question.calls.len()).sum();
    if are_decisions && list.len() == calls {
        let mut first = 0;
        let mut take = |record: &'a InterruptRecord| {
            let end = first + record.interrupt.question.calls.len();
            let own = GivenAnswer::listed(record, &list[first..end], ANSWERS.to_owned(), first);
            first = end;
            own
        };
        return Ok(open.iter().map(&mut take).collect());
    }
    if !are_decisions && list.len() == open.len() {
        let answer = |(at, (record, one)): (usize, (&'a InterruptRecord, &Value))| {
            let field = format!("{ANSWERS}[{at}]");
            match one.as_array() {
                Some(decisions) => GivenAnswer::listed(record, decisions, field, 0),
                None => GivenAnswer::whole(record, one.clone(), field),
            }
        };
        return Ok(open.iter().zip(list).enumerate().map(answer).collect());
    }
    let wanted = format!(
        "must be a list of {calls} decisions, one for each call, or of {} answers, one for each question; it has {} entries",
        open.len(),
        list.len()
    );
    Err(Invalid::new(ANSWERS, wanted).into())
}
