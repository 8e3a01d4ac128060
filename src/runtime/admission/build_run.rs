//! The run of a request, with its settings, its metadata and its account.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::agent::assemble::RegisteredAgent;
use crate::db::runs::RunBefore;
use crate::db::{self, DbResult, Tx};
use crate::domain::Invalid;
use crate::domain::access::Ownership;
use crate::domain::account::{Account, RunQueue};
use crate::domain::assistant::{Assistant, AssistantSettings, RunSettings};
use crate::domain::background::TaskLineage;
use crate::domain::id::RunId;
use crate::domain::identity::Credential;
use crate::domain::metadata;
use crate::domain::run::{AssignedAgent, Command, Lineage, Run, RunRequest, RunStatus, SERVER_KEYS};
use crate::domain::run_config::{configurable, set_configurable};
use crate::domain::thread::Thread;
use crate::domain::time::Timestamp;
use crate::runtime::new_run::{NewRun, PARENT_RUN, Resolution, Target};
use crate::runtime::registry::ResolvedAssistant;

/// Returns the run of a request.
pub(super) fn build_run(
    id: RunId,
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    thread: &Thread,
    run_settings: RunSettings,
    now: Timestamp,
) -> Run {
    let Assistant {
        id: assistant,
        version,
        settings,
        ..
    } = &resolved.assistant;
    let mut metadata = metadata_of(new_run, settings, thread);
    let own = [
        ("graph_id", settings.graph_id.clone()),
        ("assistant_id", assistant.to_string()),
    ];
    metadata.extend(own.map(|(key, value)| (key.to_owned(), value.into())));
    let RunSettings { config, context } = run_settings;
    let mut request = RunRequest {
        temporary: new_run.target == Target::Stateless { keep: false },
        config,
        context,
        agent: Some(AssignedAgent {
            graph_id: settings.graph_id.clone(),
            version: *version,
            definition: Some(resolved.known.digest.clone()),
        }),
        ..new_run.request.clone()
    };
    if is_on_behalf_of_caller(new_run, thread) {
        request.assign_to(&new_run.caller);
    }
    Run {
        id,
        thread: thread.id,
        assistant: *assistant,
        lineage: Lineage::root(id, &resolved.known.name),
        status: RunStatus::Pending,
        request,
        metadata,
        error: None,
        attempt: 1,
        created_at: now,
        updated_at: now,
        due_at: now.plus(new_run.after),
        queue: RunQueue::default(),
    }
}

/// Returns the settings of the run: those of the request, and the assistant's settings where the request has none. An
/// answer without a context keeps the context of the thread's last run; one with a context keeps what that run has chosen,
/// unless it chooses anew. Choices that the agent does not allow are left out, unless the run is a part of a background task.
pub(in crate::runtime) fn settings(
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    thread: &Thread,
    is_of_task: bool,
) -> RunSettings {
    let RunRequest { config, context, .. } = &new_run.request;
    let assistant = &resolved.assistant.settings;
    let before = configurable(&thread.config);
    let Some(before) = before.filter(|_| resumes_work(new_run)) else {
        return assistant.as_defaults_for(config, context);
    };
    let keeps_context = context.is_empty() && !before.is_empty();
    let mut before = Cow::Borrowed(before);
    // The answer may name another agent, and another definition may have the name of a deleted one.
    if !is_of_task && resolved.known.check_choices(&before).is_err() {
        before.to_mut().retain(|name, value| {
            let alone = Map::from_iter([(name.clone(), value.clone())]);
            resolved.known.check_choices(&alone).is_ok()
        });
    }
    if keeps_context {
        let mut config = config.clone();
        set_configurable(&mut config, Map::clone(&before));
        return assistant.as_defaults_for(&config, &before);
    }
    let mut settings = assistant.as_defaults_for(config, context);
    // The work goes on with the model, the tools and the instructions with which it began.
    for name in resolved
        .known
        .choice_names()
        .filter(|name| !context.contains_key(*name))
    {
        settings.put(name, before.get(name));
    }
    settings
}

/// Returns whether a request continues the work that waits on its thread.
fn resumes_work(new_run: &NewRun) -> bool {
    let is_resumed = new_run.resume.is_some() || new_run.request.command.as_ref().is_some_and(Command::resumes);
    is_resumed || new_run.request.compaction.is_some()
}

