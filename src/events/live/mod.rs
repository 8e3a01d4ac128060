//! Chunks of answers for readers at other servers, over `NOTIFY` of their Postgres or over NATS.
//!
//! A server whose readers wait for a run that is not active there announces that it wants the chunks of the thread, and
//! repeats that while they wait. Without such an announcement nothing is sent. The server at which the run is active
//! reads its own log for them, like a reader: at an interval it sends all new chunks of all wanted threads together, and
//! the numbers of the events that it has stored meanwhile. A server that announces itself anew gets all that the log has
//! in memory, so that who joins in the middle of an answer gets its beginning.
//!
//! The receiver adds the chunks to its own log of the thread ([`super::ThreadLog::follow`]), where its readers find them
//! as if the run was active there. They read the stored events in between from the database. So nothing depends on these
//! messages but time: what is lost, too large, beyond the limit of bytes or of another version comes with the stored
//! event of the whole answer.
//!
//! | | `NOTIFY` | NATS ([`nats`]) |
//! |---|---|---|
//! | announcements | a channel for all servers | a subject for all servers |
//! | chunks | a channel for each server: the chunks of all threads that it wants, in few texts | a subject for each thread: each chunk is sent once for all servers |
//! | for a server that joins in the middle | the server at work sends again what it has in memory | the stream of NATS has the messages of the last minute; without it, as over `NOTIFY` |
//! | text | less than 8,000 bytes | as large as NATS takes |

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, sleep_until};

use super::log::{Buffered, ThreadLog};
use super::{Events, poll};
use crate::db::{self, DbResult, Engine, LiveAddress, LiveNotice, warn_of};
use crate::domain::id::ThreadId;
use crate::metrics::{LiveMetrics, MessageFault, UnsentReason};

mod message;
#[cfg(feature = "nats")]
pub mod nats;
mod nats_settings;

pub use nats_settings::NatsSettings;

use message::{ChunkPart, Interest, Unusable};

/// The interval at which a server repeats which threads its readers wait for.
const RENEWAL: Duration = Duration::from_secs(5);
/// The time after which an announcement that is not repeated is forgotten.
const EXPIRY: Duration = Duration::from_secs(15);
/// The pause after an announcement that failed.
const PAUSE: Duration = Duration::from_secs(1);
/// The largest number of announced threads that a server remembers.
const MAX_WANTED: usize = 16_384;

/// The limits of the messages of one server.
#[derive(Debug, Clone, Copy)]
pub struct LiveLimits {
    /// The interval between two messages with chunks.
    pub interval: Duration,
    /// The most bytes of messages in a second; 0 sends none.
    pub bytes_per_second: u32,
}

impl Events {
    /// Exchanges chunks of answers with the other servers until shutdown: over NATS if there are settings for it, and over
    /// `NOTIFY` otherwise. Ends at once on SQLite, where there are no other servers.
    pub async fn exchange_chunks(self, limits: LiveLimits, nats: Option<NatsSettings>, metrics: LiveMetrics) {
        if self.db.engine() != Engine::Postgres {
            return;
        }
        let exchange = Exchange {
            own: self.db.live_address(),
            shutdown: self.shutdown.clone(),
            events: self,
            limits,
            metrics,
            wanted: Mutex::default(),
            has_wanted: Notify::new(),
        };
        let work = async {
            #[cfg(feature = "nats")]
            if let Some(settings) = &nats {
                return exchange.work_over_nats(settings).await;
            }
            debug_assert!(nats.is_none(), "the configuration refuses NATS without its client");
            exchange.work_over_notify().await;
        };
        exchange.shutdown.run_until_cancelled(Box::pin(work)).await;
    }
}

/// The connection that carries the texts.
enum Carrier {
    /// `NOTIFY` of the Postgres of the servers.
    Notify,
    /// NATS.
    #[cfg(feature = "nats")]
    Nats(Box<nats::NatsSession>),
}

impl Carrier {
    /// Returns the largest size of the chunks in one part, in bytes.
    fn max_chunks(&self) -> usize {
        match self {
            Self::Notify => message::MAX_CHUNKS,
            #[cfg(feature = "nats")]
            Self::Nats(session) => session.max_chunks(),
        }
    }

