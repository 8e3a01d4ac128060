//! Permission for a run: whether its caller may run the assistant, and may do so on the thread. Refusals are recorded.

use std::sync::Arc;

use crate::db::{self, Tx};
use crate::domain::access::{Action, Ownership, Reach, ResourceFacts, reach};
use crate::domain::assistant::Assistant;
use crate::domain::id::ThreadId;
use crate::domain::identity::{Identity, Tenant};
use crate::domain::run::RunCaller;
use crate::domain::thread::Thread;
use crate::runtime::access::{self, Denial};
use crate::runtime::audit;
use crate::runtime::cancel_action::CancelAction;
use crate::runtime::error::StartError;
use crate::runtime::new_run::{AssistantRef, NewRun, Resolution};
use crate::runtime::registry::ResolvedAssistant;
use crate::runtime::resource_ref::ResourceRef;
use crate::runtime::shared::Core;

/// Returns the assistant that a request names, if it exists for the caller. Otherwise the refusal is recorded: an
/// assistant of another tenant is not even read where the database guards its rows.
pub(in crate::runtime) async fn find_assistant(
    tx: &mut Tx<'_>,
    wanted: &AssistantRef,
    caller: &Identity,
    core: &Arc<Core>,
) -> Result<ResolvedAssistant, StartError> {
    let resolved = core.registry.resolve(tx, wanted).await;
    check_assistant(resolved, wanted, caller, core)
}

/// Returns the assistant that a request names as [`find_assistant`] does, after it was looked for.
pub(super) fn check_assistant(
    resolved: Result<ResolvedAssistant, StartError>,
    wanted: &AssistantRef,
    caller: &Identity,
    core: &Arc<Core>,
) -> Result<ResolvedAssistant, StartError> {
    if caller.is_unrestricted() {
        return resolved;
    }
    if let (Err(StartError::NoAssistant(_)), AssistantRef::Id(id)) = (&resolved, wanted) {
        let resource = ResourceRef::Assistant(*id).to_string();
        audit::record_refusal(core, caller, Action::AssistantsRead, resource, &[]);
    }
    let resolved = resolved?;
    let assistant = &resolved.assistant;
    let facts = facts_of(assistant);
    let action = Action::AssistantsRead;
    let decided = access::decide(core, caller, action, &facts);
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Assistant(assistant.id), &denial);
        let agents = core.registry.agents_of(&caller.tenant);
        StartError::NoAssistant(match wanted {
            // The same as for a name that no tenant has.
            AssistantRef::Graph(graph_id) if !agents.contains(graph_id) => graph_id.clone(),
            AssistantRef::Graph(_) | AssistantRef::Id(_) => assistant.id.to_string(),
        })
    })?;
    Ok(resolved)
}

/// Checks whether a tenant may run the agent of an assistant, with all of its models. A refusal of a user is recorded.
pub(in crate::runtime) fn check_tenant(
    resolved: &ResolvedAssistant,
    tenant: &Tenant,
    user: &Identity,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let assistant = resolved.assistant.id;
    let refused = || {
        if !user.is_unrestricted() {
            let resource = ResourceRef::Assistant(assistant).to_string();
            audit::record_refusal(core, user, Action::ThreadsCreateRun, resource, &[]);
        }
    };
    let known = core.registry.for_tenant(&resolved.known, tenant);
    let Some(known) = known.filter(|_| !resolved.is_of_another(tenant)) else {
        refused();
        return Err(StartError::NoAgent {
            assistant,
            graph_id: resolved.known.graph_id.clone(),
        });
    };
    known.check_models().map_err(|error| {
        refused();
        StartError::ModelNotAllowed(error.to_string())
    })
}

/// Records that a caller was refused.
fn record_denial(core: &Arc<Core>, caller: &Identity, action: Action, resource: ResourceRef, denial: &Denial) {
    audit::record_refusal(core, caller, action, resource.to_string(), &denial.policies);
}

