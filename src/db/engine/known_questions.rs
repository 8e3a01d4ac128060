//! The questions of interrupts that a transaction has read.

use std::collections::HashMap;
use std::sync::Arc;

use crate::domain::id::{InterruptId, ThreadId};
use crate::domain::interrupt::{Interrupt, Question};

/// The questions of the interrupts that a transaction has read as rows, so that they are not read and decoded again for the
/// positions of their agents.
#[derive(Default)]
pub(in crate::db) struct KnownQuestions(HashMap<(ThreadId, InterruptId), Arc<Question>>);

impl KnownQuestions {
    /// Keeps the question of a row until the end of the transaction.
    pub(in crate::db) fn keep(&mut self, thread: ThreadId, interrupt: &Interrupt) {
        let question = Arc::clone(&interrupt.question);
        self.0.insert((thread, interrupt.id.clone()), question);
    }

    /// Returns the question of an interrupt, if its row was read.
    pub(in crate::db) fn get(&self, thread: ThreadId, id: &InterruptId) -> Option<Arc<Question>> {
        self.0.get(&(thread, id.clone())).cloned()
    }
}
