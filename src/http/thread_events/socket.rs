//! The stream of a thread over a WebSocket, which carries commands, their results and events.

use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::response::Response;
use futures::future::BoxFuture;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::time::{Interval, timeout};
use tokio_tungstenite::tungstenite;
use tokio_tungstenite::tungstenite::protocol::Message;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use super::commands::{CommandHandler, command_error, no_subscription};
use super::web_socket::{ClientSocket, Disconnected, SocketUpgrade};
use crate::db::{DbResult, RowAccess, warn_of};
use crate::domain::event::Event;
use crate::domain::id::ThreadId;
use crate::domain::identity::Identity;
use crate::events::{ThreadEvent, ThreadTail};
use crate::http::access::Api;
use crate::http::audit;
use crate::http::bodies::{BodyReader, BudgetShare};
use crate::http::client::ClientId;
use crate::http::connections::{ConnectionHandle, RequestGuard};
use crate::http::error::{ApiError, ErrorBody, RESUME_GAP};
use crate::http::extract::{ApiPath, ThreadPath, within_limits};
use crate::http::rate_limits::RateLimits;
use crate::http::socket_messages::MessageLimit;
use crate::http::stream::heartbeat_interval;
use crate::http::stream::thread::{self, PastEvents, ThreadFrames};
use crate::http::stream::v2::{FRAMES, Filter, StreamFilter, V2Frame, V2Presenter, whole_number};
use crate::http::stream_limits::StreamPermit;
use crate::http::wire::thread_command::{CommandAnswer, CommandError, ThreadCommand};

/// The maximum number of subscriptions per WebSocket.
const MAX_SUBSCRIPTIONS: usize = 64;

/// The time in which a client receives the reason why its message was not read. A connection with unread data is reset when it
/// is dropped.
const REASON_WAIT: Duration = Duration::from_secs(1);

/// Opens a WebSocket for the events and commands of a thread.
///
/// All messages are JSON. Clients send the commands of `POST /threads/{thread_id}/commands`, and
/// `subscription.subscribe` with the body of the stream over HTTP, `subscription.reconnect` with `since`, and
/// `subscription.unsubscribe`. The server sends results and events. Past events come before the result of a
/// subscription.
#[utoipa::path(get, path = "/threads/{thread_id}/stream/events", tag = "Thread stream", params(ThreadPath),
    responses((status = 101, description = "The WebSocket is open"),
        (status = 400, description = "The request is not a WebSocket upgrade", body = ErrorBody),
        (status = 426, description = "The connection cannot become a WebSocket", body = ErrorBody),
        (status = 429, description = "The thread or the client has reached its limit of open streams", body = ErrorBody)))]
pub(in crate::http) async fn get(
    api: Api,
    ApiPath(path): ApiPath<ThreadPath>,
    client: ClientId,
    connection: Option<Extension<ConnectionHandle>>,
    upgrade: SocketUpgrade,
    // The extractor follows the upgrade, because only upgrades have these limits.
    Extension(limits): Extension<SocketLimits>,
) -> Result<Response, ApiError> {
    let may_read = super::may_read(&api, path.thread_id).await?;
    let stream = api.open_stream(may_read.then_some(path.thread_id), client)?;
    let held = SocketPermits {
        messages: api.message_limit(),
        _stream: stream,
        // The connection counts as busy for as long as the socket is open.
        _connection: connection.map(|Extension(connection)| connection.begin()),
    };
    let most = held.messages.bytes();
    // The session is a task of its own.
    let access = RowAccess::of_caller(&api.caller);
    let metrics = api.metrics.clone();
    let session = move |socket| {
        let session = SocketSession::new(api, path.thread_id, socket, limits, held);
        access.scope(session.run())
    };
    Ok(upgrade.open(most, metrics, session))
}

/// A socket whose connection hyper has accepted.
type OpenSocket = ClientSocket<TokioIo<Upgraded>>;

/// A read of the thread that is in progress.
type PendingRead = BoxFuture<'static, (ThreadTail, DbResult<ThreadEvent>)>;

/// The limits of commands over a socket.
#[derive(Clone)]
pub(in crate::http) struct SocketLimits {
    /// Counts commands like request bodies.
    pub(in crate::http) bodies: BodyReader,
    /// Counts commands like requests.
    pub(in crate::http) rates: Arc<RateLimits>,
}

