//! The agent of a request: that of the assistant or the thread that the request names, with the definition with which
//! the work began that it continues.

use std::sync::Arc;

use super::{Current, Registry};
use crate::agent::assemble::RegisteredAgent;
use crate::db::assistants::LaterAssistant;
use crate::db::checkpoints::LaterWork;
use crate::db::runs::LaterRun;
use crate::db::{self, DbResult, Tx};
use crate::domain::assistant::Assistant;
use crate::domain::checkpoint::Lane;
use crate::domain::id::{AssistantId, CheckpointId, ThreadId};
use crate::domain::identity::Tenant;
use crate::domain::machine::Phase;
use crate::domain::run::{AssignedAgent, Run};
use crate::domain::thread::Thread;
use crate::runtime::error::StartError;
use crate::runtime::new_run::{AssistantRef, NewRun};

/// An assistant with its agent.
pub(in crate::runtime) struct ResolvedAssistant {
    pub(in crate::runtime) assistant: Assistant,
    pub(in crate::runtime) known: Arc<RegisteredAgent>,
    /// The tenant whose client defined the agent when it was found. The agent may be deleted before the admission checks
    /// its tenant.
    pub(in crate::runtime) owner: Option<Tenant>,
}

impl ResolvedAssistant {
    /// Returns whether a client of another tenant defined the agent.
    pub(in crate::runtime) fn is_of_another(&self, tenant: &Tenant) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner != tenant)
    }
}

/// An assistant that a request names, and that is read later in the transaction.
pub(in crate::runtime) struct AssistantLookup {
    id: AssistantId,
    /// The agents when the request was looked at.
    current: Current,
    found: LaterAssistant,
}

impl AssistantLookup {
    /// Returns the assistant with its agent.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub(in crate::runtime) async fn resolve(self, tx: &mut Tx<'_>) -> Result<ResolvedAssistant, StartError> {
        let Self { id, current, found } = self;
        let Some(assistant) = found.find(tx).await? else {
            return Err(StartError::NoAssistant(id.to_string()));
        };
        match current.agents.of_graph(&assistant.settings.graph_id) {
            Some(known) => Ok(ResolvedAssistant {
                owner: current.owners.get(&known.graph_id).cloned(),
                known: Arc::clone(known),
                assistant,
            }),
            None => Err(StartError::NoAgent {
                assistant: id,
                graph_id: assistant.settings.graph_id,
            }),
        }
    }
}

/// The definition with which the work began that a request continues. It is read later in the transaction.
pub(in crate::runtime) enum PinnedLookup {
    /// The request continues none.
    Current,
    /// The work in progress at a checkpoint of a thread.
    At(ThreadId, CheckpointId),
    /// The work in progress at the newest checkpoint.
    Newest(Box<NewestWork>),
}

/// The work in progress at the newest checkpoint of a thread, and the run that made the checkpoint.
pub(in crate::runtime) struct NewestWork {
    work: LaterWork,
    run: LaterRun,
}

impl PinnedLookup {
    /// Begins to look for the work that a request continues. It is read together with other rows.
    pub(in crate::runtime) async fn begin(tx: &mut Tx<'_>, new_run: &NewRun) -> DbResult<Self> {
        let goes_on = new_run.resume.is_some() || new_run.request.input.is_none();
        let thread = new_run.target.thread().filter(|_| goes_on);
        Ok(match (thread, new_run.request.checkpoint) {
            (None, _) => Self::Current,
            (Some(thread), Some(checkpoint)) => Self::At(thread, checkpoint),
            (Some(thread), None) => Self::Newest(Box::new(NewestWork {
                work: db::checkpoints::work_later(tx, thread).await?,
                run: db::runs::of_newest_step_later(tx, thread).await?,
            })),
        })
    }
}

impl Registry {
    /// Returns the agent for a request: the current one, or, if the request continues work in progress on its thread,
    /// the agent with the definition with which that work began.
    pub(in crate::runtime) async fn pinned_definition(
        &self,
        tx: &mut Tx<'_>,
        new_run: &NewRun,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let pinned = PinnedLookup::begin(tx, new_run).await?;
        self.pinned(tx, pinned, known).await
    }

