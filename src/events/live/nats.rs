//! Chunks of answers over NATS.
//!
//! | Subject | Content |
//! |---|---|
//! | `PREFIX.DATABASE.wanted` | announcements of threads whose chunks servers want |
//! | `PREFIX.DATABASE.chunks.THREAD` | the chunks of a thread |
//!
//! All are published with core NATS: nothing waits for an acknowledgement. A JetStream stream in memory, `PREFIX-DATABASE`,
//! keeps the chunks of the last minute, within limits of bytes and of messages for each thread. A server whose readers
//! begin to wait for a thread subscribes to its subject, and reads what the stream has of it before what comes in.
//! `DATABASE` is a digest of the identity of the Postgres database, so servers on different databases do not meet.
//!
//! A connection that breaks is not repaired: a new [`NatsSession`] begins, with new subscriptions, so that what was missed is
//! asked for again, as after a lost connection to Postgres.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use async_nats::jetstream::context::{ContextBuilder, CreateStreamErrorKind};
use async_nats::jetstream::response::Response;
use async_nats::jetstream::{self, consumer, stream};
use async_nats::{Client, ConnectError, ConnectErrorKind, ConnectOptions, Event, HeaderMap, Message, Subscriber};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use secrecy::ExposeSecret;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::super::log::ThreadLog;
use super::message::{self, ChunkPart};
use super::{Carrier, Exchange, NatsSettings, RENEWAL, RequestedKey, seal_parts};
use crate::db::{self, DbResult};
use crate::domain::id::ThreadId;
use crate::domain::nats::NatsLogin;
use crate::metrics::{LiveMetrics, MessageFault, UnsentReason};

mod tls;

/// The time to connect, and to answer a request.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// The delay before the next attempt to connect.
const RECONNECT_DELAY: Duration = Duration::from_secs(1);
/// The interval at which NATS has to answer; a connection without two answers is broken.
const PING_INTERVAL: Duration = Duration::from_secs(5);
/// The number of messages of one subject that wait for a slow receiver; beyond it, the newest are lost.
const SUBSCRIPTION_CAPACITY: usize = 1024;
/// The number of commands that wait for the connection.
const COMMAND_CAPACITY: usize = 256;
/// The time for which the stream keeps a message.
const STREAM_AGE: Duration = Duration::from_secs(60);
/// The time within which a server that joins reads the stream.
const STREAM_MARGIN: Duration = Duration::from_secs(10);
/// The number of messages of one thread that the stream keeps.
const STREAM_MESSAGES_PER_THREAD: i64 = 4096;
/// The number of threads of which the stream is read at the same time.
const PARALLEL_READS: usize = 16;
/// The time after which NATS forgets who has read the stream.
const READER_AGE: Duration = Duration::from_secs(5);
/// The largest size of a message, in bytes, even if NATS takes larger ones.
const MAX_MESSAGE: usize = 1024 * 1024;
/// The header of the first message with what a server has in memory.
const BEGINNING: &str = "Adjutant-Beginning";

/// The reason why NATS cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NatsProblem {
    /// The problem, as a sentence without the address.
    pub message: String,
    /// The advice.
    pub advice: &'static str,
}

impl fmt::Display for NatsProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.message, self.advice)
    }
}

impl NatsProblem {
    fn of(error: &ConnectError, settings: &NatsSettings) -> Self {
        const ADDRESS: &str = "start nats-server there, or correct `nats` in [cluster]";
        const LOGIN: &str = "correct the user and the password or the token in `nats`, or the file `nats_credentials`, in \
            [cluster]";
        const HOST: &str = "correct the host in `nats` in [cluster]";
        const TLS: &str =
            "name the authority of its certificate as `nats_sslrootcert`, or correct `nats`, in [cluster]";
        if let Some(problem) = tls::problem_of(error, settings) {
            return problem;
        }
        let source = || std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
        let (message, advice) = match error.kind() {
            ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => {
                ("it refuses the login".to_owned(), LOGIN)
            }
            ConnectErrorKind::Dns => (format!("its host cannot be found ({})", source()), HOST),
            ConnectErrorKind::Tls => (format!("the connection cannot be encrypted ({})", source()), TLS),
            ConnectErrorKind::TimedOut => ("it does not answer in time".to_owned(), ADDRESS),
            ConnectErrorKind::Io | ConnectErrorKind::ServerParse | ConnectErrorKind::MaxReconnects => {
                (format!("it cannot be reached ({})", source()), ADDRESS)
            }
        };
        Self { message, advice }
    }
}

