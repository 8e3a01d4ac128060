//! The export of traces, from the configuration.

use std::sync::Arc;

use anyhow::Context;

use crate::config::{OtlpProtocol, TelemetrySection};
use crate::domain::time::Clock;
use crate::domain::trace::{Sampler, SpanSink, TraceSettings, Tracer};
use crate::metrics::Metrics;
use crate::shutdown::Shutdown;
use crate::telemetry::{ExportSettings, OtlpEncoding, Telemetry};

/// Opens the export of traces, if the configuration has a collector.
pub(super) fn open(
    section: &TelemetrySection,
    metrics: &Metrics,
    shutdown: &Shutdown,
) -> anyhow::Result<Option<Arc<Telemetry>>> {
    let Some(endpoint) = &section.otlp_endpoint else {
        return Ok(None);
    };
    let settings = ExportSettings {
        endpoint: endpoint.clone(),
        is_whole: section.is_whole_endpoint,
        encoding: match section.protocol {
            OtlpProtocol::HttpProtobuf => OtlpEncoding::Protobuf,
            OtlpProtocol::HttpJson => OtlpEncoding::Json,
        },
        headers: section.headers.clone(),
        resource: section.attributes(),
        timeout: section.timeout(),
        interval: section.export_interval(),
        queue: section.queue_size,
        batch: section.batch_size,
        shutdown: section.shutdown(),
    };
    let opened = Telemetry::open(settings, metrics);
    let (telemetry, exporting) = opened.context("[telemetry] cannot be used")?;
    // It outlives the soft signal: the last spans end with the last runs.
    drop(shutdown.spawn("traces", exporting));
    Ok(Some(telemetry))
}

/// Returns the tracer of the server, which is off without an export.
pub(super) fn tracer(section: &TelemetrySection, telemetry: Option<&Arc<Telemetry>>, clock: &Arc<dyn Clock>) -> Tracer {
    let Some(telemetry) = telemetry else {
        return Tracer::default();
    };
    let settings = TraceSettings {
        sampler: Sampler {
            ratio: section.sample_ratio,
            is_parent_based: section.is_parent_based,
        },
        content_bytes: section.capture_content.then_some(section.max_content_bytes),
        reaches_models: section.propagate_to_models,
    };
    let sink: Arc<dyn SpanSink> = Arc::clone(telemetry) as Arc<dyn SpanSink>;
    Tracer::new(sink, Arc::clone(clock), settings)
}
