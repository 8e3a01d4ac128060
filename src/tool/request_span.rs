//! The span of a request that a tool sends to another system.

use reqwest::{RequestBuilder, StatusCode, Url};

use crate::domain::trace::{SpanContext, SpanData, SpanKind, TraceScope};

/// The span of one HTTP request, and the context that the request passes on.
pub(super) struct RequestSpan {
    span: Option<SpanData>,
    context: Option<SpanContext>,
}

impl RequestSpan {
    /// Begins the span of a POST. Its address has neither credentials nor a query, which may be secret.
    pub(super) fn begin(trace: &TraceScope, url: &Url) -> Self {
        let span = trace.begin(SpanKind::Client).map(|mut span| {
            "POST".clone_into(&mut span.name);
            span.set("http.request.method", "POST");
            span.set(
                "url.full",
                format!("{}{}", url.origin().ascii_serialization(), url.path()),
            );
            span.set_some("server.address", url.host_str());
            span.set_some("server.port", url.port_or_known_default().map(u64::from));
            span
        });
        let context = match &span {
            Some(span) => Some(&span.context),
            None => trace.context(),
        };
        Self {
            context: context.cloned(),
            span,
        }
    }

    /// Adds the context to the headers of a request.
    pub(super) fn pass_on(&self, request: RequestBuilder) -> RequestBuilder {
        let headers = self.context.iter().flat_map(SpanContext::headers);
        headers.fold(request, |request, (name, value)| request.header(name, value))
    }

    /// Sets the status of the response.
    pub(super) fn set_status(&mut self, status: StatusCode) {
        if let Some(span) = &mut self.span {
            span.set("http.response.status_code", u64::from(status.as_u16()));
        }
    }

    /// Ends the span, with the class of the failure if there was one.
    pub(super) fn end(self, trace: &TraceScope, failure: Option<&str>) {
        let span = self.span.map(|mut span| {
            span.error = failure.map(str::to_owned);
            span
        });
        trace.end(span);
    }
}
