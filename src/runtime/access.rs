//! The decision about a request: whether its caller may do this to a resource. This is the one place that decides.
//!
//! HTTP asks before a handler runs, and the admission of runs asks within its transaction, since a run names its thread
//! and its assistant in the body. Searches are not decided one by one: they get the scope of the caller as a filter.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::resource_ref::ResourceRef;
use super::shared::Core;
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::access::{
    AccessScope, Action, Assignee, InterruptScope, Ownership, Reach, ResourceFacts, interrupt_scope_of, may_access,
    permits, reach, scope_of,
};
use crate::domain::id::ThreadId;
use crate::domain::identity::Identity;
use crate::domain::ruling::{RowCondition, Ruling};
use crate::domain::run::RunCaller;
use crate::domain::tenant_agents::TenantAgents;
use crate::domain::thread::Thread;

/// The reason why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessRefusal {
    /// No role or scope of the caller allows the action at all.
    #[error("the caller may not do `{0}`")]
    Forbidden(Action),
    /// A policy forbids the action, which would be allowed without it.
    #[error("a policy forbids the caller to do `{0}`")]
    ForbiddenByPolicy(Action),
    /// The resource does not exist, or the caller may not know that it does.
    #[error("the resource does not exist for this caller")]
    NotFound(ResourceRef),
}

/// The error of a decision that does not allow a request.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The request is refused.
    #[error("{reason}")]
    Refused {
        /// The reason.
        reason: AccessRefusal,
        /// The ids of policies because of which it is refused, for the audit.
        policies: Vec<String>,
    },
    /// The database failed.
    #[error(transparent)]
    Fault(#[from] DbError),
}

impl AccessError {
    fn refused(reason: AccessRefusal) -> Self {
        Self::Refused {
            reason,
            policies: vec![],
        }
    }
}

/// The reason why an action on a resource is refused.
pub(super) struct Denial {
    /// True if the caller may know that a policy forbids the action.
    pub(super) is_by_policy: bool,
    /// The ids of the policies that forbid it.
    pub(super) policies: Vec<String>,
}

impl Denial {
    /// The same reason about something whose existence is no secret.
    fn about_no_secret(self) -> Self {
        Self {
            is_by_policy: self.is_by_policy || !self.policies.is_empty(),
            policies: self.policies,
        }
    }

    /// Returns the refusal of the action. `missing` is what a caller is told who may not know of the policies.
    fn refusal(self, action: Action, missing: AccessRefusal) -> AccessError {
        let reason = match self.is_by_policy {
            true => AccessRefusal::ForbiddenByPolicy(action),
            false => missing,
        };
        AccessError::Refused {
            reason,
            policies: self.policies,
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
        if reach == Reach::Server {
            return Ok(());
        }
        let ruling = ruling_of(&self.core, caller, action);
        let is_permitted = *permits(caller, action, &ruling) != RowCondition::NEVER;
        if reach == Reach::Nothing && !is_permitted {
            return Err(AccessError::refused(AccessRefusal::Forbidden(action)));
        }
        let facts = match resource {
            ResourceRef::Collection if is_decided_later(action) => {
                if ruling.forbids != RowCondition::ALWAYS {
                    return Ok(());
                }
                let policies = forbidding(&self.core, caller, action, &own_facts(caller));
                let reason = AccessRefusal::ForbiddenByPolicy(action);
                return Err(AccessError::Refused { reason, policies });
            }
            // A resource without rows, or without rows yet, belongs to the caller.
            ResourceRef::Collection => Some(own_facts(caller)),
            ResourceRef::Thread(_) | ResourceRef::Assistant(_) | ResourceRef::Cron(_) | ResourceRef::Delivery(_) => {
                // Facts that cannot change the decision are not read. Policies may ask for any metadata.
                let is_shared = || self.core.sharing.of(action).filters(action).next().is_some();
                let with_metadata = ruling != Ruling::NONE || (reach == Reach::Own && is_shared());
                let may_be_assigned = reach != Reach::Tenant && action.resource() == "interrupts";
                let assignee = may_be_assigned.then(|| Assignee::of(caller));
                let wanted = WantedFacts {
                    with_metadata,
                    with_above: ruling.forbids.asks_metadata(),
                    assignee,
                };
                let read = self
                    .core
                    .db
                    .read(move |tx| Box::pin(async move { read_facts(tx, resource, &wanted).await }));
                read.await?
            }
        };
        // A caller who may do nothing of the kind does not learn what exists.
        let missing = match (reach, resource) {
            (Reach::Nothing, _) | (_, ResourceRef::Collection) => AccessRefusal::Forbidden(action),
            (_, _) => AccessRefusal::NotFound(resource),
        };
        let facts = facts.ok_or_else(|| AccessError::refused(missing))?;
        let decided = decide_by(&self.core, caller, action, &facts, ruling);
        decided.map_err(|denial| match resource {
            ResourceRef::Collection => denial.about_no_secret().refusal(action, missing),
            ResourceRef::Thread(_) | ResourceRef::Assistant(_) | ResourceRef::Cron(_) | ResourceRef::Delivery(_) => {
                denial.refusal(action, missing)
            }
        })
    }

    /// Decides whether the caller may create a resource of its own with this metadata.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub fn check_new(
        &self,
        caller: &Identity,
        action: Action,
        metadata: &Map<String, Value>,
    ) -> Result<(), AccessError> {
        let facts = ResourceFacts {
            metadata: metadata.clone(),
            ..own_facts(caller)
        };
        let decided = decide(&self.core, caller, action, &facts);
        let missing = AccessRefusal::Forbidden(action);
        decided.map_err(|denial| denial.about_no_secret().refusal(action, missing))
    }