    /// Returns the server to which chunks for `server` are sent; none if one message goes to all servers with readers.
    fn addressee(&self, server: LiveAddress) -> Option<LiveAddress> {
        match self {
            Self::Notify => Some(server),
            #[cfg(feature = "nats")]
            Self::Nats(_) => None,
        }
    }

    /// Returns the time for which servers that join find what was sent before.
    fn kept_for(&self) -> Duration {
        match self {
            Self::Notify => Duration::ZERO,
            #[cfg(feature = "nats")]
            Self::Nats(session) => session.kept_for(),
        }
    }
}

/// A thread whose chunks a server wants; or any server, if they are sent to all at once.
type RequestedKey = (ThreadId, Option<LiveAddress>);

/// The state of the chunks of one thread for one server.
struct RequestedChunks {
    /// The number up to which the server has them; none if it has none yet.
    sent: Option<i64>,
    /// The time at which the first of them were sent; none if some that followed were not.
    begun: Option<Instant>,
    /// The time at which this is forgotten.
    until: Instant,
    /// The tenant of the thread, once it is known. Only encryption needs it.
    tenant: Option<String>,
}

struct Exchange {
    own: LiveAddress,
    shutdown: tokio_util::sync::CancellationToken,
    events: Events,
    limits: LiveLimits,
    metrics: LiveMetrics,
    wanted: Mutex<HashMap<RequestedKey, RequestedChunks>>,
    /// Notified when a server wants chunks.
    has_wanted: Notify,
}

impl Exchange {
    fn wanted(&self) -> MutexGuard<'_, HashMap<RequestedKey, RequestedChunks>> {
        self.wanted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn work_over_notify(&self) {
        let carrier = Carrier::Notify;
        tokio::join!(self.announce(&carrier), self.receive(&carrier), self.send(&carrier));
    }

    /// Announces which threads readers here wait for.
    async fn announce(&self, carrier: &Carrier) {
        let mut renewal = Instant::now() + RENEWAL;
        loop {
            let is_renewal = tokio::select! {
                () = self.events.wanted.notified() => false,
                () = sleep_until(renewal) => true,
            };
            let watched = self.events.watched_threads();
            let (known, new): (Vec<_>, Vec<_>) = watched.into_iter().partition(|(_, log)| log.set_announced(true));
            self.announce_threads(carrier, true, &new).await;
            if is_renewal {
                renewal = Instant::now() + RENEWAL;
                self.announce_threads(carrier, false, &known).await;
            }
        }
    }

    async fn announce_threads(&self, carrier: &Carrier, is_new: bool, threads: &[(ThreadId, Arc<ThreadLog>)]) {
        if threads.is_empty() {
            return;
        }
        let interest = Interest {
            server: self.own,
            is_new,
            threads: threads.iter().map(|(thread, _)| *thread).collect(),
        };
        let is_told = match carrier {
            Carrier::Notify => self.post(interest.texts()).await,
            #[cfg(feature = "nats")]
            Carrier::Nats(session) => {
                let new = if is_new { threads } else { &[] };
                session.announce(interest.texts(), new).await
            }
        };
        if !is_told {
            for (_, log) in threads.iter().filter(|_| is_new) {
                // The next look of a reader asks again.
                log.set_announced(false);
            }
            sleep(PAUSE).await;
        }
    }

    /// Sends announcements over `NOTIFY`. Returns false if they were not sent.
    async fn post(&self, texts: Vec<String>) -> bool {
        let notices = texts.into_iter().map(|text| (None, text)).collect();
        let write = self
            .events
            .db
            .write(move |tx| Box::pin(async move { db::live::send(tx, notices).await }));
        match write.await {
            Ok(()) => true,
            Err(error) => {
                warn_of!(error, "could not ask the other servers for chunks of answers");
                false
            }
        }
    }

