//! Limits for large responses: the size of one, and the memory of all.

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, Bytes};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use futures::stream;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::error::ApiError;
use super::extract::Page;
use super::user_budgets::{UserBudgets, budget_of};
use crate::db::ListPart;
use crate::domain::identity::Identity;

/// The number of responses of the largest size that fit into memory at once.
const CONCURRENT: u32 = 4;
/// The number of concurrent large responses that may be for one user, so that the responses to others always have room.
const CONCURRENT_OF_USER: u32 = 3;
/// The unit in which memory is handed out, in bytes.
const UNIT: usize = 1024;
/// The size of the pieces in which a body is sent, in bytes.
const CHUNK: usize = 64 * 1024;
/// The longest time that a response waits for memory, in seconds.
const PERMIT_TIMEOUT_S: u32 = 10;
/// The time without a piece taken after which a response is slow.
const STALLED: Duration = Duration::from_secs(5);
/// The time after which any response is slow.
const LONGEST_SENDING: Duration = Duration::from_mins(1);
/// The number of responses being sent from which on those that are over are forgotten.
const MANY: usize = 256;

/// The memory budget of responses whose size depends on stored data: states, histories, lists of threads.
#[derive(Debug, Clone)]
pub struct ResponseBudget {
    bytes: usize,
    memory: Arc<Semaphore>,
    of_users: Arc<UserBudgets>,
    sending: Arc<LargeResponses>,
}

impl ResponseBudget {
    /// Creates a budget for responses of up to `bytes` bytes each.
    pub fn new(bytes: usize) -> Self {
        let bytes = bytes.clamp(UNIT, u32::MAX as usize);
        let units = units_of(bytes);
        Self {
            bytes,
            memory: budget_of(units.saturating_mul(CONCURRENT)),
            of_users: Arc::new(UserBudgets::new(units.saturating_mul(CONCURRENT_OF_USER))),
            sending: Arc::default(),
        }
    }

    /// The largest size of a response in bytes. An item of a list is never split, so a single item may be larger.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves the memory for one response to a caller, before its data is read. If responses that their clients take
    /// slowly, or not at all, hold as much, some of them give it up.
    pub(super) async fn permit(&self, caller: &Identity) -> Result<Permit, ApiError> {
        let mut patience = PERMIT_TIMEOUT_S;
        let of_user = match self.of_users.of(caller) {
            Some(part) => Some(self.reserve(&part, Some(&part), &mut patience).await?),
            None => None,
        };
        let all = self.reserve(&self.memory, None, &mut patience).await?;
        Ok(Permit {
            memory: ReservedMemory { all, of_user },
            sending: Arc::clone(&self.sending),
        })
    }

    /// Reserves the memory for one response in a budget within `patience` seconds. `user` is the part of the user whose slow
    /// responses can give their memory up; if it is none, those of all users can.
    async fn reserve(
        &self,
        budget: &Arc<Semaphore>,
        user: Option<&Arc<Semaphore>>,
        patience: &mut u32,
    ) -> Result<OwnedSemaphorePermit, ApiError> {
        let units = units_of(self.bytes);
        let mut acquiring = pin!(Arc::clone(budget).acquire_many_owned(units));
        loop {
            match tokio::time::timeout(Duration::from_secs(1), acquiring.as_mut()).await {
                Ok(Ok(memory)) => return Ok(memory),
                Ok(Err(_)) => break,
                Err(_) => self
                    .sending
                    .give_up_slow_ones(usize::try_from(units).unwrap_or(usize::MAX), user),
            }
            *patience = patience.saturating_sub(1);
            if *patience == 0 {
                break;
            }
        }
        Err(ApiError::answers_busy())
    }
}

/// Returns the number of units for this many bytes.
fn units_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT)).unwrap_or(u32::MAX)
}

/// The reserved memory of one response: in the budget of all responses, and in the part of its user, if it has one.
struct ReservedMemory {
    all: OwnedSemaphorePermit,
    of_user: Option<OwnedSemaphorePermit>,
}

