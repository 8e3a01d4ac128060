//! The counters of chunks of answers that servers on one Postgres send each other, over `NOTIFY` or NATS.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The reason why chunks were not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsentReason {
    /// The limit of bytes per second was reached.
    RateLimit,
    /// The chunk is too large for a message.
    TooLarge,
    /// The other servers want the chunks of too many threads.
    TooManyThreads,
    /// The database did not take them.
    Database,
    /// NATS did not take them.
    Nats,
}

impl UnsentReason {
    const ALL: [Self; 5] = [
        Self::RateLimit,
        Self::TooLarge,
        Self::TooManyThreads,
        Self::Database,
        Self::Nats,
    ];

    fn word(self) -> &'static str {
        match self {
            Self::RateLimit => "rate_limit",
            Self::TooLarge => "too_large",
            Self::TooManyThreads => "too_many_threads",
            Self::Database => "database",
            Self::Nats => "nats",
        }
    }
}

/// The reason why a message of another server was passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageFault {
    /// The other server has another version.
    OtherVersion,
    /// The message is malformed.
    Malformed,
    /// The message is encrypted under a key that this server does not have, or not encrypted although it should be.
    Sealed,
    /// This server was too slow to read it.
    Overrun,
}

impl MessageFault {
    const ALL: [Self; 4] = [Self::OtherVersion, Self::Malformed, Self::Sealed, Self::Overrun];

    fn word(self) -> &'static str {
        match self {
            Self::OtherVersion => "other_version",
            Self::Malformed => "malformed",
            Self::Sealed => "sealed",
            Self::Overrun => "overrun",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The counters of chunks for readers at other servers. Cloning copies pointers.
#[derive(Clone)]
pub struct LiveMetrics {
    messages: Counter,
    bytes: Counter,
    sent: Counter,
    received: Counter,
    unsent: Family<ReasonLabels, Counter>,
    passed_over: Family<ReasonLabels, Counter>,
    nats_disconnected: Gauge,
}

impl LiveMetrics {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let unsent: Family<ReasonLabels, Counter> = Family::default();
        // A rate needs the zero before the first one.
        for reason in UnsentReason::ALL {
            drop(unsent.get_or_create(&ReasonLabels { reason: reason.word() }));
        }
        let passed_over: Family<ReasonLabels, Counter> = Family::default();
        for fault in MessageFault::ALL {
            drop(passed_over.get_or_create(&ReasonLabels { reason: fault.word() }));
        }
        let metrics = Self {
            messages: Counter::default(),
            bytes: Counter::default(),
            sent: Counter::default(),
            received: Counter::default(),
            unsent,
            passed_over,
            nats_disconnected: Gauge::default(),
        };
        let text = "Messages with chunks of answers for other servers";
        registry.register("adjutant_live_messages_sent", text, metrics.messages.clone());
        let text = "Bytes of messages with chunks of answers for other servers";
        registry.register("adjutant_live_bytes_sent", text, metrics.bytes.clone());
        let text = "Chunks of answers that were sent to other servers";
        registry.register("adjutant_live_chunks_sent", text, metrics.sent.clone());
        let text = "Chunks of answers that were received from other servers";
        registry.register("adjutant_live_chunks_received", text, metrics.received.clone());
        let text =
            "Chunks of answers that were not sent to other servers, whose readers get them with the whole answer";
        registry.register("adjutant_live_chunks_unsent", text, metrics.unsent.clone());
        let text = "Messages of other servers that were passed over";
        registry.register("adjutant_live_messages_passed_over", text, metrics.passed_over.clone());
        let text = "1 while the server is not connected to the NATS of its configuration, 0 otherwise";
        registry.register("adjutant_nats_disconnected", text, metrics.nats_disconnected.clone());
        metrics
    }

    /// Sets whether the server is connected to the NATS of its configuration.
    pub fn nats_is_connected(&self, is_connected: bool) {
        self.nats_disconnected.set(i64::from(!is_connected));
    }

    /// Counts messages that were sent, with their size and the number of their chunks.
    pub fn sent(&self, messages: usize, bytes: usize, chunks: usize) {
        self.messages.inc_by(number(messages));
        self.bytes.inc_by(number(bytes));
        self.sent.inc_by(number(chunks));
    }

    /// Counts chunks that were received for readers here.
    pub fn received(&self, chunks: usize) {
        self.received.inc_by(number(chunks));
    }

    /// Counts chunks that were not sent.
    pub fn unsent(&self, reason: UnsentReason, chunks: usize) {
        let labels = ReasonLabels { reason: reason.word() };
        self.unsent.get_or_create(&labels).inc_by(number(chunks));
    }

    /// Counts messages that were passed over.
    pub fn passed_over(&self, fault: MessageFault, messages: u64) {
        let labels = ReasonLabels { reason: fault.word() };
        self.passed_over.get_or_create(&labels).inc_by(messages);
    }
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