    /// Receives what other servers announce and send over `NOTIFY`.
    async fn receive(&self, carrier: &Carrier) {
        let mut notices = self.events.db.live_notices();
        loop {
            match notices.recv().await {
                Ok(LiveNotice::Connected) => self.ask_again(),
                Ok(LiveNotice::ForAll(text)) => self.note(carrier, &text),
                Ok(LiveNotice::ForThis(text)) => self.take(&text, false).await,
                Err(RecvError::Lagged(count)) => self.metrics.passed_over(MessageFault::Overrun, count),
                Err(RecvError::Closed) => return std::future::pending().await,
            }
        }
    }

    fn count_unusable(&self, unusable: Unusable) {
        let fault = match unusable {
            Unusable::OtherVersion => MessageFault::OtherVersion,
            Unusable::Malformed => MessageFault::Malformed,
        };
        self.metrics.passed_over(fault, 1);
    }

    /// Announces everything anew, and sends everything anew: chunks and announcements may have been missed.
    fn ask_again(&self) {
        self.wanted().values_mut().for_each(|wanted| wanted.sent = None);
        self.has_wanted.notify_one();
        for (_, log) in self.events.watched_threads() {
            log.set_announced(false);
        }
        self.events.wanted.notify_one();
    }

    /// Remembers which threads another server wants.
    fn note(&self, carrier: &Carrier, text: &str) {
        let interest = match Interest::read(text) {
            Ok(interest) => interest,
            Err(unusable) => return self.count_unusable(unusable),
        };
        if interest.server == self.own || self.limits.bytes_per_second == 0 {
            return;
        }
        let until = Instant::now() + EXPIRY;
        let mut wanted = self.wanted();
        for thread in interest.threads {
            let key = (thread, carrier.addressee(interest.server));
            if wanted.len() >= MAX_WANTED && !wanted.contains_key(&key) {
                self.metrics.unsent(UnsentReason::TooManyThreads, 1);
                continue;
            }
            let known = wanted.entry(key).or_insert(RequestedChunks {
                sent: None,
                begun: None,
                until,
                tenant: None,
            });
            known.until = until;
            if interest.is_new && known.begun.is_none_or(|begun| begun.elapsed() >= carrier.kept_for()) {
                known.sent = None;
            }
        }
        drop(wanted);
        self.has_wanted.notify_one();
    }

    /// Adds chunks that another server has sent to the logs of their threads. `is_beginning` is true for the first of all
    /// chunks that the other server has.
    async fn take(&self, text: &str, is_beginning: bool) {
        let parts = match message::unpack(text) {
            Ok(parts) => parts,
            Err(unusable) => return self.count_unusable(unusable),
        };
        for (range, body) in parts {
            let Some(log) = self.events.log_in_use(range.thread) else {
                continue;
            };
            if log.is_active() {
                continue;
            }
            let body = match self.events.db.open_chunks(range, body.to_owned()).await {
                Ok(body) => body,
                Err(error) => {
                    tracing::debug!(thread = %range.thread, %error, "could not open the chunks of another server");
                    self.metrics.passed_over(MessageFault::Sealed, 1);
                    continue;
                }
            };
            match message::read_slots(range, &body) {
                Ok((slots, chunks)) => {
                    self.metrics.received(chunks);
                    if is_beginning {
                        log.follow_again(range.after);
                    }
                    log.follow(range.after, range.upto, slots);
                }
                Err(unusable) => self.count_unusable(unusable),
            }
        }
    }

    /// Sends new chunks at the interval while other servers want any.
    async fn send(&self, carrier: &Carrier) {
        let mut allowance = Allowance::new(self.limits.bytes_per_second);
        loop {
            // Awaited in any case: a new reader need not wait for the interval.
            let more = self.has_wanted.notified();
            let is_idle = self.forget_expired();
            if is_idle {
                more.await;
            } else {
                tokio::select! {
                    () = more => {}
                    () = sleep(self.limits.interval) => {}
                }
            }
            self.send_new(carrier, &mut allowance).await;
        }
    }

    /// Forgets announcements that were not repeated. Returns true if none is left.
    fn forget_expired(&self) -> bool {
        let now = Instant::now();
        let mut wanted = self.wanted();
        wanted.retain(|_, wanted| wanted.until > now);
        wanted.is_empty()
    }