impl ReservedMemory {
    fn units(&self) -> usize {
        self.all.num_permits()
    }

    /// Returns whether the memory is also in this part.
    fn is_in(&self, part: &Arc<Semaphore>) -> bool {
        let own = self.of_user.as_ref().map(OwnedSemaphorePermit::semaphore);
        own.is_some_and(|own| Arc::ptr_eq(own, part))
    }

    /// Releases what is more than this number of units.
    fn shrink_to(&mut self, units: usize) {
        for memory in [Some(&mut self.all), self.of_user.as_mut()].into_iter().flatten() {
            let surplus = memory.num_permits().saturating_sub(units);
            drop(memory.split(surplus));
        }
    }
}

/// The large responses that are being sent.
#[derive(Debug, Default)]
struct LargeResponses(Mutex<Vec<Weak<dyn Sending>>>);

impl LargeResponses {
    fn add(&self, response: &Arc<dyn Sending>) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MANY {
            all.retain(|one| one.strong_count() > 0);
        }
        all.push(Arc::downgrade(response));
    }

    /// Gives slow responses up, the largest first, until `wanted` units are free; only those in the part of a user, if one is
    /// given. If all of them together hold less, they are not what others wait for, and none is given up.
    fn give_up_slow_ones(&self, wanted: usize, user: Option<&Arc<Semaphore>>) {
        let mut slow = self.slow_ones(user);
        if slow.iter().map(|(units, _)| units).sum::<usize>() < wanted {
            return;
        }
        slow.sort_unstable_by_key(|(units, _)| Reverse(*units));
        let mut freed = 0;
        for (units, response) in slow {
            if freed >= wanted {
                break;
            }
            response.give_up();
            freed += units;
        }
    }

    /// Returns the slow responses, each with the units that it holds; only those in the part of a user, if one is given.
    fn slow_ones(&self, user: Option<&Arc<Semaphore>>) -> Vec<(usize, Arc<dyn Sending>)> {
        let now = Instant::now();
        let mut slow = vec![];
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|one| {
            let Some(response) = one.upgrade() else {
                return false;
            };
            let units = response.slow_units(now, user);
            if units > 0 {
                slow.push((units, response));
            }
            true
        });
        slow
    }
}

/// A response that is being sent.
trait Sending: Send + Sync {
    /// Returns the units of the response if its client reads too slowly, otherwise 0. With `user`, responses to other users
    /// have 0, too.
    fn slow_units(&self, now: Instant, user: Option<&Arc<Semaphore>>) -> usize;

    /// Drops the rest of the response and frees its memory. The connection is aborted when the client goes on reading.
    fn give_up(&self);
}

/// The progress of a response that is being sent.
struct Progress<I> {
    /// The rest of it; none if it was given up.
    rest: Mutex<Option<Rest<I>>>,
}

/// The rest of a response that is being sent.
struct Rest<I> {
    chunks: I,
    /// The rest of the current chunk.
    current: Bytes,
    /// True if that was larger than a piece.
    is_split: bool,
    begun_at: Instant,
    moved_at: Instant,
    memory: ReservedMemory,
}

impl<I: Iterator<Item = serde_json::Result<Bytes>>> Rest<I> {
    fn next(&mut self) -> Option<serde_json::Result<Bytes>> {
        self.moved_at = Instant::now();
        if self.current.is_empty() {
            match self.chunks.next()? {
                Ok(chunk) => self.current = chunk,
                Err(error) => return Some(Err(error)),
            }
            self.is_split = self.current.len() > CHUNK;
        }
        let piece = self.current.split_to(self.current.len().min(CHUNK));
        // A part would keep the whole chunk in memory for as long as it waits in the connection.
        Some(Ok(if self.is_split {
            Bytes::copy_from_slice(&piece)
        } else {
            piece
        }))
    }
}

impl<I: Iterator<Item = serde_json::Result<Bytes>>> Progress<I> {
    fn next(&self) -> Option<Result<Bytes, BoxError>> {
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        match rest.as_mut() {
            Some(rest) => Some(rest.next()?.map_err(BoxError::from)),
            None => Some(Err("the client took the response too slowly".into())),
        }
    }
}

