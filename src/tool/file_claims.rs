//! The claims on files of the state by calls that run at the same time.
//!
//! The calls of one step start from the same files, and so do the subagents that they delegate to, at every depth.
//! Their writes are merged when the step ends. Where two of them change one file, a change would be lost: the first
//! claims the file until the step ends, and the second is refused.
//!
//! Files that an agent does not name itself, such as those of long results, get names of which no other agent makes use:
//! see [`FileClaims::own_path`].

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::domain::id::TaskId;

/// The digits of a task that are part of the names of an agent's own files.
const TASK_DIGITS: usize = 16;

/// The claims of the calls of one step.
#[derive(Debug, Default)]
struct StepClaims {
    /// The calls that have changed a file, by path, with the name of the agent that changed it.
    claimed: Mutex<BTreeMap<String, (TaskId, String)>>,
    /// True if the step has several calls.
    is_parallel: AtomicBool,
}

impl StepClaims {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, (TaskId, String)>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_parallel(&self) -> bool {
        self.is_parallel.load(Ordering::Relaxed)
    }

    /// Claims `path` for `task`.
    ///
    /// # Errors
    /// Returns the name of the agent that has claimed it for another task.
    fn claim(&self, path: &str, task: TaskId, agent: &str) -> Result<(), String> {
        let mut claims = self.lock();
        let inside = format!("{path}/");
        let around = path
            .match_indices('/')
            .map(|(end, _)| &path[..end])
            .chain(std::iter::once(path));
        let around = around.filter_map(|place| claims.get(place));
        let within = claims
            .range(inside.clone()..)
            .take_while(|(claimed, _)| claimed.starts_with(&inside));
        let mut all = around.chain(within.map(|(_, claim)| claim));
        if let Some((_, other)) = all.find(|(owner, _)| *owner != task) {
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
    /// Begins a step with this number of calls. Drops the claims of the agent's last step.
    pub fn begin_step(&self, calls: usize) {
        self.own.lock().clear();
        self.own.is_parallel.store(calls > 1, Ordering::Relaxed);
    }

    /// Returns the path of a file that the agent does not name itself. Where other agents or calls of the tree work at
    /// the same time, the path is one that none of them uses: they may have results and messages with the same ids, and
    /// all their files come together in one state.
    pub fn own_path(&self, path: String) -> String {
        let is_parallel = self.above.iter().any(|(step, _)| step.is_parallel());
        match self.above.last().filter(|_| is_parallel) {
            Some((_, task)) => {
                let digits = task.0.simple().to_string();
                format!("{path}-{}", digits.get(..TASK_DIGITS).unwrap_or(&digits))
            }
            None => path,
        }
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
        assert_eq!(writer.claim("/notes.d"), Ok(()), "a name that only begins alike");
        assert_eq!(writer.claim("/drafts"), Ok(()));
        assert!(researcher.claim("/drafts/new/a.md").is_err(), "its directory is gone");
        main.begin_step(2);
        assert_eq!(writer.claim("/notes/a.md"), Ok(()));
    }

    #[test]
    fn agents_that_work_at_the_same_time_have_paths_of_their_own() {
        let main = FileClaims::default();
        let tasks = [1, 2, 3].map(|number| TaskId(Uuid::from_u128(number << 64)));
        let path = |claims: &FileClaims| claims.own_path("/results/call_0".to_owned());
        main.begin_step(1);
        let alone = main.of_call(tasks[0], "researcher");
        assert_eq!(path(&alone), "/results/call_0");
        alone.begin_step(2);
        assert_eq!(
            path(&alone),
            "/results/call_0",
            "its calls share the names that it gives"
        );
        let below = tasks.map(|task| alone.of_call(task, "reader"));
        assert_eq!(path(&below[0]), "/results/call_0-0000000000000001");
        assert_eq!(path(&below[1]), "/results/call_0-0000000000000002");
        below[0].begin_step(1);
        let deeper = below[0].of_call(tasks[2], "helper");
        assert_eq!(path(&deeper), "/results/call_0-0000000000000003");
        assert_eq!(path(&main), "/results/call_0");
    }
}
