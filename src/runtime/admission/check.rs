//! Checks of a request against its agent.

use super::AdmissionContext;
use super::build_run::{task_lineage, with_choices};
use crate::agent::Agent;
use crate::db::Tx;
use crate::domain::Invalid;
use crate::domain::assistant::RunSettings;
use crate::domain::input::{read_input, read_update};
use crate::domain::machine::Destination;
use crate::domain::run::RunRequest;
use crate::domain::size::SizeLimits;
use crate::domain::thread::Thread;
use crate::runtime::error::StartError;
use crate::runtime::new_run::NewRun;
use crate::runtime::registry::ResolvedAssistant;

/// Replaces the agent of a request that is admitted later by the agent with the choices of the request. `thread` is the
/// thread of the request, if it exists already.
///
/// # Errors
/// As [`with_choices`].
pub(in crate::runtime) async fn choose_ahead(
    tx: &mut Tx<'_>,
    new_run: &NewRun,
    resolved: &mut ResolvedAssistant,
    thread: Option<&Thread>,
) -> Result<(), StartError> {
    let task = match thread {
        Some(thread) => task_lineage(tx, new_run, thread).await?,
        None => None,
    };
    let settings = settings_ahead(new_run, resolved);
    resolved.known = with_choices(&resolved.known, task.is_some(), &settings.context)?;
    Ok(())
}

/// Checks a request that is admitted later, possibly more than once, as far as that is possible in advance. The
/// agent has the choices of the request, see [`choose_ahead`]. Checks that were made before the write are not repeated.
pub(in crate::runtime) fn check_ahead(
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    context: &AdmissionContext,
) -> Result<(), Invalid> {
    let settings = settings_ahead(new_run, resolved);
    let known = &resolved.known;
    if !context.has_checked(0, &known.digest) {
        check(new_run, known.agent(), context.core.sizes)?;
    }
    match known.agent().context() {
        Some(schema) if !context.has_checked_context(0, &known.digest, &settings.context) => {
            schema.check(&settings.context)
        }
        Some(_) | None => Ok(()),
    }
}

/// Returns the settings of a request that is admitted later, as far as they are known in advance.
fn settings_ahead(new_run: &NewRun, resolved: &ResolvedAssistant) -> RunSettings {
    let RunRequest { config, context, .. } = &new_run.request;
    resolved.assistant.settings.as_defaults_for(config, context)
}

/// Checks a request against the agent alone.
pub(in crate::runtime) fn check(new_run: &NewRun, agent: &Agent, sizes: SizeLimits) -> Result<(), Invalid> {
    if let Some(input) = &new_run.request.input {
        let input = read_input(input)?;
        sizes.check_brought(&input, "input")?;
        agent.declared.check_input(&input)?;
        agent.check_content(&input)?;
    }
    if new_run.request.compaction.is_some() && agent.model_loop().is_none_or(|own| own.summarization.is_none()) {
        let reason = "is of an agent whose conversation is not summarised (`summarization = false`)";
        return Err(Invalid::new("thread_id", reason));
    }
    if let Some(command) = &new_run.request.command {
        if let Some(update) = &command.update {
            read_update(update)
                .and_then(|update| {
                    sizes.check_brought(&update, "values")?;
                    agent.check_update(&update)
                })
                .map_err(|error| Invalid {
                    field: format!("command.update.{}", error.field),
                    ..error
                })?;
        }
        Destination::of(&command.goto, &agent.plan)?;
    }
    Ok(())
}