/// The abilities of a NATS that answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NatsAbilities {
    /// True if it has JetStream.
    pub jetstream: bool,
}

/// Connects to NATS, and finds out what it can do. Nothing is published.
///
/// # Errors
/// If NATS cannot be used.
pub async fn check(settings: &NatsSettings) -> Result<NatsAbilities, NatsProblem> {
    let client = connect(settings, options(settings).await?).await?;
    // As any JSON: older servers say less about an account than the client of NATS expects.
    let account: Result<Response<Value>, _> = jetstream_of(&client).request("INFO", &json!({})).await;
    Ok(NatsAbilities {
        jetstream: matches!(account, Ok(Response::Ok(_))),
    })
}

/// Returns the options of a connection with the login and the certificates of the settings.
async fn options(settings: &NatsSettings) -> Result<ConnectOptions, NatsProblem> {
    let servers = settings.servers.addresses.len();
    let mut options = ConnectOptions::new()
        .name("adjutant")
        .connection_timeout(ANSWER_TIMEOUT)
        .request_timeout(Some(ANSWER_TIMEOUT))
        .ping_interval(PING_INTERVAL)
        .subscription_capacity(SUBSCRIPTION_CAPACITY)
        .client_capacity(COMMAND_CAPACITY)
        .ignore_discovered_servers()
        // Enough to try each server; a connection that breaks is replaced by a new session.
        .max_reconnects(servers);
    match &settings.servers.login {
        None => {}
        Some(NatsLogin::Token(token)) => options = options.token(token.expose_secret().to_owned()),
        Some(NatsLogin::Password { user, password }) => {
            options = options.user_and_password(user.clone(), password.expose_secret().to_owned());
        }
    }
    if let Some(path) = &settings.credentials {
        let problem = |message: String| NatsProblem {
            message,
            advice: "correct `nats_credentials` in [cluster]",
        };
        let text = tokio::fs::read_to_string(path).await.map_err(|error| {
            let message = format!("the credentials in {} cannot be read ({error})", path.display());
            problem(message)
        })?;
        // The error could quote the file.
        options = options.credentials(&text).map_err(|_| {
            let message = format!("{} has no credentials of a NATS user", path.display());
            problem(message)
        })?;
    }
    tls::with_certificates(settings, options).await
}

async fn connect(settings: &NatsSettings, options: ConnectOptions) -> Result<Client, NatsProblem> {
    let connecting = options.connect(settings.servers.addresses.as_slice());
    connecting.await.map_err(|error| NatsProblem::of(&error, settings))
}

fn jetstream_of(client: &Client) -> jetstream::Context {
    ContextBuilder::new().timeout(ANSWER_TIMEOUT).build(client.clone())
}

/// The names in NATS.
#[derive(Debug, Clone)]
struct Names {
    base: String,
}

impl Names {
    fn new(prefix: &str, database: &str) -> Self {
        Self {
            base: format!("{prefix}.{database}"),
        }
    }

    fn wanted(&self) -> String {
        format!("{}.wanted", self.base)
    }

    fn chunks(&self, thread: ThreadId) -> String {
        format!("{}.chunks.{thread}", self.base)
    }

    fn all_chunks(&self) -> String {
        format!("{}.chunks.*", self.base)
    }

    /// Returns the name of the stream, which has no periods.
    fn stream(&self) -> String {
        self.base.replace('.', "-")
    }
}

/// A connection to NATS.
pub(super) struct NatsSession {
    client: Client,
    names: Names,
    /// JetStream, if it has the stream.
    kept: Option<jetstream::Context>,
    reads: Semaphore,
    followed: mpsc::Sender<FollowedThread>,
    /// Cancelled when the connection is lost.
    lost: CancellationToken,
}

/// The receiving half of a [`NatsSession`].
struct Inbox {
    announcements: Subscriber,
    followed: mpsc::Receiver<FollowedThread>,
}

