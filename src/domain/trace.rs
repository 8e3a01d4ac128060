//! Traces: the spans of OpenTelemetry, their contexts as W3C Trace Context writes them, and the tracer that records them.
//!
//! Everything that works for a run has a [`TraceScope`]. It makes spans below the current one, and it does nothing when
//! traces are off or the trace is not sampled. Where the spans go is the business of a [`SpanSink`].

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::id::{RunId, TaskId};
use super::time::{Clock, Timestamp};

/// The longest `tracestate` that is taken over, in bytes: what the specification asks servers to keep at least.
const MAX_STATE_BYTES: usize = 512;
/// The number of random bits of a trace id from which the sampler decides: as many as a float holds exactly.
const RANDOM_BITS: u32 = 53;

/// The id of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

/// The id of a span.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

impl TraceId {
    /// Creates a random id.
    #[expect(clippy::disallowed_methods, reason = "ids of traces are random and have no order")]
    pub fn mint() -> Self {
        Self(*Uuid::new_v4().as_bytes())
    }

    /// Returns the number by which the sampler decides, the same in every process.
    fn randomness(self) -> u64 {
        let [.., a, b, c, d, e, f, g] = self.0;
        // The last 56 bits of an id are random, by the specification.
        u64::from_be_bytes([0, a, b, c, d, e, f, g]) >> (56 - RANDOM_BITS)
    }
}

impl SpanId {
    /// Creates a random id.
    #[expect(clippy::disallowed_methods, reason = "ids of spans are random and have no order")]
    pub fn mint() -> Self {
        Self::of(Uuid::new_v4())
    }

    /// Returns the id of the span of a run. It is known before the run ends, so that spans below it name it as their
    /// parent even if another process ends the run.
    pub fn of_run(run: RunId) -> Self {
        Self::of(run.0)
    }

    /// Returns the id of the span of a subagent's run, while a run of the main agent drives it.
    pub fn of_child(child: RunId, root: RunId) -> Self {
        Self::of(Uuid::new_v5(&child.0, root.0.as_bytes()))
    }

    /// Returns the id of the span of a tool call, while a run of the main agent makes it.
    pub fn of_call(task: TaskId, root: RunId) -> Self {
        Self::of(Uuid::new_v5(&task.0, root.0.as_bytes()))
    }

    /// Returns the last bytes of a UUID, which are its random ones. They are never all zero.
    fn of(uuid: Uuid) -> Self {
        let [.., a, b, c, d, e, f, g, h] = *uuid.as_bytes();
        Self([a, b, c, d, e, f, g, h])
    }
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

/// The context of a span, as it is passed on to other processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "StoredContext", into = "StoredContext")]
pub struct SpanContext {
    /// The trace.
    pub trace: TraceId,
    /// The span.
    pub span: SpanId,
    /// True if the spans of the trace are recorded.
    pub is_sampled: bool,
    /// The `tracestate` of the systems before this one.
    pub state: Option<Arc<str>>,
}

/// A context in JSON: the two headers of W3C Trace Context.
#[derive(Serialize, Deserialize)]
struct StoredContext {
    traceparent: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    tracestate: Option<String>,
}

impl TryFrom<StoredContext> for SpanContext {
    type Error = &'static str;

    fn try_from(stored: StoredContext) -> Result<Self, Self::Error> {
        Self::parse(&stored.traceparent, stored.tracestate.as_deref()).ok_or("is not a `traceparent`")
    }
}

impl From<SpanContext> for StoredContext {
    fn from(context: SpanContext) -> Self {
        Self {
            traceparent: context.traceparent(),
            tracestate: context.state.as_deref().map(str::to_owned),
        }
    }
}

impl SpanContext {
    /// Parses the headers `traceparent` and `tracestate`; none if `traceparent` is not valid. A `tracestate` that is not
    /// valid or too long is left out.
    pub fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<Self> {
        let mut parts = traceparent.split('-');
        let version = hex_bytes::<1>(parts.next()?)?;
        let trace = hex_bytes::<16>(parts.next()?)?;
        let span = hex_bytes::<8>(parts.next()?)?;
        let flags = hex_bytes::<1>(parts.next()?)?;
        // Later versions may have further parts; the first version has none.
        let is_valid = version != [0xff] && (version != [0] || parts.next().is_none());
        if !is_valid || trace == [0; 16] || span == [0; 8] {
            return None;
        }
        let [flags] = flags;
        Some(Self {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & 1 == 1,
            state: tracestate.filter(|state| is_state(state)).map(Arc::from),
        })
    }

    /// Returns the header `traceparent`.
    pub fn traceparent(&self) -> String {
        format!("00-{}-{}-0{}", self.trace, self.span, u8::from(self.is_sampled))
    }