impl<I: Send> Sending for Progress<I> {
    fn slow_units(&self, now: Instant, user: Option<&Arc<Semaphore>>) -> usize {
        // One that is being encoded moves.
        let Ok(rest) = self.rest.try_lock() else { return 0 };
        let is_slow = |rest: &&Rest<I>| {
            now.duration_since(rest.moved_at) >= STALLED || now.duration_since(rest.begun_at) >= LONGEST_SENDING
        };
        let is_meant = |rest: &&Rest<I>| user.is_none_or(|user| rest.memory.is_in(user));
        let slow = rest.as_ref().filter(is_slow).filter(is_meant);
        slow.map_or(0, |rest| rest.memory.units())
    }

    fn give_up(&self) {
        if let Ok(mut rest) = self.rest.try_lock() {
            *rest = None;
        }
    }
}

/// The reserved memory of one response.
pub(super) struct Permit {
    memory: ReservedMemory,
    sending: Arc<LargeResponses>,
}

impl Permit {
    /// Sends a value as JSON.
    pub(super) fn answer(self, value: &impl Serialize) -> Result<Response, ApiError> {
        let mut text = TextPieces::default();
        serde_json::to_writer(&mut text, value).map_err(|error| ApiError::fault(&error))?;
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        let bytes = text.bytes();
        if bytes <= CHUNK {
            return Ok((kind, text.next().unwrap_or_default()).into_response());
        }
        Ok((kind, self.body(bytes, text.map(Ok))).into_response())
    }

    /// Sends bytes as they are.
    pub(super) fn bytes(self, bytes: Vec<u8>) -> Response {
        let kind = [(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        )];
        if bytes.len() <= CHUNK {
            return (kind, bytes).into_response();
        }
        let size = bytes.len();
        let body = self.body(size, std::iter::once(Ok(Bytes::from(bytes))));
        (kind, body).into_response()
    }

    /// Sends a list of about `bytes` bytes. Each item is encoded when its turn comes. If an item cannot be encoded, the
    /// connection is aborted: a list that ended there would look complete.
    pub(super) fn list<I, E>(self, bytes: usize, items: I, encode: E) -> Response
    where
        I: Iterator + Send + 'static,
        E: Fn(I::Item, &mut TextPieces) -> serde_json::Result<()> + Send + 'static,
    {
        self.stream_list(b"[", b"]", bytes, items, encode)
    }

    /// Sends an object whose only field is a list of these items.
    pub(super) fn object(self, field: &str, texts: Texts) -> Response {
        let before = format!("{{{}:[", Value::from(field));
        let items = texts.items.into_iter();
        self.stream_list(before.as_bytes(), b"]}", texts.bytes, items, append_encoded)
    }

