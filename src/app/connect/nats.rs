//! The check of NATS, which carries pieces of answers between servers.

use super::{CheckOutcome, PlannedCheck};
use crate::app::nats_settings;
use crate::config::Config;
use crate::events::live::nats::check;

pub(super) fn plan(config: &Config) -> anyhow::Result<Option<PlannedCheck>> {
    let Some(settings) = nats_settings(&config.cluster)? else {
        return Ok(None);
    };
    let name = settings.servers.to_string();
    let wants_stream = settings.stream_bytes > 0;
    Ok(Some(PlannedCheck::new("nats", name, async move {
        match check(&settings).await {
            Ok(abilities) if abilities.jetstream => CheckOutcome::ok("answers, and has JetStream"),
            Ok(_) if !wants_stream => CheckOutcome::ok("answers; no stream is wanted"),
            Ok(_) => CheckOutcome::warn(
                "answers, but has no JetStream: it keeps no pieces for readers who join in the middle of an answer, so \
                 servers send them again",
                "start nats-server with `-js`, or set `nats_stream_bytes = 0` in [cluster]",
            ),
            Err(problem) => CheckOutcome::fail(problem.message, problem.advice),
        }
    })))
}
