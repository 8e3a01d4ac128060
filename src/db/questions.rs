//! The questions of agents, each of which is stored once: in the row of its interrupt. Positions and events are stored with
//! their interrupts, but without the questions. These are put back when a position is read to continue from it, and when events
//! are read. Histories show the interrupts of their checkpoints from the rows.
//!
//! A server of the former release reads only positions and events with their questions, so they are stored with them until an
//! [`upgrade`](super::engine::upgrade) is finished. Such texts are read at any time. A question that was read together with its position
//! stays there until the step ends.
//!
//! No interrupt gets another question later, since no id is used twice: see
//! [`Position::questions`](crate::domain::machine::Position). So an old position or event shows the question that was asked.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::{DbResult, Tx, interrupts};
use crate::domain::event::Fact;
use crate::domain::id::ThreadId;
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::Position;

/// Returns a position as it is stored.
pub(super) fn stored_position<'p>(tx: &Tx<'_>, position: &'p Position) -> Cow<'p, Position> {
    if !tx.stores_questions_once() || position.asked.iter().all(|asked| asked.is_inline) {
        return Cow::Borrowed(position);
    }
    Cow::Owned(Position {
        asked: without_questions(&position.asked),
        ..position.clone()
    })
}

/// Returns an event as it is stored.
pub(super) fn stored_fact<'f>(tx: &Tx<'_>, fact: &'f Fact) -> Cow<'f, Fact> {
    let Fact::Asked {
        head,
        carried_from,
        interrupts,
    } = fact
    else {
        return Cow::Borrowed(fact);
    };
    if !tx.stores_questions_once() {
        return Cow::Borrowed(fact);
    }
    Cow::Owned(Fact::Asked {
        head: *head,
        carried_from: *carried_from,
        interrupts: without_questions(interrupts),
    })
}

fn without_questions(interrupts: &[Interrupt]) -> Vec<Interrupt> {
    let stored = |asked: &Interrupt| match asked.is_inline {
        true => asked.clone(),
        false => asked.without_question(),
    };
    interrupts.iter().map(stored).collect()
}

/// Puts the questions of a position back that was read from the database. An answer whose question cannot be read has no effect: the
/// agent asks again.
///
/// # Errors
/// As [`put_back`].
pub(super) async fn put_back_at(tx: &mut Tx<'_>, thread: ThreadId, position: &mut Position) -> DbResult<()> {
    for asked in &mut position.asked {
        asked.is_inline = !asked.lacks_question();
    }
    put_back(tx, thread, position.asked.iter_mut().collect()).await?;
    for lost in position.remove_lost_answers() {
        tracing::warn!(%thread, interrupt = %lost, "an answer has no effect: its question cannot be read");
    }
    Ok(())
}

/// Puts the questions of interrupts of a thread back. An interrupt whose row is not there, or cannot be read, stays without its
/// question: nobody can answer it either.
///
/// # Errors
/// [`DbError::Sealed`](super::DbError::Sealed) when this server does not have the key of a question, and errors of the database.
pub(super) async fn put_back(tx: &mut Tx<'_>, thread: ThreadId, mut lacking: Vec<&mut Interrupt>) -> DbResult<()> {
    lacking.retain(|asked| asked.lacks_question());
    let mut unknown = BTreeSet::new();
    for asked in &mut lacking {
        if let Some(question) = tx.questions.get(thread, &asked.id) {
            asked.question = question;
        } else {
            unknown.insert(asked.id.clone());
        }
    }
    if unknown.is_empty() {
        return Ok(());
    }
    // They are not kept: a long log has many. In a box, since most positions have none, and every reader would be larger.
    let found = Box::pin(interrupts::questions(tx, thread, unknown)).await?;
    for asked in lacking {
        if let Some(question) = found.get(&asked.id) {
            asked.question = Arc::clone(question);
        }
    }
    Ok(())
}