/// The permits that a socket holds for as long as it is open.
struct SocketPermits {
    messages: MessageLimit,
    _stream: StreamPermit,
    _connection: Option<RequestGuard>,
}

impl SocketLimits {
    /// Counts a command of a caller, and reserves its share of the budget for bodies.
    async fn admit(&self, caller: &Identity, command: &[u8]) -> Result<BudgetShare, ApiError> {
        self.rates.count_request(caller)?;
        self.bodies.reserve(caller, command).await
    }
}

/// An open WebSocket.
struct SocketSession {
    api: Api,
    thread: ThreadId,
    socket: OpenSocket,
    limits: SocketLimits,
    /// The live read for all subscriptions; `None` before the first one.
    pending_read: Option<PendingRead>,
    reader: ThreadFrames,
    /// The sequence number of the last live event.
    last_seq: i64,
    subscriptions: Vec<(String, Filter)>,
    heartbeat: Interval,
    /// Completes when the credential of the caller has become invalid.
    credential_ended: BoxFuture<'static, ()>,
    held: SocketPermits,
}

impl SocketSession {
    fn new(api: Api, thread: ThreadId, socket: OpenSocket, limits: SocketLimits, held: SocketPermits) -> Self {
        let reader = ThreadFrames::new(api.clone(), thread, V2Presenter::default());
        let heartbeat = heartbeat_interval(api.settings.heartbeat);
        let pending_read = None;
        let subscriptions = vec![];
        let auth = api.auth.clone();
        let caller = Arc::clone(&api.caller);
        let credential_ended = Box::pin(async move { auth.credential_ended(&caller).await });
        Self {
            api,
            thread,
            socket,
            limits,
            pending_read,
            reader,
            last_seq: 0,
            subscriptions,
            heartbeat,
            credential_ended,
            held,
        }
    }

    /// Serves the socket until the client disconnects or the server shuts down.
    async fn run(mut self) {
        while self.serve().await.is_ok() {}
    }

