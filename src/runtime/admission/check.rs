//! Checks of a request against its agent.

use super::AdmissionContext;
use super::build_run::with_choices;
use crate::agent::Agent;
use crate::domain::Invalid;
use crate::domain::input::{read_input, read_update};
use crate::domain::machine::Destination;
use crate::domain::size::SizeLimits;
use crate::runtime::new_run::NewRun;
use crate::runtime::registry::ResolvedAssistant;

/// Checks a request that is admitted later, possibly more than once, as far as that is possible in advance. Checks that
/// were made before the write are not repeated.
pub(in crate::runtime) fn check_ahead(
    new_run: &NewRun,
    resolved: &ResolvedAssistant,
    context: &AdmissionContext,
) -> Result<(), Invalid> {
    let settings = resolved
        .assistant
        .settings
        .as_defaults_for(&new_run.request.config, &new_run.request.context);
    let known = with_choices(new_run, &resolved.known, None, &settings.context)?;
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