    /// Returns the headers that pass the context on.
    pub fn headers(&self) -> impl Iterator<Item = (&'static str, String)> {
        let state = self.state.as_deref().map(|state| ("tracestate", state.to_owned()));
        [("traceparent", self.traceparent())].into_iter().chain(state)
    }

    /// Returns the context of another span of the same trace.
    pub fn at(&self, span: SpanId) -> Self {
        Self { span, ..self.clone() }
    }
}

/// Reads lower-case hexadecimal digits of a fixed number.
fn hex_bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let is_lower = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let mut bytes = [0; N];
    let is_hex = text.len() == 2 * N && text.bytes().all(is_lower);
    (is_hex && hex::decode_to_slice(text, &mut bytes).is_ok()).then_some(bytes)
}

/// Returns whether a `tracestate` can be passed on in a header.
fn is_state(state: &str) -> bool {
    let is_text = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    !state.trim().is_empty() && state.len() <= MAX_STATE_BYTES && state.bytes().all(is_text)
}

/// The place of a run in a trace, as it is stored with the run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunTrace {
    /// The context of the run's own span.
    pub context: SpanContext,
    /// The span above it in the same trace; none if the run begins the trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<SpanContext>,
    /// The span of another trace that caused the run, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub link: Option<SpanContext>,
}

impl RunTrace {
    /// Returns the place of a run below the span `parent`.
    pub fn below(parent: SpanContext, run: RunId) -> Self {
        Self {
            context: parent.at(SpanId::of_run(run)),
            parent: Some(parent),
            link: None,
        }
    }

    /// Returns the place of a run that begins a trace.
    pub fn root(context: &SpanContext, run: RunId) -> Self {
        Self {
            context: context.at(SpanId::of_run(run)),
            parent: None,
            link: None,
        }
    }
}

/// The kind of a span, as in OpenTelemetry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpanKind {
    /// Work inside the server.
    Internal,
    /// The handling of a request.
    Server,
    /// A request to another system.
    Client,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq)]
pub enum AttributeValue {
    /// A text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// A truth value.
    Flag(bool),
    /// A list of texts.
    Texts(Vec<String>),
    /// A number.
    Decimal(f64),
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for AttributeValue {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for AttributeValue {
    fn from(number: usize) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<bool> for AttributeValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

/// A span that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct SpanData {
    /// Its own context.
    pub context: SpanContext,
    /// The span above it, if there is one.
    pub parent: Option<SpanId>,
    /// The name.
    pub name: String,
    /// The kind.
    pub kind: SpanKind,
    /// The time at which the work began.
    pub start: Timestamp,
    /// The time at which the work ended.
    pub end: Timestamp,
    /// The attributes.
    pub attributes: Vec<(&'static str, AttributeValue)>,
    /// Spans of other traces that belong to it.
    pub links: Vec<SpanContext>,
    /// The class of the error with which the work ended, if it failed. It is also the attribute `error.type`.
    pub error: Option<String>,
}

impl SpanData {
    /// Adds an attribute.
    pub fn set(&mut self, key: &'static str, value: impl Into<AttributeValue>) {
        self.attributes.push((key, value.into()));
    }

    /// Adds an attribute, if it has a value.
    pub fn set_some(&mut self, key: &'static str, value: Option<impl Into<AttributeValue>>) {
        if let Some(value) = value {
            self.set(key, value);
        }
    }

    /// Marks the span as failed, with the class of the error.
    pub fn fail(&mut self, class: impl Into<String>) {
        self.error = Some(class.into());
    }
}

/// Takes spans that have ended. It must return at once.
pub trait SpanSink: Send + Sync {
    /// Takes a span. A span that cannot be taken is dropped.
    fn record(&self, span: SpanData);
}

/// The decision which traces are recorded.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampler {
    /// The part of the traces that is recorded, from 0 to 1.
    pub ratio: f64,
    /// True if a trace that another system began is recorded if and only if that system records it.
    pub is_parent_based: bool,
}

impl Sampler {
    /// Decides about a trace.
    fn samples(self, trace: TraceId, parent: Option<&SpanContext>) -> bool {
        match parent {
            Some(parent) if self.is_parent_based => parent.is_sampled,
            Some(_) | None => {
                let all = 2.0_f64.powi(RANDOM_BITS.cast_signed());
                to_float(trace.randomness()) >= (1.0 - self.ratio.clamp(0.0, 1.0)) * all
            }
        }
    }
}

/// Converts a number of at most 53 bits, which a float holds exactly.
fn to_float(number: u64) -> f64 {
    let high = u32::try_from(number >> 32).unwrap_or(u32::MAX);
    let low = u32::try_from(number & u64::from(u32::MAX)).unwrap_or(u32::MAX);
    f64::from(high) * 2.0_f64.powi(32) + f64::from(low)
}

/// The settings of traces.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceSettings {
    /// The choice of the traces that are recorded.
    pub sampler: Sampler,
    /// The most bytes of contents in one attribute; none if spans have no contents.
    pub content_bytes: Option<usize>,
    /// True if model providers get the context of the trace.
    pub reaches_models: bool,
}

struct TracerParts {
    sink: Arc<dyn SpanSink>,
    clock: Arc<dyn Clock>,
    settings: TraceSettings,
}

/// Begins traces, and records spans. The default one is off and does nothing. Cheap to clone.
#[derive(Clone, Default)]
pub struct Tracer(Option<Arc<TracerParts>>);

impl Tracer {
    /// Creates a tracer that is on.
    pub fn new(sink: Arc<dyn SpanSink>, clock: Arc<dyn Clock>, settings: TraceSettings) -> Self {
        Self(Some(Arc::new(TracerParts { sink, clock, settings })))
    }