/// Checks whether the caller may start a run on a thread, or answer its interrupts, and write into its state if the run does so
/// by a command.
pub(super) async fn check_thread(
    tx: &mut Tx<'_>,
    thread: &Thread,
    new_run: &NewRun,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let caller = &new_run.caller;
    if caller.is_unrestricted() {
        return Ok(());
    }
    let action = match new_run.resume {
        Some(_) => Action::InterruptsResolve,
        None => Action::ThreadsCreateRun,
    };
    let is_assigned = match &new_run.resume {
        Some(Resolution::AnsweredAlone(id, _)) => {
            let found = db::interrupts::find(tx, thread.id, id).await?;
            found.is_some_and(|record| {
                let approvers = &record.interrupt.question.approvers;
                approvers.contains(&caller.user, &caller.roles)
            })
        }
        Some(_) | None => false,
    };
    let decided = access::decide_about_thread(tx, core, caller, action, thread, is_assigned).await?;
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Thread(thread.id), &denial);
        refusal(&denial, action, thread.id)
    })?;
    match new_run.request.brings_update() {
        true => check_update(tx, thread, caller, core).await,
        false => Ok(()),
    }
}

/// Checks whether the caller of a run may write into the state of a thread, as for a write without a run.
pub(in crate::runtime) async fn check_update(
    tx: &mut Tx<'_>,
    thread: &Thread,
    caller: &Identity,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let action = Action::ThreadsUpdate;
    let decided = access::decide_about_thread(tx, core, caller, action, thread, false).await?;
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Thread(thread.id), &denial);
        match reach(caller, action) {
            // The scopes of a key are no secret to whoever has it.
            Reach::Nothing if !denial.is_by_policy => StartError::Forbidden(action),
            Reach::Nothing | Reach::Assigned | Reach::Own | Reach::Tenant | Reach::Server => {
                refusal(&denial, action, thread.id)
            }
        }
    })
}

/// Returns the refusal of a run because of a denial on its thread.
fn refusal(denial: &Denial, action: Action, thread: ThreadId) -> StartError {
    match denial.is_by_policy {
        true => StartError::ForbiddenByPolicy(action),
        false => StartError::NoThread(thread),
    }
}

/// Checks whether the caller may displace the run at work on a thread. A rollback deletes that run, so on the thread of
/// another owner it needs the right to delete.
pub(super) async fn check_displacing(
    tx: &mut Tx<'_>,
    thread: &Thread,
    new_run: &NewRun,
    displacing: CancelAction,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    check_by_policies(tx, thread, new_run, Action::ThreadsUpdate, core).await?;
    if displacing == CancelAction::Interrupt {
        return Ok(());
    }
    let action = Action::ThreadsDelete;
    let caller = &new_run.caller;
    if caller.is_unrestricted() || thread.ownership == Ownership::of(caller) {
        return check_by_policies(tx, thread, new_run, action, core).await;
    }
    let decided = access::decide_about_thread(tx, core, caller, action, thread, false).await?;
    decided.map_err(|denial| {
        record_denial(core, caller, action, ResourceRef::Thread(thread.id), &denial);
        refusal(&denial, action, thread.id)
    })
}

/// Checks that no policy forbids the caller what a run does besides: it creates its thread, or displaces another run.
pub(super) async fn check_by_policies(
    tx: &mut Tx<'_>,
    thread: &Thread,
    new_run: &NewRun,
    action: Action,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let caller = &new_run.caller;
    if caller.is_unrestricted() {
        return Ok(());
    }
    refuse_by_policies(tx, thread, caller, action, core).await
}

/// Refuses to run an assistant for a user who may not read it, and records it.
pub(in crate::runtime) fn refuse_assistant(
    assistant: &Assistant,
    user: &RunCaller,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let action = Action::AssistantsRead;
    let decided = access::decide(core, &user.to_restricted_identity(), action, &facts_of(assistant));
    decided.map_err(|denial| {
        let resource = ResourceRef::Assistant(assistant.id);
        record_denial(core, &user.to_identity(), action, resource, &denial);
        StartError::NoAssistant(assistant.id.to_string())
    })
}

fn facts_of(assistant: &Assistant) -> ResourceFacts {
    ResourceFacts {
        ownership: assistant.ownership.clone(),
        metadata: assistant.settings.metadata.clone(),
        graph_id: Some(assistant.settings.graph_id.clone()),
        ..ResourceFacts::default()
    }
}

/// Refuses what policies forbid a user to do on a thread, and records it.
pub(in crate::runtime) async fn refuse_by_policies(
    tx: &mut Tx<'_>,
    thread: &Thread,
    user: &Identity,
    action: Action,
    core: &Arc<Core>,
) -> Result<(), StartError> {
    let Some(denial) = access::denial_about_thread(tx, core, user, action, thread).await? else {
        return Ok(());
    };
    record_denial(core, user, action, ResourceRef::Thread(thread.id), &denial);
    Err(refusal(&denial, action, thread.id))
}