    /// Decides by the policies alone whether they forbid the caller to do this to a resource that a request reaches by
    /// another name than its id. Without policies nothing is read.
    ///
    /// # Errors
    /// See [`AccessError`].
    pub async fn check_policies(
        &self,
        caller: &Identity,
        action: Action,
        resource: ResourceRef,
    ) -> Result<(), AccessError> {
        if caller.is_unrestricted() {
            return Ok(());
        }
        let ruling = ruling_of(&self.core, caller, action);
        if ruling.forbids == RowCondition::NEVER {
            return Ok(());
        }
        let missing = AccessRefusal::NotFound(resource);
        let wanted = WantedFacts::all();
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { read_facts(tx, resource, &wanted).await }));
        let facts = read.await?.ok_or_else(|| AccessError::refused(missing))?;
        match denial_by(&self.core, caller, action, &facts, &ruling) {
            Some(denial) => Err(denial.refusal(action, missing)),
            None => Ok(()),
        }
    }

    /// Returns whether policies forbid the caller to read a thread of this owner, of which something is shown elsewhere.
    /// The thread may be gone, and its metadata with it; then it is forbidden if policies ask for them.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn hides_thread(&self, caller: &Identity, thread: ThreadId, owner: &Ownership) -> DbResult<bool> {
        let ruling = ruling_of(&self.core, caller, Action::ThreadsRead);
        if caller.is_unrestricted() || ruling.forbids == RowCondition::NEVER {
            return Ok(false);
        }
        let wanted = WantedFacts::all();
        let read = self
            .core
            .db
            .read(move |tx| Box::pin(async move { read_facts(tx, ResourceRef::Thread(thread), &wanted).await }));
        let gone = || ResourceFacts {
            ownership: owner.clone(),
            is_unreadable: true,
            ..ResourceFacts::default()
        };
        let facts = read.await?.unwrap_or_else(gone);
        Ok(facts.is_forbidden_by(&ruling.forbids))
    }

    /// Decides like [`AccessControl::check`], for those who do not tell the caller the reason.
    ///
    /// # Errors
    /// Returns an error when the database fails.
    pub async fn allows(&self, caller: &Identity, action: Action, resource: ResourceRef) -> DbResult<bool> {
        match self.check(caller, action, resource).await {
            Ok(()) => Ok(true),
            Err(AccessError::Refused { .. }) => Ok(false),
            Err(AccessError::Fault(error)) => Err(error),
        }
    }

    /// Decides whether an agent exists for the caller.
    ///
    /// # Errors
    /// See [`AccessError`]: the agent is not among those of the caller's tenant.
    pub fn check_agent(&self, caller: &Identity, action: Action, graph_id: &str) -> Result<(), AccessError> {
        match self.agents_of(caller).contains(graph_id) {
            true => Ok(()),
            false => Err(AccessError::refused(AccessRefusal::Forbidden(action))),
        }
    }

    /// Returns which agents exist for the caller.
    pub fn agents_of(&self, caller: &Identity) -> TenantAgents {
        self.core.registry.agents_of(&caller.tenant)
    }

    /// Returns the filter of the caller's searches for interrupts, and of reads of the interrupts of one thread.
    pub fn interrupt_scope(&self, caller: &Identity, action: Action) -> InterruptScope {
        let ruling = ruling_of(&self.core, caller, action);
        interrupt_scope_of(caller, action, self.core.sharing.of(action), &ruling)
    }

    /// Returns the filter of the caller's searches, and of changes of many resources.
    pub fn scope(&self, caller: &Identity, action: Action) -> AccessScope {
        let ruling = ruling_of(&self.core, caller, action);
        scope_of(caller, action, self.core.sharing.of(action), &ruling)
    }
}