    async fn send_new(&self, carrier: &Carrier, allowance: &mut Allowance) {
        let parts = self.allowed(self.new_parts(carrier.max_chunks()), allowance);
        if parts.is_empty() {
            return;
        }
        let sent = match carrier {
            Carrier::Notify => self.notify_of(parts).await,
            #[cfg(feature = "nats")]
            Carrier::Nats(session) => self.publish(session, parts).await,
        };
        if let Err(error) = sent {
            warn_of!(error, "could not send chunks of answers to other servers");
        }
    }

    /// Takes the new events of the wanted threads that have a run here, in parts of at most `max_chunks` bytes.
    fn new_parts(&self, max_chunks: usize) -> Vec<(RequestedKey, ChunkPart)> {
        let mut found = vec![];
        let mut wanted = self.wanted();
        for (key, wanted) in wanted.iter_mut() {
            let log = self.events.log_in_use(key.0);
            let Some(log) = log.filter(|log| log.is_active()) else {
                continue;
            };
            while let Some((after, events)) = next_events(&log, wanted.sent) {
                let (mut parts, too_large) = message::parts_of(key.0, after, &events, max_chunks);
                self.metrics.unsent(UnsentReason::TooLarge, too_large);
                if wanted.sent.is_none() {
                    wanted.begun = Some(Instant::now());
                    parts.iter_mut().take(1).for_each(|part| part.is_beginning = true);
                }
                found.extend(parts.into_iter().map(|part| (*key, part)));
                wanted.sent = events.last().map(|event| event.seq);
            }
        }
        found
    }

    /// Returns the parts that the allowance permits.
    fn allowed(
        &self,
        parts: Vec<(RequestedKey, ChunkPart)>,
        allowance: &mut Allowance,
    ) -> Vec<(RequestedKey, ChunkPart)> {
        allowance.grow();
        let is_sealed = self.events.db.is_sealing();
        let mut allowed = Vec::with_capacity(parts.len());
        for (key, part) in parts {
            if allowance.spend(part.sent_bytes(is_sealed)) {
                allowed.push((key, part));
                continue;
            }
            self.metrics.unsent(UnsentReason::RateLimit, part.chunks);
            if let Some(wanted) = self.wanted().get_mut(&key) {
                wanted.begun = None;
            }
        }
        allowed
    }

