//! The signals between a connection to an MCP server and its transport.

use std::sync::Arc;

use rmcp::model::{ClientJsonRpcMessage, GetExtensions};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::notices::OpenCalls;

/// The signals of a transport.
#[derive(Debug)]
pub(super) struct Signals {
    /// Cancelled when the connection is closed.
    pub(super) closed: CancellationToken,
    /// Notified when the list of tools has changed.
    pub(super) tools_changed: Notify,
    /// The calls to which notices on the stream of the connection belong, if it has one stream for all answers.
    pub(super) calls: Arc<OpenCalls>,
    /// Notified by everything that arrives.
    arrived: watch::Sender<()>,
}

impl Default for Signals {
    fn default() -> Self {
        Self {
            closed: CancellationToken::new(),
            tools_changed: Notify::new(),
            calls: Arc::default(),
            arrived: watch::Sender::new(()),
        }
    }
}

impl Signals {
    /// Reports that data has arrived, which need not be an answer.
    pub(super) fn data_arrived(&self) {
        self.arrived.send_replace(());
    }

    /// Returns a receiver of what arrives from now on.
    pub(super) fn arrivals(&self) -> watch::Receiver<()> {
        self.arrived.subscribe()
    }
}

/// Cancelled when the caller of a request does not wait for its answer any more. The request carries it in its
/// extensions, for the transport, which then stops to send it or to read its answer.
#[derive(Clone)]
pub(super) struct Abandoned(pub(super) CancellationToken);

/// Adds the call that a message makes, if it is one, to those of the connection.
pub(super) fn note_call(message: &ClientJsonRpcMessage, signals: &Signals) {
    if let ClientJsonRpcMessage::Request(request) = message {
        signals.calls.add(&request.request);
    }
}

/// Returns the token of a request that is cancelled when its caller does not wait for the answer any more; `None` if
/// the message is not a request.
pub(super) fn abandoned(message: &ClientJsonRpcMessage) -> Option<CancellationToken> {
    let ClientJsonRpcMessage::Request(request) = message else {
        return None;
    };
    let abandoned = request.request.extensions().get::<Abandoned>();
    Some(abandoned.map_or_else(CancellationToken::new, |abandoned| abandoned.0.clone()))
}