    /// Returns the agent for a request like [`Registry::pinned_definition`], after it was begun to look for it.
    pub(in crate::runtime) async fn pinned(
        &self,
        tx: &mut Tx<'_>,
        pinned: PinnedLookup,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        match pinned {
            PinnedLookup::Current => Ok(known),
            PinnedLookup::At(thread, checkpoint) => self.as_admitted(tx, thread, Some(checkpoint), known).await,
            PinnedLookup::Newest(newest) => {
                let NewestWork { work, run } = *newest;
                let Some(id) = work.run(tx).await? else {
                    return Ok(known);
                };
                let run = match run.read(tx).await? {
                    Some(run) if run.id == id => Some(run),
                    // On Postgres another step may have been stored in between.
                    Some(_) | None => db::runs::get_by_id(tx, id).await?,
                };
                self.as_begun(tx, run, known).await
            }
        }
    }

    /// Returns the assistant that a request names, with its agent.
    ///
    /// # Errors
    /// Returns an error when the assistant or its agent does not exist, or the database fails.
    pub(in crate::runtime) async fn resolve(
        &self,
        tx: &mut Tx<'_>,
        wanted: &AssistantRef,
    ) -> Result<ResolvedAssistant, StartError> {
        self.look_up(tx, wanted).await?.resolve(tx).await
    }

    /// Begins to look for the assistant that a request names. It is read together with other rows.
    ///
    /// # Errors
    /// As [`Registry::resolve`].
    pub(in crate::runtime) async fn look_up(
        &self,
        tx: &mut Tx<'_>,
        wanted: &AssistantRef,
    ) -> Result<AssistantLookup, StartError> {
        let current = self.current();
        let id = match wanted {
            AssistantRef::Id(id) => *id,
            AssistantRef::Graph(graph_id) => match current.agents.of_graph(graph_id) {
                Some(known) => known.assistant,
                None => return Err(StartError::NoAssistant(graph_id.clone())),
            },
        };
        let found = db::assistants::find_later(tx, id).await?;
        Ok(AssistantLookup { id, current, found })
    }

    /// Returns the last agent of a thread, as it is defined now; none if it does not exist for the tenant of the thread,
    /// whose metadata name the agent and come from clients.
    pub(in crate::runtime) fn last_on(&self, thread: &Thread) -> Option<Arc<RegisteredAgent>> {
        let current = self.current();
        let known = current.agents.last_on(thread)?;
        let existing = self.existing_in(&current, &thread.ownership.tenant);
        existing.contains(&known.graph_id).then(|| Arc::clone(known))
    }

    /// Returns the last agent of a thread, with the definition with which the work in progress began.
    pub(in crate::runtime) async fn of_thread(
        &self,
        tx: &mut Tx<'_>,
        thread: &Thread,
    ) -> DbResult<Option<Arc<RegisteredAgent>>> {
        match self.last_on(thread) {
            Some(known) => self.as_admitted(tx, thread.id, None, known).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the agent with the definition with which the work in progress at a checkpoint, or at the newest one,
    /// began. If no work is in progress, the definition is the current one.
    async fn as_admitted(
        &self,
        tx: &mut Tx<'_>,
        thread: ThreadId,
        checkpoint: Option<CheckpointId>,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let head = match checkpoint {
            Some(checkpoint) => db::checkpoints::find_head(tx, thread, checkpoint).await?,
            None => db::checkpoints::head(tx, thread, Lane::Main).await?,
        };
        let head = head.filter(|head| !matches!(head.position.phase, Phase::Start | Phase::Ended));
        let Some(run) = head.and_then(|head| head.run) else {
            return Ok(known);
        };
        let run = db::runs::get_by_id(tx, run).await?;
        self.as_begun(tx, run, known).await
    }

    /// Returns the agent with the definition with which a run began.
    async fn as_begun(
        &self,
        tx: &mut Tx<'_>,
        run: Option<Run>,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        self.as_assigned(tx, run.and_then(|run| run.request.agent), known).await
    }

    /// Returns the agent with the definition that a run had when it began, whose `agent` is given.
    pub(in crate::runtime) async fn as_assigned(
        &self,
        tx: &mut Tx<'_>,
        agent: Option<AssignedAgent>,
        known: Arc<RegisteredAgent>,
    ) -> DbResult<Arc<RegisteredAgent>> {
        let bound = match agent {
            Some(AssignedAgent {
                graph_id,
                definition: Some(digest),
                ..
            }) if graph_id == known.graph_id && digest != known.digest => {
                self.of_digest(tx, &graph_id, &digest).await?
            }
            Some(_) | None => None,
        };
        Ok(bound.unwrap_or(known))
    }
}