/// Returns the lineage of the background task of which a run on this thread is a part, if it is a part of one.
pub(in crate::runtime) async fn task_lineage(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    thread: &Thread,
) -> DbResult<Option<TaskLineage>> {
    if let Some(lineage) = &new_run.request.background {
        return Ok(Some(lineage.clone()));
    }
    // Clients and other servers write this key, too, so it says only where a task is looked for.
    if !thread.metadata.contains_key("parent_thread_id") {
        return Ok(None);
    }
    Ok(db::background::find(tx, thread.id).await?.map(|record| record.ancestry))
}

/// Returns an agent with what a run chooses. The run of a background task chooses nothing: its context is that of the agent
/// that started it.
///
/// # Errors
/// Names the entry of the context that chooses something that is not allowed.
pub(in crate::runtime) fn with_choices(
    known: &Arc<RegisteredAgent>,
    is_of_task: bool,
    context: &Map<String, Value>,
) -> Result<Arc<RegisteredAgent>, Invalid> {
    match is_of_task {
        true => Ok(Arc::clone(known)),
        false => known.configured(context),
    }
}

/// Makes a run on the thread of a background task a part of the task.
pub(super) fn join_task(run: &mut Run, task: Option<TaskLineage>, known: &RegisteredAgent) {
    let Some(task) = task else { return };
    // A compaction is no part of the task, and its end is not that of the task. It chooses nothing all the same.
    if run.request.compaction.is_some() {
        let context = &mut run.request.context;
        context.retain(|name, _| known.choice_names().all(|choice| choice != name));
        return;
    }
    run.lineage.visibility = task.visibility;
    run.request.background = Some(task);
}

/// Returns the metadata of a run: the entries of its assistant, of its thread, of its `config` and of the request. A
/// later entry replaces an earlier one.
fn metadata_of(new_run: &NewRun, assistant: &AssistantSettings, thread: &Thread) -> Map<String, Value> {
    let in_config = |config: &Map<String, Value>| match config.get("metadata") {
        Some(Value::Object(metadata)) => metadata.clone(),
        Some(_) | None => Map::new(),
    };
    let with = |of_thread: Map<String, Value>| {
        let mut metadata = in_config(&assistant.config);
        metadata.extend(assistant.metadata.clone());
        metadata.extend(of_thread);
        metadata.extend(in_config(&new_run.request.config));
        metadata.extend(new_run.metadata.clone());
        metadata
    };
    let of_thread = thread.metadata.iter().filter(|(key, _)| is_for_runs(key));
    let of_thread: Map<String, Value> = of_thread.map(|(key, value)| (key.clone(), value.clone())).collect();
    if of_thread.is_empty() {
        return with(of_thread);
    }
    let whole = with(of_thread);
    // The metadata are stored with every run and sent with every piece of an answer.
    match metadata::check(&whole) {
        Ok(()) => whole,
        Err(_) => with(Map::new()),
    }
}

/// Returns whether runs have a key of the metadata of their thread. Those by which servers know the runs that they have
/// started themselves are not for other runs on the thread.
fn is_for_runs(key: &str) -> bool {
    key != PARENT_RUN && !key.starts_with(SERVER_KEYS)
}

/// Returns whether a run works on behalf of its caller. An approver of another user's thread decides, and the agent
/// goes on working on behalf of the owner.
fn is_on_behalf_of_caller(new_run: &NewRun, thread: &Thread) -> bool {
    let caller = &new_run.caller;
    match new_run.resume {
        Some(Resolution::AnsweredAlone(..)) => thread.ownership == Ownership::of(caller),
        Some(_) | None => caller.credential != Credential::Server,
    }
}

/// Gives a run the priority and the user of the run whose work it continues.
pub(super) fn take_over(run: &mut Run, before: RunBefore, new_run: &NewRun, thread: &Thread) {
    run.queue.priority = run.queue.priority.max(before.queue.priority);
    // The server continues work on the thread, or an approver has decided: on behalf of the same user as before.
    if !is_on_behalf_of_caller(new_run, thread) && run.request.caller.is_none() {
        run.request.caller = before.caller;
    }
}

/// Returns the account on whose behalf a run works: that of the run which it continues, else that of the caller, or of
/// the owner of the thread if the server itself starts the run.
pub(super) fn account_of(new_run: &NewRun, before: Option<&RunBefore>, thread: &Thread) -> Account {
    match before {
        Some(before) => before.queue.account.clone(),
        None if new_run.caller.credential == Credential::Server => Account::of_owner(&thread.ownership),
        None => Account::of(&new_run.caller),
    }
}

/// Returns whether the server itself continues work that was admitted before. Quotas do not hold that up; its model
/// calls are checked like all others.
pub(super) fn is_continuation(new_run: &NewRun) -> bool {
    new_run.caller.credential == Credential::Server && new_run.request.input.is_none()
}
