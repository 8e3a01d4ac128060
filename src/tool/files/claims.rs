//! The claims on files of the state by calls that run at the same time.
//!
//! The calls of one step start from the same files, and so do the subagents that they delegate to, at every depth.
//! Their writes are merged when the step ends. Where two of them change one file, a change would be lost: the first
//! claims the file until the step ends, and the second is refused.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::id::TaskId;
use crate::domain::path::below;

/// The calls that have changed a file in one step, by path, with the name of the agent that changed it.
#[derive(Debug, Default)]
struct StepClaims(Mutex<BTreeMap<String, (TaskId, String)>>);

impl StepClaims {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (TaskId, String)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Claims `path` for `task`.
    ///
    /// # Errors
    /// Returns the name of the agent that has claimed it for another task.
    fn claim(&self, path: &str, task: TaskId, agent: &str) -> Result<(), String> {
        let mut claims = self.lock();
        let is_other =
            |claimed: &String| *claimed == path || below(claimed, path).is_some() || below(path, claimed).is_some();
        let other = claims
            .iter()
            .find(|(claimed, (owner, _))| *owner != task && is_other(claimed));
        if let Some((_, (_, other))) = other {
            return Err(other.clone());
        }
        claims.insert(path.to_owned(), (task, agent.to_owned()));
        Ok(())
    }
}

/// The claims that an agent of a tree has to respect. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct FileClaims {
    agent: String,
    /// The steps of the agents above and of this one, outermost first, each with the call that is under way.
    above: Arc<[(Arc<StepClaims>, TaskId)]>,
    /// The current step of this agent.
    own: Arc<StepClaims>,
}

impl FileClaims {
    /// Drops the claims of the agent's last step.
    pub fn begin_step(&self) {
        self.own.lock().clear();
    }

    /// Returns the claims for a call of the agent.
    #[must_use]
    pub fn of_call(&self, task: TaskId, agent: &str) -> Self {
        let above = self.above.iter().cloned().chain([(Arc::clone(&self.own), task)]);
        Self {
            agent: agent.to_owned(),
            above: above.collect(),
            own: Arc::default(),
        }
    }

    /// Claims the file or directory at `path` until the steps above end.
    ///
    /// # Errors
    /// The text for the model, if another call has claimed it.
    pub(super) fn claim(&self, path: &str) -> Result<(), String> {
        let claim = |(step, task): &(Arc<StepClaims>, TaskId)| step.claim(path, *task, &self.agent);
        self.above.iter().try_for_each(claim).map_err(|other| {
            format!(
                "Error: `{other}` changes '{path}' at the same time, and one of the two changes would be lost. Nothing \
                 was changed. Write to another file, or leave this one alone until the work of `{other}` has been \
                 handed in; then read it and make the change."
            )
        })
    }

    /// Claims the files that a subagent had changed before it was interrupted.
    pub fn restore<'a>(&self, paths: impl IntoIterator<Item = &'a String>) {
        for path in paths {
            // Both changes were made before this process knew of them; the later one wins, as it would have.
            if self.claim(path).is_err() {
                tracing::debug!(path, "a file was changed by two agents of one tree");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn a_file_that_another_branch_of_the_tree_has_changed_is_refused_until_the_step_ends() {
        let main = FileClaims::default();
        let tasks = [1, 2].map(|number| TaskId(Uuid::from_u128(number)));
        let researcher = main.of_call(tasks[0], "researcher");
        let below_researcher = researcher.of_call(tasks[1], "reader");
        let writer = main.of_call(tasks[1], "writer");
        assert_eq!(below_researcher.claim("/notes/a.md"), Ok(()));
        assert_eq!(researcher.claim("/notes/a.md"), Ok(()), "its own branch");
        let refused = writer.claim("/notes/a.md").expect_err("it is claimed");
        assert!(refused.contains("`researcher` changes '/notes/a.md'"), "{refused}");
        assert!(writer.claim("/notes").is_err(), "the directory would take it along");
        assert_eq!(writer.claim("/notes/b.md"), Ok(()));
        assert!(below_researcher.claim("/notes/b.md").is_err());
        main.begin_step();
        assert_eq!(writer.claim("/notes/a.md"), Ok(()));
    }
}
