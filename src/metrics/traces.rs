//! The counters of the export of traces.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The reason why spans were dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DropReason {
    /// The queue was full.
    QueueFull,
    /// The collector could not be reached, or answered with an error.
    NotDelivered,
    /// The collector has rejected them.
    Rejected,
}

impl DropReason {
    const ALL: [Self; 3] = [Self::QueueFull, Self::NotDelivered, Self::Rejected];

    fn word(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::NotDelivered => "not_delivered",
            Self::Rejected => "rejected",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DropLabels {
    reason: &'static str,
}

/// The counters of spans.
pub struct TraceMetrics {
    exported: Counter,
    dropped: Family<DropLabels, Counter>,
}

impl TraceMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let exported = Counter::default();
        let dropped: Family<DropLabels, Counter> = Family::default();
        // A rate needs the zero before the first drop.
        for reason in DropReason::ALL {
            drop(dropped.get_or_create(&DropLabels { reason: reason.word() }));
        }
        let text = "Spans that the collector has taken";
        registry.register("adjutant_trace_spans_exported", text, exported.clone());
        let text = "Spans that were dropped instead of being exported";
        registry.register("adjutant_trace_spans_dropped", text, dropped.clone());
        Self { exported, dropped }
    }

    /// Counts spans that the collector has taken.
    pub fn exported(&self, spans: usize) {
        self.exported.inc_by(u64::try_from(spans).unwrap_or(u64::MAX));
    }

    /// Counts spans that were dropped.
    pub fn dropped(&self, reason: DropReason, spans: usize) {
        let labels = DropLabels { reason: reason.word() };
        let spans = u64::try_from(spans).unwrap_or(u64::MAX);
        self.dropped.get_or_create(&labels).inc_by(spans);
    }
}