/// A thread for whose chunks readers here wait.
struct FollowedThread {
    thread: ThreadId,
    log: Weak<ThreadLog>,
    messages: Subscriber,
}

impl NatsSession {
    /// Connects to NATS.
    async fn open(settings: &NatsSettings, names: Names, metrics: LiveMetrics) -> Result<(Self, Inbox), NatsProblem> {
        let lost = CancellationToken::new();
        let has_connected = Arc::new(AtomicBool::new(false));
        let events = lost.clone();
        let options = options(settings).await?.no_echo().event_callback(move |event| {
            handle(&event, &has_connected, &events, &metrics);
            std::future::ready(())
        });
        let client = connect(settings, options).await?;
        let lost_early = |error: async_nats::SubscribeError| NatsProblem {
            message: format!("the connection was lost ({error})"),
            advice: "look at the log of nats-server",
        };
        let announcements = client.subscribe(names.wanted()).await.map_err(lost_early)?;
        let kept = keep(&client, &names, settings.stream_bytes).await;
        let (followed, receiver) = mpsc::channel(COMMAND_CAPACITY);
        let session = Self {
            client,
            names,
            kept,
            reads: Semaphore::new(PARALLEL_READS),
            followed,
            lost,
        };
        let inbox = Inbox {
            announcements,
            followed: receiver,
        };
        Ok((session, inbox))
    }

    /// Returns the largest size of the chunks in one part, in bytes. Sealed, they take a third more; the rest is for the
    /// header and the line before them.
    pub(super) fn max_chunks(&self) -> usize {
        self.client.max_payload().min(MAX_MESSAGE) / 10 * 7
    }

    /// Returns the time for which servers that join find what was sent before.
    pub(super) fn kept_for(&self) -> Duration {
        match self.kept {
            Some(_) => STREAM_AGE - STREAM_MARGIN,
            None => Duration::ZERO,
        }
    }

    /// Sends announcements for these threads, and subscribes to those that have no subscription. Returns false if the
    /// connection is lost.
    pub(super) async fn announce(&self, texts: Vec<String>, new: &[(ThreadId, Arc<ThreadLog>)]) -> bool {
        // Before the announcement: what it causes must not be missed.
        for (thread, log) in new {
            let Ok(messages) = self.client.subscribe(self.names.chunks(*thread)).await else {
                return self.is_lost();
            };
            let followed = FollowedThread {
                thread: *thread,
                log: Arc::downgrade(log),
                messages,
            };
            if self.followed.send(followed).await.is_err() {
                return self.is_lost();
            }
        }
        for text in texts {
            if self.client.publish(self.names.wanted(), text.into()).await.is_err() {
                return self.is_lost();
            }
        }
        true
    }

    /// Ends the session. Returns false.
    fn is_lost(&self) -> bool {
        self.lost.cancel();
        false
    }

    /// Publishes a part. Returns the size of the message in bytes; none if it could not be published.
    async fn publish(&self, part: &ChunkPart) -> Option<usize> {
        let subject = self.names.chunks(part.range.thread);
        let text = message::text_of(part);
        let bytes = text.len();
        let published = if part.is_beginning {
            let mut headers = HeaderMap::new();
            headers.insert(BEGINNING, "1");
            self.client.publish_with_headers(subject, headers, text.into()).await
        } else {
            self.client.publish(subject, text.into()).await
        };
        published.ok().map(|()| bytes)
    }

    /// Returns the messages of a thread that the stream has.
    async fn kept_messages(&self, thread: ThreadId) -> Result<Vec<jetstream::Message>, async_nats::Error> {
        let Some(kept) = &self.kept else {
            return Ok(vec![]);
        };
        let _permit = self.reads.acquire().await?;
        let config = consumer::pull::Config {
            filter_subject: self.names.chunks(thread),
            deliver_policy: consumer::DeliverPolicy::All,
            ack_policy: consumer::AckPolicy::None,
            inactive_threshold: READER_AGE,
            memory_storage: true,
            ..consumer::pull::Config::default()
        };
        let reader = kept.create_consumer_on_stream(config, self.names.stream()).await?;
        let pending = usize::try_from(reader.cached_info().num_pending)?;
        let mut messages = Vec::with_capacity(pending);
        if pending == 0 {
            return Ok(messages);
        }
        let mut batch = reader.fetch().max_messages(pending).messages().await?;
        while let Some(message) = batch.next().await {
            messages.push(message?);
        }
        Ok(messages)
    }
}

