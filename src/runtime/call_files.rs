//! The files of the agent that makes a call, for the tool that it calls.
//!
//! The request of the tool may arrive at another process than the one at which the run is at work. So the agent is found
//! as a restarted process finds it: by the definitions that the runs from the main agent down to the caller have kept.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::dispatcher::Dispatcher;
use super::error::CallFileError;
use super::sandboxes::StoredSandboxes;
use crate::agent::Agent;
use crate::agent::assemble::RegisteredAgent;
use crate::db::{self, DbResult, Tx};
use crate::domain::call_token::CallBinding;
use crate::domain::id::RunId;
use crate::domain::limits::{Limits, Usage};
use crate::domain::read_access::ReadableFiles;
use crate::domain::run::Run;
use crate::domain::state::{FileFacts, State};
use crate::tool::Scope;
use crate::tool::budget::{Budget, Meter};
use crate::tool::files::{AgentFiles, FileAccess};

/// Opens the files of agents that make calls. Cheap to clone.
#[derive(Clone)]
pub struct CallFiles {
    dispatcher: Arc<Dispatcher>,
}

/// The files that a call may read, at the newest checkpoint of the agent that makes it.
pub struct OpenCallFiles {
    files: AgentFiles,
    scope: Scope,
    state: State,
    readable: Arc<ReadableFiles>,
}

/// The paths of the files that a call may read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CallFileList {
    /// The paths, sorted.
    pub paths: Vec<String>,
    /// The sizes in bytes, by path, as far as the search came to know them.
    pub sizes: BTreeMap<String, u64>,
    /// True if there are more, which the search did not get to.
    pub is_cut: bool,
}

/// The runs from the main agent's down to that of the agent that makes a call, and the state of that agent.
struct Caller {
    main: Run,
    below: Vec<Run>,
    state: State,
}

impl Caller {
    /// Reads the caller of a call; none if one of its runs is not there any more.
    async fn read(tx: &mut Tx<'_>, call: &CallBinding) -> DbResult<Option<Self>> {
        let Some(main) = db::runs::get_by_id(tx, call.run).await? else {
            return Ok(None);
        };
        let mut below = vec![];
        let mut next = call.child;
        while let Some(child) = next {
            let Some(run) = db::runs::get_by_id(tx, child).await? else {
                return Ok(None);
            };
            next = parent_below(&run, &below);
            below.push(run);
        }
        below.reverse();
        let machine = db::checkpoints::machine(tx, call.thread, call.lane()).await?.0;
        Ok(Some(Self {
            main,
            below,
            state: machine.state,
        }))
    }

    /// Returns the scope in which the workspace of the caller is read; `main` is that of the main agent.
    fn scope(&self, main: Scope) -> Scope {
        match self.below.last() {
            None => main,
            Some(run) => Scope {
                agent: run.lineage.agent().to_owned(),
                path: run.lineage.path.clone().into(),
                depth: run.lineage.depth,
                subagent: Some(run.id),
                visibility: run.lineage.visibility,
                ..main
            },
        }
    }
}

/// Returns the run that has delegated to a subagent, unless it is that of the main agent. `seen` are the runs below.
fn parent_below(run: &Run, seen: &[Run]) -> Option<RunId> {
    // A parent has a smaller depth, so that runs that name each other end the way up.
    let is_above = |below: &Run| run.lineage.depth < below.lineage.depth;
    run.lineage
        .calling_subagent()
        .filter(|_| seen.last().is_none_or(is_above))
}

impl CallFiles {
    pub(super) fn new(dispatcher: &Arc<Dispatcher>) -> Self {
        Self {
            dispatcher: Arc::clone(dispatcher),
        }
    }

    /// Opens the files that a call may read.
    ///
    /// # Errors
    /// [`CallFileError::NoAgent`] when the agent of the caller is not configured on this server, or the database fails.
    pub async fn open(&self, call: &CallBinding) -> Result<OpenCallFiles, CallFileError> {
        let core = &self.dispatcher.core;
        let wanted = call.clone();
        let read = core
            .db
            .read(move |tx| Box::pin(async move { Caller::read(tx, &wanted).await }));
        let caller = read.await?.ok_or(CallFileError::NoAgent)?;
        let known = self.registered_agent(&caller.main, call).await?;
        let agent = self.agent(&known, &caller, call).await?;
        let now = core.clock.now();
        // Nothing is spent: files are read within the limits of requests.
        let meter = || Meter::new(Usage::default(), now);
        let budget = Budget::of_main(Limits::default(), Arc::new(meter()), meter());
        let main = self.dispatcher.scope_of(&caller.main, &call.ownership, &known, budget);
        let scope = Scope {
            task: Some(call.task),
            sandboxes: Arc::new(StoredSandboxes {
                db: core.db.clone(),
                replaces_lost: false,
            }),
            ..caller.scope(main)
        };
        Ok(OpenCallFiles {
            files: agent.files(),
            scope,
            state: caller.state,
            readable: Arc::new(call.access.readable_files()),
        })
    }

    /// Returns the agent with the definition that a run has kept.
    async fn registered_agent(&self, run: &Run, call: &CallBinding) -> Result<Arc<RegisteredAgent>, CallFileError> {
        let registry = &self.dispatcher.core.registry;
        let known = registry.of_run_of_tenant(run, &call.ownership.tenant).await?;
        known.ok_or(CallFileError::NoAgent)
    }

    /// Returns the agent that makes the call, below the main agent.
    async fn agent(
        &self,
        main: &RegisteredAgent,
        caller: &Caller,
        call: &CallBinding,
    ) -> Result<Arc<Agent>, CallFileError> {
        let mut agent = Arc::clone(main.agent());
        // The depth from which the levels of the definition are counted.
        let mut base = 0;
        for run in &caller.below {
            let depth = run.lineage.depth;
            agent = if run.request.agent.is_some() {
                base = depth;
                Arc::clone(self.registered_agent(run, call).await?.agent())
            } else {
                let subagent = agent.own_subagent(run.lineage.agent(), depth.saturating_sub(base));
                subagent.ok_or(CallFileError::NoAgent)?
            };
        }
        Ok(agent)
    }
}

impl OpenCallFiles {
    fn access(&self) -> FileAccess<'_> {
        FileAccess {
            scope: &self.scope,
            state: &self.state,
        }
    }

    /// Returns the paths of the files that the call may read.
    ///
    /// # Errors
    /// [`CallFileError::Failed`].
    pub async fn list(&self) -> Result<CallFileList, CallFileError> {
        let found = self.files.paths(self.access(), &self.readable).await?;
        Ok(CallFileList {
            is_cut: found.stop.is_some(),
            paths: found.paths,
            sizes: found.sizes,
        })
    }

    /// Returns what is known of files without reading them, by path. `sizes` are those of the list.
    ///
    /// # Errors
    /// [`CallFileError::Failed`].
    pub async fn facts(
        &self,
        paths: &[String],
        sizes: &BTreeMap<String, u64>,
    ) -> Result<BTreeMap<String, FileFacts>, CallFileError> {
        Ok(self.files.facts(self.access(), paths, sizes).await?)
    }

    /// Returns the bytes of the file at a normalised path; none if there is no file.
    ///
    /// # Errors
    /// Any but [`CallFileError::NoAgent`].
    pub async fn read(&self, path: &str) -> Result<Option<Vec<u8>>, CallFileError> {
        let Some(file) = self.files.read(self.access(), path, &self.readable).await? else {
            return Ok(None);
        };
        let bytes = file.to_bytes();
        bytes
            .map(Some)
            .map_err(|_| CallFileError::Failed(format!("the content of '{path}' is no base64")))
    }
}