/// Returns whether a request that names no resource is decided about later: a search by its scope, and what a request
/// creates with metadata, or names elsewhere, where that is known.
fn is_decided_later(action: Action) -> bool {
    let is_of_rows = matches!(
        action.resource(),
        "threads" | "interrupts" | "assistants" | "crons" | "deliveries"
    );
    // Crons have no metadata that policies ask for.
    is_of_rows && action != Action::CronsCreate
}

/// Returns the action of reading the resources that are there already and that an action is about. None for what is
/// created, and for what belongs to the server.
fn reading_of(action: Action) -> Option<Action> {
    let reading = match action.resource() {
        "threads" => Action::ThreadsRead,
        "interrupts" => Action::InterruptsRead,
        "assistants" => Action::AssistantsRead,
        "crons" => Action::CronsRead,
        "deliveries" => Action::DeliveriesRead,
        "store" => Action::StoreGet,
        "agents" => Action::AgentsRead,
        _ => return None,
    };
    let is_creation = action.word().ends_with(":create");
    (!is_creation).then_some(reading)
}

/// Returns what the policies say about an action. A search shows what it finds, and so do the responses to changes:
/// therefore nothing is found or changed that may not be read.
fn ruling_of(core: &Core, caller: &Identity, action: Action) -> Ruling {
    let ruling = ruling_of_one(core, caller, action);
    match reading_of(action) {
        Some(reading) if reading != action => {
            let reading = ruling_of_one(core, caller, reading);
            if action.is_read() {
                ruling.and(reading)
            } else {
                ruling.on_readable(reading)
            }
        }
        Some(_) | None => ruling,
    }
}

/// Returns what the policies say about one action. Assistants of agents that do not exist for the tenant do not exist either.
fn ruling_of_one(core: &Core, caller: &Identity, action: Action) -> Ruling {
    let ruling = core.policies.ruling(caller, action);
    if action.resource() != "assistants" {
        return ruling;
    }
    let hidden = RowCondition::outside(core.registry.agents_of(&caller.tenant));
    Ruling {
        permits: ruling.permits,
        forbids: RowCondition::any([ruling.forbids, hidden]),
    }
}

/// Returns the ids of the policies that forbid an action on a resource, or reading the resource.
fn forbidding(core: &Core, caller: &Identity, action: Action, facts: &ResourceFacts) -> Vec<String> {
    let mut ids = core.policies.forbidding(caller, action, facts);
    let seen = ids.clone();
    if let Some(reading) = reading_of(action).filter(|reading| *reading != action) {
        let more = core.policies.forbidding(caller, reading, facts);
        ids.extend(more.into_iter().filter(|id| !seen.contains(id)));
    }
    ids
}

/// The facts about what a caller creates.
fn own_facts(caller: &Identity) -> ResourceFacts {
    ResourceFacts {
        ownership: Ownership::of(caller),
        ..ResourceFacts::default()
    }
}

/// Decides about a resource whose facts are known.
pub(super) fn decide(core: &Core, caller: &Identity, action: Action, facts: &ResourceFacts) -> Result<(), Denial> {
    if caller.is_unrestricted() {
        return Ok(());
    }
    decide_by(core, caller, action, facts, ruling_of(core, caller, action))
}

/// Decides like [`decide`], by what the policies say about the action.
fn decide_by(
    core: &Core,
    caller: &Identity,
    action: Action,
    facts: &ResourceFacts,
    ruling: Ruling,
) -> Result<(), Denial> {
    let may = |ruling: &Ruling| may_access(caller, action, facts, core.sharing.of(action), ruling);
    if may(&ruling) {
        return Ok(());
    }
    let unforbidden = Ruling {
        forbids: RowCondition::NEVER,
        ..ruling
    };
    if !may(&unforbidden) {
        return Err(Denial {
            is_by_policy: false,
            policies: vec![],
        });
    }
    Err(policy_denial(core, caller, action, facts))
}

/// Decides about a thread that a transaction has read or is about to create. `is_assigned` is true if the request is about an
/// interrupt that is assigned to the caller.
pub(super) async fn decide_about_thread(
    tx: &mut Tx<'_>,
    core: &Core,
    caller: &Identity,
    action: Action,
    thread: &Thread,
    is_assigned: bool,
) -> DbResult<Result<(), Denial>> {
    let ruling = ruling_of(core, caller, action);
    let facts = ResourceFacts {
        is_assigned,
        ..facts_of_thread(tx, thread, &ruling).await?
    };
    Ok(decide_by(core, caller, action, &facts, ruling))
}