    async fn serve(&mut self) -> Result<(), Disconnected> {
        let events = self.api.events.clone();
        let credential_ended = &mut self.credential_ended;
        tokio::select! {
            (tail, read) = next(&mut self.pending_read) => self.on_event(tail, read).await,
            message = self.socket.recv() => match message {
                Some(Ok(Message::Text(text))) => self.receive(text.as_bytes()).await,
                Some(Ok(Message::Binary(bytes))) => self.receive(&bytes).await,
                Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_))) => Ok(()),
                Some(Ok(Message::Close(_))) | None => Err(Disconnected),
                Some(Err(error)) => self.close_for_error(&error).await,
            },
            _ = self.heartbeat.tick() => self.socket.ping().await,
            () = credential_ended => self.close_for_credential().await,
            () = events.shutdown_started() => self.close_for_restart("the server restarts").await,
        }
    }

    /// Sends the frames of a live event.
    async fn on_event(&mut self, tail: ThreadTail, read: DbResult<ThreadEvent>) -> Result<(), Disconnected> {
        match read {
            Ok(ThreadEvent::Event(event)) => {
                self.last_seq = event.seq;
                match self.reader.frames(&event).await {
                    Ok(frames) => self.send_frames(&frames).await?,
                    Err(error) => return self.fail(&error).await,
                }
            }
            Ok(ThreadEvent::Quiet) => self.reader.presenter.clear_caches(),
            Ok(ThreadEvent::Shutdown) => return self.close_for_restart("the server restarts").await,
            Err(error) => return self.fail(&error).await,
        }
        self.pending_read = Some(Box::pin(thread::next_event(tail)));
        Ok(())
    }

    /// Executes a command from the client. An invalid command is answered with an error, and the socket stays open.
    async fn receive(&mut self, text: &[u8]) -> Result<(), Disconnected> {
        let _share = match self.limits.admit(&self.api.caller, text).await {
            Ok(share) => share,
            Err(error) => {
                let answer = CommandAnswer::refusal(Value::Null, command_error(error));
                return self.send_json(&json!(answer)).await;
            }
        };
        let refuse = |refusal: CommandError| Err(Box::new(CommandAnswer::refusal(Value::Null, refusal)));
        let command = match (within_limits(text), serde_json::from_slice::<Value>(text)) {
            (Err(exceeded), _) => refuse(CommandError::argument(exceeded.to_string())),
            (Ok(()), Ok(value)) => ThreadCommand::read(&value),
            (Ok(()), Err(_)) => refuse(CommandError::argument("Protocol commands must be valid JSON.")),
        };
        let answer = match command {
            Ok(command) => self.handle(&command).await?,
            Err(answer) => *answer,
        };
        self.send_json(&json!(answer)).await
    }

    async fn handle(&mut self, command: &ThreadCommand) -> Result<CommandAnswer, Disconnected> {
        let params = &command.params;
        let result = match command.method.as_str() {
            "subscription.subscribe" => self
                .subscribe(params, whole_number(params, "since").unwrap_or(0))
                .await?
                .map(|result| (result, None)),
            "subscription.reconnect" => self.reconnect(params).await?.map(|result| (result, None)),
            "subscription.unsubscribe" => self.unsubscribe(params).map(|result| (result, None)),
            _ => {
                let handler = CommandHandler {
                    api: &self.api,
                    thread: Some(self.thread),
                    checks_namespace: true,
                    key: None,
                };
                // Each command is a request of its own. Its answer is sent when its entries are durable.
                let work = Box::pin(handler.handle(command));
                let done = self.api.audit.run_request(Some(&self.api.caller), work).await;
                done.unwrap_or_else(|error| Err(command_error(audit::not_stored(error))))
            }
        };
        let id = json!(command.id);
        Ok(match result {
            Ok((result, seq)) => CommandAnswer::success(id, result, seq),
            Err(refusal) => CommandAnswer::refusal(id, refusal),
        })
    }

    /// Sends past events, then adds the subscription to the live ones.
    async fn subscribe(&mut self, params: &Value, since: i64) -> Result<Result<Value, CommandError>, Disconnected> {
        let filter = match Filter::read(params) {
            Ok(filter) => filter,
            Err(reason) => return Ok(Err(CommandError::argument(reason))),
        };
        if self.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let text = format!("This WebSocket has reached its limit of {MAX_SUBSCRIPTIONS} subscriptions.");
            return Ok(Err(CommandError::argument(text)));
        }
        let replayed = match self.replay(&filter, since).await {
            Ok(frames) => frames?,
            Err(error) => return self.fail(&error).await.map(|()| Ok(Value::Null)),
        };
        let own = params.get("subscription_id").and_then(Value::as_str);
        let id = own.map_or_else(|| crate::domain::id::RunId::mint().to_string(), str::to_owned);
        self.subscriptions.retain(|(known, _)| *known != id);
        self.subscriptions.push((id.clone(), filter));
        self.update_filter();
        Ok(Ok(json!({"subscription_id": id, "replayed_events": replayed})))
    }

    /// Subscribes a client that has received everything up to `since`.
    async fn reconnect(&mut self, params: &Value) -> Result<Result<Value, CommandError>, Disconnected> {
        let Some(since) = whole_number(params, "since") else {
            return Ok(Err(CommandError::argument("subscription.reconnect requires a since.")));
        };
        if since == 0 {
            return self.subscribe(params, since).await;
        }
        let gap = match super::may_read(&self.api, self.thread).await {
            Ok(true) => self.api.events.gap(self.thread, since / FRAMES).await,
            Ok(false) => Ok(None),
            Err(error) => Err(error),
        };
        match gap {
            Ok(Some(first)) => {
                let mut refusal =
                    CommandError::new(RESUME_GAP, "The log no longer contains the events after this number.");
                refusal.more.insert("since".to_owned(), json!(since));
                refusal
                    .more
                    .insert("min_available_seq".to_owned(), json!(first * FRAMES));
                Ok(Err(refusal))
            }
            Ok(None) => self.subscribe(params, since).await,
            Err(error) => Ok(Err(command_error(error.into()))),
        }
    }

    fn unsubscribe(&mut self, params: &Value) -> Result<Value, CommandError> {
        let id = params
            .get("subscription_id")
            .and_then(Value::as_str)
            .unwrap_or_default();
        let before = self.subscriptions.len();
        self.subscriptions.retain(|(known, _)| known != id);
        if self.subscriptions.len() == before {
            return Err(no_subscription(params));
        }
        self.update_filter();
        Ok(json!({}))
    }

    /// Updates the live filter: the union of all subscriptions.
    fn update_filter(&mut self) {
        let filters = self.subscriptions.iter().map(|(_, filter)| filter.clone()).collect();
        self.reader.presenter.filter = StreamFilter { filters, since: 0 };
    }

    /// Sends past events: up to now for the first subscription, which also starts the live read; for others up to the
    /// last live event. Returns the number of frames.
    async fn replay(&mut self, filter: &Filter, since: i64) -> DbResult<Result<usize, Disconnected>> {
        let until = match self.pending_read {
            Some(_) => self.last_seq,
            None => self.api.events.newest(self.thread).await?,
        };
        let past = PastEvents {
            filter: filter.clone(),
            since,
            may_read: super::may_read(&self.api, self.thread).await?,
            until: Some(until),
        };
        let replaying = ThreadFrames::replaying(self.api.clone(), self.thread, past);
        let (mut reader, mut tail) = Box::pin(replaying).await?;
        let mut count = 0;
        while let Some(event) = next_until(&mut tail, until).await? {
            let frames = reader.frames(&event).await?;
            count += frames.len();
            if self.send_frames(&frames).await.is_err() {
                return Ok(Err(Disconnected));
            }
        }
        if self.pending_read.is_none() {
            self.reader = reader;
            self.last_seq = until;
            self.pending_read = Some(Box::pin(thread::next_event(tail)));
        }
        Ok(Ok(count))
    }

    async fn send_frames(&mut self, frames: &[V2Frame]) -> Result<(), Disconnected> {
        for frame in frames {
            self.socket.send_text(frame.data.clone()).await?;
        }
        Ok(())
    }

    async fn send_json(&mut self, value: &Value) -> Result<(), Disconnected> {
        self.socket.send_text(value.to_string().into()).await
    }

    /// Reports to this client that the log cannot be read. If the database is away, the socket is closed as for a restart,
    /// so that the client connects again.
    async fn fail<T>(&mut self, error: &crate::db::DbError) -> Result<T, Disconnected> {
        if error.is_resumable() {
            warn_of!(error, thread = %self.thread, "thread WebSocket ended early");
            return self
                .close_for_restart("the database does not answer")
                .await
                .and(Err(Disconnected));
        }
        tracing::error!(thread = %self.thread, %error, "thread WebSocket failed");
        self.send_json(&thread::stream_error()).await?;
        Err(Disconnected)
    }

    /// Closes the socket, whose commands would act for a caller that has no valid credential any more.
    async fn close_for_credential(&mut self) -> Result<(), Disconnected> {
        let reason = "the credential is no longer valid";
        self.socket.close(CloseCode::Policy, reason).await;
        Err(Disconnected)
    }

    /// Closes the socket after a message that is larger than it may be. After all other errors there is no connection, or one
    /// that carries no messages.
    async fn close_for_error(&mut self, error: &tungstenite::Error) -> Result<(), Disconnected> {
        if !matches!(error, tungstenite::Error::Capacity(_)) {
            return Err(Disconnected);
        }
        let most = self.held.messages.bytes();
        let reason = format!("a message may have {most} bytes; send larger commands over HTTP");
        self.socket.close(CloseCode::Size, reason).await;
        let events = self.api.events.clone();
        let _ = timeout(REASON_WAIT, events.shutdown_started()).await;
        Err(Disconnected)
    }

    /// Closes the socket so that the client reconnects.
    async fn close_for_restart(&mut self, reason: &'static str) -> Result<(), Disconnected> {
        self.socket.close(CloseCode::Restart, reason).await;
        Err(Disconnected)
    }
}

/// Waits for the pending read; forever if there is none.
async fn next(pending_read: &mut Option<PendingRead>) -> (ThreadTail, DbResult<ThreadEvent>) {
    match pending_read {
        Some(read) => {
            let result = read.await;
            *pending_read = None;
            result
        }
        None => pending().await,
    }
}

/// The next event up to sequence number `until`.
async fn next_until(tail: &mut ThreadTail, until: i64) -> DbResult<Option<Arc<Event>>> {
    loop {
        let Some(next) = tail.peek() else {
            if tail.position() >= until {
                return Ok(None);
            }
            if !tail.fetch().await? {
                return Ok(None);
            }
            continue;
        };
        return Ok(if next <= until { tail.take() } else { None });
    }
}