    fn stream_list<I, E>(self, before: &[u8], after: &'static [u8], bytes: usize, items: I, encode: E) -> Response
    where
        I: Iterator + Send + 'static,
        E: Fn(I::Item, &mut TextPieces) -> serde_json::Result<()> + Send + 'static,
    {
        let before = before.to_vec();
        let writer = ListWriter {
            items,
            encode,
            rest: TextPieces::default(),
            item_bytes: 0,
            before,
            after,
            is_first: true,
            is_over: false,
        };
        let kind = [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];
        (kind, self.body(bytes, writer)).into_response()
    }

    /// Returns the body of a response of about `bytes` bytes, which holds the memory until it is sent.
    fn body<I>(self, bytes: usize, chunks: I) -> Body
    where
        I: Iterator<Item = serde_json::Result<Bytes>> + Send + 'static,
    {
        let Self { memory, sending } = self.shrink_to(bytes);
        let now = Instant::now();
        let progress = Arc::new(Progress {
            rest: Mutex::new(Some(Rest {
                chunks,
                current: Bytes::new(),
                is_split: false,
                begun_at: now,
                moved_at: now,
                memory,
            })),
        });
        // A small one fits into the buffers of its connection.
        if bytes > CHUNK {
            let response: Arc<dyn Sending> = Arc::clone(&progress) as _;
            sending.add(&response);
        }
        Body::from_stream(stream::unfold(progress, |progress| async move {
            let piece = progress.next()?;
            Some((piece, progress))
        }))
    }

    /// Sends one page of a list, shortened to what the response may hold. The headers carry the total, if it is known,
    /// and the offset of the next page.
    ///
    /// # Errors
    /// If an item cannot be encoded.
    pub(super) fn page<T>(
        self,
        page: Page,
        total: Option<i64>,
        part: ListPart<T>,
        to_json: impl Fn(T) -> Option<Value>,
    ) -> Result<Response, ApiError> {
        let texts = self.texts(part, to_json)?;
        let headers = page.truncated_headers(total, texts.rows_read, texts.is_cut);
        let list = self.list(texts.bytes, texts.items.into_iter(), append_encoded);
        Ok((headers, list).into_response())
    }

    /// Encodes as many items as a response may hold, at least one. Items that the client must not see are skipped.
    pub(super) fn texts<T>(&self, part: ListPart<T>, to_json: impl Fn(T) -> Option<Value>) -> Result<Texts, ApiError> {
        let most = self.memory.units() * UNIT;
        let mut texts = Texts {
            items: vec![],
            bytes: 0,
            rows_read: 0,
            is_cut: part.is_cut,
        };
        for row in part.rows {
            if let Some(item) = row.and_then(&to_json) {
                let text = serde_json::to_vec(&item).map_err(|error| ApiError::fault(&error))?;
                if texts.bytes + text.len() > most && !texts.items.is_empty() {
                    texts.is_cut = true;
                    break;
                }
                texts.bytes += text.len() + 1;
                texts.items.push(text);
            }
            texts.rows_read += 1;
        }
        Ok(texts)
    }

    /// Releases the memory that the response does not need.
    fn shrink_to(mut self, bytes: usize) -> Self {
        self.memory.shrink_to(bytes.div_ceil(UNIT));
        self
    }
}

/// The encoded items of a list.
pub(super) struct Texts {
    pub(super) items: Vec<Vec<u8>>,
    /// The length of all items together, in bytes.
    pub(super) bytes: usize,
    /// The number of rows that were read, including those that are not shown.
    pub(super) rows_read: u32,
    /// True if the list was cut short.
    pub(super) is_cut: bool,
}

/// A text in pieces of [`CHUNK`] bytes, of which only the last is shorter. Each is sent, and its memory freed, by itself.
#[derive(Default)]
pub(super) struct TextPieces {
    full: VecDeque<Vec<u8>>,
    last: Vec<u8>,
}

impl TextPieces {
    /// Creates an empty text with room for this many bytes, up to those of a piece.
    fn with_capacity(bytes: usize) -> Self {
        Self {
            full: VecDeque::new(),
            last: Vec::with_capacity(bytes.min(CHUNK)),
        }
    }

    fn bytes(&self) -> usize {
        self.full.len() * CHUNK + self.last.len()
    }

    fn append(&mut self, mut text: &[u8]) {
        loop {
            let room = CHUNK - self.last.len();
            let fitting = text.split_at_checked(room).filter(|(_, rest)| !rest.is_empty());
            let Some((part, rest)) = fitting else {
                self.last.extend_from_slice(text);
                return;
            };
            self.last.extend_from_slice(part);
            let full = std::mem::replace(&mut self.last, Vec::with_capacity(CHUNK));
            self.full.push_back(full);
            text = rest;
        }
    }
}

/// Takes the pieces, one after the other.
impl Iterator for TextPieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.full.pop_front().unwrap_or_else(|| std::mem::take(&mut self.last));
        (!piece.is_empty()).then(|| piece.into())
    }
}