    /// Sends parts over `NOTIFY`.
    async fn notify_of(&self, parts: Vec<(RequestedKey, ChunkPart)>) -> DbResult<()> {
        let tenants = self.tenants_if_sealing(&parts).await?;
        let chunks = parts.iter().map(|(_, part)| part.chunks).sum();
        let mut by_server: HashMap<Option<LiveAddress>, Vec<ChunkPart>> = HashMap::new();
        for ((_, server), part) in parts {
            by_server.entry(server).or_default().push(part);
        }
        let metrics = self.metrics.clone();
        let write = self.events.db.write(move |tx| {
            Box::pin(async move {
                let mut notices = vec![];
                for (server, mut parts) in by_server {
                    if let Some(tenants) = &tenants {
                        parts = seal_parts(tx, tenants, parts).await?;
                    }
                    notices.extend(message::pack(&parts).into_iter().map(|text| (server, text)));
                }
                let sent = notices.len();
                let bytes = notices.iter().map(|(_, text)| text.len()).sum();
                db::live::send(tx, notices).await?;
                DbResult::Ok((sent, bytes))
            })
        });
        match write.await {
            Ok((messages, bytes)) => metrics.sent(messages, bytes, chunks),
            Err(error) => {
                metrics.unsent(UnsentReason::Database, chunks);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Returns the tenants of the threads of these parts, if what is sent has to be sealed.
    async fn tenants_if_sealing(
        &self,
        parts: &[(RequestedKey, ChunkPart)],
    ) -> DbResult<Option<HashMap<ThreadId, String>>> {
        if !self.events.db.is_sealing() {
            return Ok(None);
        }
        let tenants = self.tenants_of(parts.iter().map(|(_, part)| part)).await?;
        Ok(Some(tenants))
    }

    /// Returns the tenants of the threads of these parts.
    async fn tenants_of(&self, parts: impl Iterator<Item = &ChunkPart>) -> DbResult<HashMap<ThreadId, String>> {
        let threads: std::collections::HashSet<ThreadId> = parts.map(|part| part.range.thread).collect();
        let mut tenants = HashMap::new();
        for ((thread, _), wanted) in self.wanted().iter() {
            if let Some(tenant) = wanted.tenant.as_ref().filter(|_| threads.contains(thread)) {
                tenants.insert(*thread, tenant.clone());
            }
        }
        let unknown: Vec<ThreadId> = threads
            .into_iter()
            .filter(|thread| !tenants.contains_key(thread))
            .collect();
        for page in unknown.chunks(poll::THREADS_PER_QUERY) {
            let page = page.to_vec();
            let read = self
                .events
                .db
                .read(move |tx| Box::pin(async move { db::live::tenants_of(tx, &page).await }));
            tenants.extend(read.await?);
        }
        for ((thread, _), wanted) in self.wanted().iter_mut() {
            if let Some(tenant) = tenants.get(thread) {
                wanted.tenant.get_or_insert_with(|| tenant.clone());
            }
        }
        Ok(tenants)
    }
}

/// Seals the parts for the tenants of their threads. Those of threads that do not exist any more are left out.
async fn seal_parts(
    tx: &mut db::Tx<'_>,
    tenants: &HashMap<ThreadId, String>,
    parts: Vec<ChunkPart>,
) -> DbResult<Vec<ChunkPart>> {
    let mut sealed = Vec::with_capacity(parts.len());
    for part in parts {
        let Some(tenant) = tenants.get(&part.range.thread) else {
            continue;
        };
        let text = db::live::seal(tx, tenant, part.range, part.text).await?;
        sealed.push(ChunkPart { text, ..part });
    }
    Ok(sealed)
}

/// Returns the next visible events in a log after those that were sent, with the number before them; none if there are
/// none.
fn next_events(log: &ThreadLog, sent: Option<i64>) -> Option<(i64, Vec<Arc<crate::domain::event::Event>>)> {
    let mut after = sent.unwrap_or(-1);
    loop {
        match log.buffered_of_thread(after) {
            // Events that are not in memory any more are stored, or lost to slow readers.
            Buffered::Stored(Some(floor)) => after = floor,
            Buffered::Stored(None) => return None,
            Buffered::Events(events) if events.is_empty() => return None,
            Buffered::Events(events) => return Some((after, events)),
        }
    }
}

/// The bytes that may be sent now: those of a second at most.
struct Allowance {
    per_second: f64,
    left: f64,
    since: Instant,
}

impl Allowance {
    fn new(per_second: u32) -> Self {
        let per_second = f64::from(per_second);
        Self {
            per_second,
            left: per_second,
            since: Instant::now(),
        }
    }

    /// Adds what the time since the last call allows.
    fn grow(&mut self) {
        let now = Instant::now();
        let more = self.per_second * (now - self.since).as_secs_f64();
        self.left = (self.left + more).min(self.per_second);
        self.since = now;
    }

    /// Takes bytes; false if there are not enough left.
    fn spend(&mut self, bytes: usize) -> bool {
        let bytes = u32::try_from(bytes).map_or(f64::INFINITY, f64::from);
        let is_enough = bytes <= self.left;
        if is_enough {
            self.left -= bytes;
        }
        is_enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn no_more_bytes_are_sent_than_a_second_allows() {
        let mut allowance = Allowance::new(100);
        assert!(allowance.spend(60) && !allowance.spend(60) && allowance.spend(40));
        tokio::time::advance(Duration::from_millis(500)).await;
        allowance.grow();
        assert!(!allowance.spend(51) && allowance.spend(49));
        tokio::time::advance(Duration::from_secs(10)).await;
        allowance.grow();
        assert!(!allowance.spend(101), "what was not sent is not kept for later");
        assert!(allowance.spend(100) && !allowance.spend(1));
    }
}
