//! The decision about a request: whether its caller may do this to a resource. This is the one place that decides.
//!
//! HTTP asks before a handler runs, and the admission of runs asks within its transaction, since a run names its thread
//! and its assistant in the body. Searches are not decided one by one: they get the scope of the caller as a filter.

use std::fmt;
use std::sync::Arc;

use super::shared::Core;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::access::{
    AccessScope, Action, Assignee, InterruptScope, Reach, ResourceFacts, SharingRule, interrupt_scope_of, may_access,
    reach, scope_of,
};
use crate::domain::id::{AssistantId, CronId, DeliveryId, ThreadId};
use crate::domain::identity::Identity;

/// The resource of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceRef {
    /// No single resource: a search, or a resource that is created.
    Collection,
    /// A thread and everything on it, or the thread of a remote background task.
    Thread(ThreadId),
    /// An assistant.
    Assistant(AssistantId),
    /// A cron.
    Cron(CronId),
    /// A webhook delivery.
    Delivery(DeliveryId),
}

impl fmt::Display for ResourceRef {
    /// Writes the resource as the audit shows it; nothing for a collection.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collection => Ok(()),
            Self::Thread(id) => write!(f, "thread:{id}"),
            Self::Assistant(id) => write!(f, "assistant:{id}"),
            Self::Cron(id) => write!(f, "cron:{id}"),
            Self::Delivery(id) => write!(f, "delivery:{id}"),
        }
    }
}

/// The reason why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// No role or scope of the caller allows the action at all.
    #[error("the caller may not do `{0}`")]
    Forbidden(Action),
    /// The resource does not exist, or the caller may not know that it does.
    #[error("the resource does not exist for this caller")]
    NotFound(ResourceRef),
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] DbError),
}

/// The rules by which owners share resources with their tenant.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharingRules {
    /// Threads, with everything on them.
    pub threads: SharingRule,
    /// Assistants.
    pub assistants: SharingRule,
}

impl SharingRules {
    /// Returns the rule for the resources of an action.
    pub fn of(&self, action: Action) -> &SharingRule {
        const NONE: &SharingRule = &SharingRule {
            read: None,
            write: None,
        };
        match action.resource() {
            "threads" | "interrupts" => &self.threads,
            "assistants" => &self.assistants,
            _ => NONE,
        }
    }
}

/// Decides what callers may do. Cheap to clone.
#[derive(Clone)]
pub struct AccessControl {
    core: Arc<Core>,
}

impl AccessControl {
    pub(super) fn new(core: Arc<Core>) -> Self {
        Self { core }
    }

    /// Decides whether the caller may do this to the resource. Without authentication nothing is read.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub async fn check(&self, caller: &Identity, action: Action, resource: ResourceRef) -> Result<(), AccessError> {
        let reach = reach(caller, action);
        match reach {
            Reach::Server => return Ok(()),
            Reach::Nothing => return Err(AccessError::Forbidden(action)),
            Reach::Assigned | Reach::Own | Reach::Tenant => {}
        }
        if resource == ResourceRef::Collection {
            return Ok(());
        }
        // What cannot change the decision is not read.
        let with_metadata = reach == Reach::Own && self.core.sharing.of(action).filters(action).next().is_some();
        let may_be_assigned = reach != Reach::Tenant && action.resource() == "interrupts";
        let assignee = may_be_assigned.then(|| Assignee::of(caller));
        let facts = self
            .core
            .db
            .read(move |tx| Box::pin(async move { facts(tx, resource, with_metadata, assignee.as_ref()).await }));
        let facts = facts.await?.ok_or(AccessError::NotFound(resource))?;
        decide(caller, action, &facts, &self.core.sharing)
            .then_some(())
            .ok_or(AccessError::NotFound(resource))
    }

    /// Decides like [`AccessControl::check`], for those who do not tell the caller the reason.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn allows(&self, caller: &Identity, action: Action, resource: ResourceRef) -> DbResult<bool> {
        match self.check(caller, action, resource).await {
            Ok(()) => Ok(true),
            Err(AccessError::Forbidden(_) | AccessError::NotFound(_)) => Ok(false),
            Err(AccessError::Fault(error)) => Err(error),
        }
    }

    /// Returns the filter of the caller's searches for interrupts, and of reads of the interrupts of one thread.
    pub fn interrupt_scope(&self, caller: &Identity, action: Action) -> InterruptScope {
        interrupt_scope_of(caller, action, self.core.sharing.of(action))
    }

    /// Returns the filter of the caller's searches.
    pub fn scope(&self, caller: &Identity, action: Action) -> AccessScope {
        scope_of(caller, action, self.core.sharing.of(action))
    }
}

/// Decides about a resource whose facts are known.
pub(super) fn decide(caller: &Identity, action: Action, facts: &ResourceFacts, sharing: &SharingRules) -> bool {
    may_access(caller, action, facts, sharing.of(action))
}

/// Reads the facts about a resource, with its metadata if a sharing rule needs them. With an assignee the request is
/// about interrupts of a thread, one of which may be assigned to the caller.
async fn facts(
    tx: &mut Tx<'_>,
    resource: ResourceRef,
    with_metadata: bool,
    assignee: Option<&Assignee>,
) -> DbResult<Option<ResourceFacts>> {
    match resource {
        ResourceRef::Collection => Ok(None),
        ResourceRef::Thread(thread) => {
            let Some(mut facts) = db::access::thread_facts(tx, thread, with_metadata).await? else {
                return Ok(None);
            };
            if let Some(assignee) = assignee {
                facts.is_assigned = db::interrupts::is_assigned_any(tx, thread, assignee).await?;
            }
            Ok(Some(facts))
        }
        ResourceRef::Assistant(assistant) => db::access::assistant_facts(tx, assistant, with_metadata).await,
        ResourceRef::Cron(cron) => db::access::cron_facts(tx, cron).await,
        ResourceRef::Delivery(delivery) => db::access::delivery_facts(tx, delivery).await,
    }
}