/// Returns whether the user for whom the server works may do one of these things to a resource now, by the roles of the request. A
/// resource that is gone hides nothing any more.
pub(super) async fn may_user(
    tx: &mut Tx<'_>,
    core: &Core,
    user: &RunCaller,
    actions: &[Action],
    resource: ResourceRef,
) -> DbResult<bool> {
    let facts = read_facts(tx, resource, &WantedFacts::all()).await?;
    let user = user.to_restricted_identity();
    let may = |facts: &ResourceFacts| actions.iter().any(|action| decide(core, &user, *action, facts).is_ok());
    Ok(facts.as_ref().is_none_or(may))
}

/// Decides by the policies alone, about a thread that a transaction has read or is about to create: for what a request does
/// besides its action, and for what the server does on behalf of a user. Returns the reason why they forbid it.
pub(super) async fn denial_about_thread(
    tx: &mut Tx<'_>,
    core: &Core,
    caller: &Identity,
    action: Action,
    thread: &Thread,
) -> DbResult<Option<Denial>> {
    let ruling = ruling_of(core, caller, action);
    if ruling.forbids == RowCondition::NEVER {
        return Ok(None);
    }
    let facts = facts_of_thread(tx, thread, &ruling).await?;
    Ok(denial_by(core, caller, action, &facts, &ruling))
}

fn denial_by(core: &Core, caller: &Identity, action: Action, facts: &ResourceFacts, ruling: &Ruling) -> Option<Denial> {
    let is_forbidden = facts.is_forbidden_by(&ruling.forbids);
    is_forbidden.then(|| policy_denial(core, caller, action, facts))
}

/// Returns the reason for a refusal by policies.
fn policy_denial(core: &Core, caller: &Identity, action: Action, facts: &ResourceFacts) -> Denial {
    let reading = reading_of(action).map(|reading| ruling_of_one(core, caller, reading).forbids);
    Denial {
        is_by_policy: !reading.is_some_and(|forbids| facts.is_forbidden_by(&forbids)),
        policies: forbidding(core, caller, action, facts),
    }
}

/// Returns the facts about a thread that a transaction has read or is about to create, for a decision by this ruling. What only
/// policies ask for is read if they do.
async fn facts_of_thread(tx: &mut Tx<'_>, thread: &Thread, ruling: &Ruling) -> DbResult<ResourceFacts> {
    let mut facts = ResourceFacts {
        ownership: thread.ownership.clone(),
        metadata: thread.metadata.clone(),
        ..ResourceFacts::default()
    };
    if ruling.forbids.asks_metadata() {
        let read = db::access::thread_facts(tx, thread.id, true).await?;
        facts.is_unreadable = read.is_some_and(|read| read.is_unreadable);
        db::access::add_metadata_above(tx, thread.id, &mut facts).await?;
    }
    Ok(facts)
}

/// The facts that a decision needs.
struct WantedFacts {
    /// True if a rule for sharing or a policy needs the metadata.
    with_metadata: bool,
    /// True if a policy needs the metadata of the threads above.
    with_above: bool,
    /// The caller, if the request is about interrupts of a thread, one of which may be assigned to the caller.
    assignee: Option<Assignee>,
}

impl WantedFacts {
    /// All that policies can ask for.
    fn all() -> Self {
        Self {
            with_metadata: true,
            with_above: true,
            assignee: None,
        }
    }
}

/// Reads the facts about a resource.
async fn read_facts(tx: &mut Tx<'_>, resource: ResourceRef, wanted: &WantedFacts) -> DbResult<Option<ResourceFacts>> {
    let with_metadata = wanted.with_metadata;
    match resource {
        ResourceRef::Collection => Ok(None),
        ResourceRef::Thread(thread) => {
            let Some(mut facts) = db::access::thread_facts(tx, thread, with_metadata).await? else {
                return Ok(None);
            };
            if wanted.with_above {
                db::access::add_metadata_above(tx, thread, &mut facts).await?;
            }
            if let Some(assignee) = &wanted.assignee {
                facts.is_assigned = db::interrupts::is_assigned_any(tx, thread, assignee).await?;
            }
            Ok(Some(facts))
        }
        ResourceRef::Assistant(assistant) => db::access::assistant_facts(tx, assistant, with_metadata).await,
        ResourceRef::Cron(cron) => db::access::cron_facts(tx, cron).await,
        ResourceRef::Delivery(delivery) => db::access::delivery_facts(tx, delivery).await,
    }
}