/// Reacts to an event of the connection.
fn handle(event: &Event, has_connected: &AtomicBool, lost: &CancellationToken, metrics: &LiveMetrics) {
    match event {
        // The second time, the connection was lost in between, and messages with it.
        Event::Connected if !has_connected.swap(true, Ordering::Relaxed) => {}
        Event::Connected | Event::Disconnected | Event::Closed | Event::Draining | Event::LameDuckMode => lost.cancel(),
        Event::SlowConsumer(_) => metrics.passed_over(MessageFault::Overrun, 1),
        Event::ServerError(error) => tracing::warn!(%error, "NATS reports an error"),
        Event::ClientError(error) => tracing::debug!(%error, "the client of NATS reports an error"),
    }
}

/// Makes the stream that keeps chunks. Returns none if there is none, after saying so.
async fn keep(client: &Client, names: &Names, bytes: u32) -> Option<jetstream::Context> {
    if bytes == 0 {
        return None;
    }
    let context = jetstream_of(client);
    let config = stream::Config {
        name: names.stream(),
        subjects: vec![names.all_chunks()],
        storage: stream::StorageType::Memory,
        discard: stream::DiscardPolicy::Old,
        retention: stream::RetentionPolicy::Limits,
        max_age: STREAM_AGE,
        max_bytes: bytes.into(),
        max_messages_per_subject: STREAM_MESSAGES_PER_THREAD,
        num_replicas: 1,
        no_ack: true,
        ..stream::Config::default()
    };
    let Err(error) = context.create_or_update_stream(config).await else {
        return Some(context);
    };
    let reason = match error.kind() {
        CreateStreamErrorKind::JetStreamUnavailable => "it has no JetStream".to_owned(),
        CreateStreamErrorKind::EmptyStreamName
        | CreateStreamErrorKind::InvalidStreamName
        | CreateStreamErrorKind::DomainAndExternalSet
        | CreateStreamErrorKind::JetStream(_)
        | CreateStreamErrorKind::TimedOut
        | CreateStreamErrorKind::Response
        | CreateStreamErrorKind::NotFound
        | CreateStreamErrorKind::ResponseParse => error.to_string(),
    };
    tracing::warn!(
        reason,
        "NATS keeps no pieces of answers for readers who join later: servers send them again instead; start nats-server with \
         `-js`, or set `nats_stream_bytes = 0` in [cluster]"
    );
    None
}

/// Returns whether a server begins to send all that it has with this message.
fn is_beginning(message: &Message) -> bool {
    let headers = message.headers.as_ref();
    headers.is_some_and(|headers| headers.get(BEGINNING).is_some())
}

impl Exchange {
    /// Exchanges chunks over NATS, with one session after the other.
    pub(super) async fn work_over_nats(&self, settings: &NatsSettings) {
        let servers = &settings.servers;
        let mut known: Option<NatsProblem> = None;
        self.metrics.nats_is_connected(false);
        loop {
            match self.open_session(settings).await {
                Ok((session, inbox)) => {
                    known = None;
                    self.metrics.nats_is_connected(true);
                    tracing::info!(nats = %servers, stream = session.kept.is_some(), "connected to NATS");
                    self.work_in(session, inbox).await;
                    self.metrics.nats_is_connected(false);
                    tracing::warn!(
                        nats = %servers,
                        "the connection to NATS is lost: until it is back, pieces of answers of other servers come late; \
                         no event is lost"
                    );
                }
                Err(problem) if known.as_ref() != Some(&problem) => {
                    tracing::error!(
                        nats = %servers,
                        problem = problem.message,
                        advice = problem.advice,
                        "NATS cannot be used: until it can, pieces of answers of other servers come late; no event is lost"
                    );
                    known = Some(problem);
                }
                Err(_) => {}
            }
            sleep(RECONNECT_DELAY).await;
        }
    }