impl io::Write for TextPieces {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.append(text);
        Ok(text.len())
    }

    fn write_all(&mut self, text: &[u8]) -> io::Result<()> {
        self.append(text);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Appends an item that is encoded already.
pub(super) fn append_encoded(item: Vec<u8>, text: &mut TextPieces) -> serde_json::Result<()> {
    text.append(&item);
    Ok(())
}

/// A list that is being sent.
struct ListWriter<I, E> {
    items: I,
    /// Appends an item as JSON.
    encode: E,
    /// The part of the last item that was not sent.
    rest: TextPieces,
    /// The length of the last item, in bytes.
    item_bytes: usize,
    /// The text before the first item and after the last.
    before: Vec<u8>,
    after: &'static [u8],
    is_first: bool,
    is_over: bool,
}

impl<I, E> Iterator for ListWriter<I, E>
where
    I: Iterator,
    E: Fn(I::Item, &mut TextPieces) -> serde_json::Result<()>,
{
    type Item = serde_json::Result<Bytes>;

    fn next(&mut self) -> Option<serde_json::Result<Bytes>> {
        if let Some(piece) = self.rest.next() {
            return Some(Ok(piece));
        }
        if self.is_over {
            return None;
        }
        let before = std::mem::take(&mut self.before);
        let mut text = match self.items.next() {
            Some(item) => {
                // Neighbours are about as long as each other.
                let mut text = TextPieces::with_capacity(self.item_bytes);
                text.append(&before);
                if !self.is_first {
                    text.append(b",");
                }
                if let Err(error) = (self.encode)(item, &mut text) {
                    self.is_over = true;
                    return Some(Err(error));
                }
                self.item_bytes = text.bytes();
                text
            }
            None => {
                self.is_over = true;
                let mut text = TextPieces::default();
                text.append(&before);
                text.append(self.after);
                text
            }
        };
        self.is_first = false;
        let first = text.next();
        self.rest = text;
        first.map(Ok)
    }
}

#[cfg(test)]
mod tests {
    use axum::body::to_bytes;
    use futures::StreamExt;

    use super::*;
    use crate::http::user_budgets::user;

    const LARGEST: usize = 1 << 20;

    fn nobody() -> Identity {
        Identity::unauthenticated()
    }

    async fn permit_in(budget: &ResponseBudget) -> Permit {
        budget.permit(&nobody()).await.expect("memory is free")
    }

    async fn response_to(caller: &Identity, budget: &ResponseBudget, bytes: usize) -> Response {
        budget
            .permit(caller)
            .await
            .expect("memory is free")
            .bytes(vec![b'x'; bytes])
    }

    async fn response_of(budget: &ResponseBudget, bytes: usize) -> Response {
        response_to(&nobody(), budget, bytes).await
    }

    /// Returns the length of the body, if all of it can be read.
    async fn length_of(response: Response) -> Option<usize> {
        let read = to_bytes(response.into_body(), usize::MAX).await;
        read.ok().map(|bytes| bytes.len())
    }

    #[tokio::test(start_paused = true)]
    async fn the_largest_response_that_is_not_taken_gives_its_memory_up_for_another() {
        let budget = ResponseBudget::new(LARGEST);
        let sizes = [LARGEST / 2, LARGEST, LARGEST / 2, LARGEST, LARGEST];
        let mut untaken = vec![];
        for bytes in sizes {
            untaken.push(response_of(&budget, bytes).await);
        }
        let begun = Instant::now();
        drop(budget.permit(&nobody()).await.expect("one gives its memory up"));
        assert!(begun.elapsed() >= STALLED);
        let mut complete = 0;
        for (response, bytes) in untaken.into_iter().zip(sizes) {
            let length = length_of(response).await;
            assert!(length.is_none_or(|length| length == bytes));
            assert!(length.is_some() || bytes == LARGEST);
            complete += usize::from(length.is_some());
        }
        assert_eq!(complete, 4);
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_response_goes_on_when_others_wait_for_what_it_does_not_hold() {
        let budget = ResponseBudget::new(LARGEST);
        let slow = response_of(&budget, LARGEST / 2).await;
        let mut reading = vec![];
        for _ in 0..3 {
            reading.push(budget.permit(&nobody()).await.expect("memory is free"));
        }
        assert!(budget.permit(&nobody()).await.is_err(), "the memory is taken");
        assert_eq!(length_of(slow).await, Some(LARGEST / 2));
        drop(reading);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_is_taken_slowly_is_complete_when_nobody_waits() {
        let budget = ResponseBudget::new(LARGEST);
        let response = response_of(&budget, LARGEST).await;
        tokio::time::advance(LONGEST_SENDING * 2).await;
        drop(budget.permit(&nobody()).await.expect("memory is free"));
        assert_eq!(length_of(response).await, Some(LARGEST));
        assert_eq!(budget.memory.available_permits(), 4 * LARGEST / UNIT);
    }

    #[tokio::test]
    async fn a_list_of_items_of_any_length_is_sent_in_pieces_of_a_limited_length() {
        let lengths = [0, 1, CHUNK - 3, CHUNK - 2, CHUNK - 1, CHUNK, 3 * CHUNK + 5, 2];
        for count in 0..=lengths.len() {
            let items: Vec<String> = lengths[..count].iter().map(|length| "x".repeat(*length)).collect();
            let expected = serde_json::to_vec(&items).expect("JSON");
            let budget = ResponseBudget::new(LARGEST);
            let encoded: Vec<Vec<u8>> = items
                .iter()
                .map(|item| serde_json::to_vec(item).expect("JSON"))
                .collect();
            let list = items.clone().into_iter();
            let responses = [
                permit_in(&budget).await.answer(&items).expect("JSON"),
                permit_in(&budget)
                    .await
                    .list(expected.len(), list, |item, text| serde_json::to_writer(text, &item)),
                permit_in(&budget)
                    .await
                    .list(expected.len(), encoded.into_iter(), append_encoded),
            ];
            for response in responses {
                let mut pieces = response.into_body().into_data_stream();
                let mut sent = vec![];
                while let Some(piece) = pieces.next().await {
                    let piece = piece.expect("a piece");
                    assert!(!piece.is_empty() && piece.len() <= CHUNK, "{} bytes", piece.len());
                    sent.extend_from_slice(&piece);
                }
                assert!(sent == expected, "{count} items");
            }
        }
    }

    #[tokio::test]
    async fn a_list_with_an_item_that_cannot_be_encoded_is_aborted() {
        let permit = permit_in(&ResponseBudget::new(LARGEST)).await;
        let encode = |item: usize, text: &mut TextPieces| match item {
            2 => Err(serde::ser::Error::custom("not this one")),
            _ => serde_json::to_writer(text, &item),
        };
        let response = permit.list(10, 0..5_usize, encode);
        assert_eq!(length_of(response).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_responses_to_one_user_leave_room_for_those_to_others() {
        let budget = ResponseBudget::new(LARGEST);
        let ann = user("ann");
        let mut reading = vec![];
        for _ in 0..CONCURRENT_OF_USER {
            reading.push(budget.permit(&ann).await.expect("memory is free"));
        }
        assert!(budget.permit(&ann).await.is_err(), "ann has her part");
        drop(budget.permit(&user("bob")).await.expect("there is room for others"));
        reading.pop();
        drop(budget.permit(&ann).await.expect("her part has room again"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_user_who_has_a_whole_part_waits_for_slow_responses_of_that_part_only() {
        let budget = ResponseBudget::new(LARGEST);
        let ann = user("ann");
        let of_bob = response_to(&user("bob"), &budget, LARGEST).await;
        let mut of_ann = vec![];
        for _ in 0..CONCURRENT_OF_USER {
            of_ann.push(response_to(&ann, &budget, LARGEST).await);
        }
        drop(budget.permit(&ann).await.expect("one of ann gives its memory up"));
        assert_eq!(length_of(of_bob).await, Some(LARGEST));
        let mut complete = 0;
        for response in of_ann {
            complete += u32::from(length_of(response).await.is_some());
        }
        assert_eq!(complete, CONCURRENT_OF_USER - 1);
    }
}