    /// Returns whether traces are on.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Begins a span at an entrance of the server: below `parent`, if the caller sent one, or in a new trace. Returns
    /// none if traces are off.
    pub fn begin_server_span(&self, parent: Option<&SpanContext>) -> Option<SpanContext> {
        let parts = self.0.as_ref()?;
        let trace = parent.map_or_else(TraceId::mint, |parent| parent.trace);
        Some(SpanContext {
            trace,
            span: SpanId::mint(),
            is_sampled: parts.settings.sampler.samples(trace, parent),
            state: parent.and_then(|parent| parent.state.clone()),
        })
    }

    /// Returns the scope of work in the span `context`.
    pub fn scope(&self, context: Option<SpanContext>) -> TraceScope {
        let context = context.filter(|_| self.is_on());
        TraceScope {
            tracer: self.clone(),
            context: context.map(Arc::new),
        }
    }
}

/// The current span of some work. Cheap to clone.
#[derive(Clone, Default)]
pub struct TraceScope {
    tracer: Tracer,
    context: Option<Arc<SpanContext>>,
}

impl TraceScope {
    /// Returns the context of the current span, which requests to other systems pass on.
    pub fn context(&self) -> Option<&SpanContext> {
        self.context.as_deref()
    }

    /// Returns the context for a model provider, if the settings allow to pass it on.
    pub fn model_context(&self) -> Option<&SpanContext> {
        let parts = self.tracer.0.as_ref()?;
        self.context().filter(|_| parts.settings.reaches_models)
    }

    /// Returns the context, if the spans of the trace are recorded.
    fn recorded(&self) -> Option<(&Arc<TracerParts>, &Arc<SpanContext>)> {
        let parts = self.tracer.0.as_ref()?;
        let context = self.context.as_ref().filter(|context| context.is_sampled)?;
        Some((parts, context))
    }

    /// Returns whether spans are recorded here.
    pub fn is_recorded(&self) -> bool {
        self.recorded().is_some()
    }

    /// Returns the most bytes of contents in one attribute; none if spans here have no contents.
    pub fn content_bytes(&self) -> Option<usize> {
        self.recorded()?.0.settings.content_bytes
    }

    /// Returns the scope of work in the span with this id, in the same trace. Without a trace the id is not made.
    pub fn at(&self, span: impl FnOnce() -> SpanId) -> Self {
        let context = self.context.as_ref().map(|context| Arc::new(context.at(span())));
        Self {
            tracer: self.tracer.clone(),
            context,
        }
    }

    /// Begins a span below the current one. Returns none if it would not be recorded.
    pub fn begin(&self, kind: SpanKind) -> Option<SpanData> {
        self.begin_as(SpanId::mint, kind)
    }

    /// Begins a span like [`TraceScope::begin`], with this id.
    pub fn begin_as(&self, id: impl FnOnce() -> SpanId, kind: SpanKind) -> Option<SpanData> {
        let (parts, context) = self.recorded()?;
        let now = parts.clock.now();
        Some(SpanData {
            context: context.at(id()),
            parent: Some(context.span),
            name: String::new(),
            kind,
            start: now,
            end: now,
            attributes: vec![],
            links: vec![],
            error: None,
        })
    }

    /// Begins the current span itself, below `parent`. Returns none if it would not be recorded.
    pub fn begin_current(&self, parent: Option<SpanId>, kind: SpanKind) -> Option<SpanData> {
        let own = self.recorded()?.1.span;
        let span = self.begin_as(|| own, kind)?;
        Some(SpanData { parent, ..span })
    }

    /// Ends a span now, and records it.
    pub fn end(&self, span: Option<SpanData>) {
        if let (Some(mut span), Some((parts, _))) = (span, self.recorded()) {
            span.end = parts.clock.now();
            parts.sink.record(span);
        }
    }
}

impl fmt::Debug for TraceScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.context.fmt(f)
    }
}

#[cfg(test)]
mod tests;