    async fn open_session(&self, settings: &NatsSettings) -> Result<(NatsSession, Inbox), NatsProblem> {
        let read = self.events.db.read(move |tx| Box::pin(db::live::database_name(tx)));
        let database = read.await.map_err(|error| NatsProblem {
            message: format!("the database does not say which one it is ({error})"),
            advice: "look at the messages about the database",
        })?;
        let names = Names::new(&settings.prefix, &database);
        NatsSession::open(settings, names, self.metrics.clone()).await
    }

    /// Exchanges chunks until the connection is lost.
    async fn work_in(&self, session: NatsSession, inbox: Inbox) {
        let lost = session.lost.clone();
        let carrier = Carrier::Nats(Box::new(session));
        self.ask_again();
        let work = async {
            let Carrier::Nats(session) = &carrier else {
                return;
            };
            let receiving = self.receive_in(&carrier, session, inbox);
            tokio::join!(self.announce(&carrier), receiving, self.send(&carrier));
        };
        lost.run_until_cancelled(work).await;
    }

    /// Receives what other servers announce and send over NATS.
    async fn receive_in(&self, carrier: &Carrier, session: &NatsSession, mut inbox: Inbox) {
        let mut following = FuturesUnordered::new();
        loop {
            tokio::select! {
                announcement = inbox.announcements.next() => match announcement {
                    Some(message) => match std::str::from_utf8(&message.payload) {
                        Ok(text) => self.note(carrier, text),
                        Err(_) => self.metrics.passed_over(MessageFault::Malformed, 1),
                    },
                    None => {
                        session.is_lost();
                        return;
                    }
                },
                Some(followed) = inbox.followed.recv() => following.push(self.follow(session, followed)),
                Some(()) = following.next() => {}
            }
        }
    }

    /// Takes the chunks of a thread until no reader here waits for them.
    async fn follow(&self, session: &NatsSession, mut followed: FollowedThread) {
        self.take_kept(session, followed.thread).await;
        let mut look = Instant::now() + RENEWAL;
        loop {
            tokio::select! {
                message = followed.messages.next() => match message {
                    Some(message) => self.take_message(&message).await,
                    None => return,
                },
                () = tokio::time::sleep_until(look) => {
                    look = Instant::now() + RENEWAL;
                    let Some(log) = followed.log.upgrade() else {
                        return;
                    };
                    if !log.has_readers() {
                        log.set_announced(false);
                        return;
                    }
                }
            }
        }
    }

    /// Takes the chunks of a thread that the stream has.
    async fn take_kept(&self, session: &NatsSession, thread: ThreadId) {
        match timeout(ANSWER_TIMEOUT, session.kept_messages(thread)).await {
            Ok(Ok(messages)) => {
                // Without its beginning, what the stream has would hide the beginning that is sent again.
                for message in messages.iter().skip_while(|message| !is_beginning(message)) {
                    self.take_message(message).await;
                }
            }
            Ok(Err(error)) => {
                tracing::warn!(%thread, %error, "could not read the pieces of answers that NATS keeps");
            }
            Err(_) => tracing::warn!(%thread, "NATS did not send the pieces of answers that it keeps in time"),
        }
    }

    async fn take_message(&self, message: &Message) {
        match std::str::from_utf8(&message.payload) {
            Ok(text) => self.take(text, is_beginning(message)).await,
            Err(_) => self.metrics.passed_over(MessageFault::Malformed, 1),
        }
    }

    /// Publishes parts over NATS.
    pub(super) async fn publish(&self, session: &NatsSession, parts: Vec<(RequestedKey, ChunkPart)>) -> DbResult<()> {
        let tenants = self.tenants_if_sealing(&parts).await?;
        let mut parts: Vec<ChunkPart> = parts.into_iter().map(|(_, part)| part).collect();
        if let Some(tenants) = tenants {
            let write = self
                .events
                .db
                .write(move |tx| Box::pin(async move { seal_parts(tx, &tenants, parts).await }));
            parts = write.await?;
        }
        for (at, part) in parts.iter().enumerate() {
            let published = timeout(ANSWER_TIMEOUT, session.publish(part)).await;
            let Ok(Some(bytes)) = published else {
                let rest = parts[at..].iter().map(|part| part.chunks).sum();
                self.metrics.unsent(UnsentReason::Nats, rest);
                session.is_lost();
                break;
            };
            self.metrics.sent(1, bytes, part.chunks);
        }
        Ok(())
    }
}
