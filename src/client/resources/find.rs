//! Finds resources by the beginnings of their ids, and reads times.

use std::time::Duration;

use serde_json::{Value, json};

use super::{instant, items, text};
use crate::client::api::ApiClient;
use crate::client::error::{ClientError, ClientResult};
use crate::domain::time::{Clock, Timestamp};

/// The number of threads among which the beginning of an id is looked up: the last changed ones.
const MAX_THREADS: u32 = 1000;

/// The number of threads in which answered interrupts are looked for: the last changed ones.
const MAX_SEARCHED: u32 = 300;

/// The status of interrupts that wait for an answer.
const PENDING: &str = "pending";

/// The number of items of one page.
const PAGE: u32 = 100;

/// The shortest beginning of an id.
const MIN_PREFIX: usize = 4;

/// The number of matches that are named.
const MAX_NAMED: usize = 5;

/// Reads a point in time: an age such as `30m`, `12h`, `7d`, a date, or a time.
pub(super) fn parse_since(text: Option<&str>, clock: &dyn Clock) -> ClientResult<Option<Timestamp>> {
    let Some(text) = text.map(str::trim) else {
        return Ok(None);
    };
    let unit = text.chars().next_back().and_then(|unit| match unit {
        's' => Some(1),
        'm' => Some(60),
        'h' => Some(60 * 60),
        'd' => Some(24 * 60 * 60),
        'w' => Some(7 * 24 * 60 * 60),
        _ => None,
    });
    let number = unit.and_then(|_| text.get(..text.len() - 1)?.parse::<u64>().ok());
    if let (Some(unit), Some(number)) = (unit, number) {
        let age = Duration::from_secs(number.saturating_mul(unit));
        return Ok(Some(clock.now().minus(age)));
    }
    let read = Timestamp::read(text).or_else(|| Timestamp::read(&format!("{text}T00:00:00")));
    let wrong = || {
        let message =
            "--since must be an age such as 30m, 12h or 7d, or a time such as 2026-11-25 or 2026-11-25T08:00:00Z";
        ClientError::Usage(message.to_owned())
    };
    read.map(Some).ok_or_else(wrong)
}

/// Returns whether a text is a whole id of a thread or a run.
pub(super) fn is_uuid(text: &str) -> bool {
    uuid::Uuid::try_parse(text).is_ok()
}

/// Returns the id of the thread that a person means: a whole id, the beginning of one, or `last`.
pub(in crate::client) async fn thread(api: &ApiClient, given: &str) -> ClientResult<String> {
    let given = given.trim();
    if is_uuid(given) {
        return Ok(given.to_owned());
    }
    let limit = if given == "last" { 1 } else { MAX_THREADS };
    let body = json!({"limit": limit, "sort_by": "updated_at", "sort_order": "desc", "select": ["thread_id"]});
    let threads = items(api.post(&["threads", "search"], &body).await?);
    let ids: Vec<String> = threads.iter().map(|thread| text(thread, "thread_id")).collect();
    match (given, ids.first()) {
        ("last", Some(id)) => Ok(id.clone()),
        ("last", None) => Err(ClientError::NotFound("there is no thread yet".to_owned())),
        _ => unique("thread", given, ids),
    }
}

/// Returns the only id that begins with a text.
fn unique(what: &str, prefix: &str, ids: Vec<String>) -> ClientResult<String> {
    let prefix = prefix.to_ascii_lowercase();
    if prefix.len() < MIN_PREFIX {
        return Err(ClientError::Usage(format!(
            "`{prefix}` is too short: give the id of the {what}, or at least its first {MIN_PREFIX} letters"
        )));
    }
    let mut found: Vec<String> = ids.into_iter().filter(|id| id.starts_with(&prefix)).collect();
    found.dedup();
    match found.len() {
        0 => Err(ClientError::NotFound(format!("there is no {what} `{prefix}`"))),
        1 => Ok(found.swap_remove(0)),
        number => Err(ClientError::Usage(format!(
            "`{prefix}` is the beginning of {number} ids: {}{}",
            found
                .iter()
                .take(MAX_NAMED)
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", "),
            if number > MAX_NAMED { ", …" } else { "" }
        ))),
    }
}

/// A run with its thread.
pub(super) struct FoundRun {
    pub(super) thread: String,
    pub(super) run: String,
}

/// Returns the run that a person means. Without the thread, the threads are searched that changed last.
pub(super) async fn run(api: &ApiClient, run: &str, in_thread: Option<&str>) -> ClientResult<FoundRun> {
    let run = run.trim();
    if let Some(given) = in_thread {
        let thread = thread(api, given).await?;
        if is_uuid(run) {
            let run = run.to_owned();
            return Ok(FoundRun { thread, run });
        }
        let runs = runs_of(api, &thread, None, MAX_THREADS).await?;
        let run = unique("run", run, runs.iter().map(|run| text(run, "run_id")).collect())?;
        return Ok(FoundRun { thread, run });
    }
    let body = json!({
        "limit": MAX_THREADS, "sort_by": "updated_at", "sort_order": "desc",
        "select": ["thread_id", "created_at", "updated_at"],
    });
    let threads = items(api.post(&["threads", "search"], &body).await?);
    if is_uuid(run) {
        return whole_run(api, run, &threads).await;
    }
    let mut found = vec![];
    for candidate in threads.iter().take(usize::try_from(PAGE).unwrap_or(usize::MAX)) {
        let thread = text(candidate, "thread_id");
        let runs = runs_of(api, &thread, None, PAGE).await?;
        let ids = runs.iter().map(|found| text(found, "run_id"));
        let matching = ids.filter(|id| id.starts_with(&run.to_ascii_lowercase()));
        found.extend(matching.map(|run| FoundRun {
            thread: thread.clone(),
            run,
        }));
    }
    let id = unique("run", run, found.iter().map(|found| found.run.clone()).collect())?;
    let found = found.into_iter().find(|found| found.run == id);
    found.ok_or_else(|| ClientError::NotFound(format!("there is no run `{run}`")))
}

/// Looks for a run, also of a subagent, in the threads that existed when it was made and have changed since.
async fn whole_run(api: &ApiClient, run: &str, threads: &[Value]) -> ClientResult<FoundRun> {
    let made = made_at(run);
    // Clocks of several servers differ a little.
    let tolerance = Duration::from_secs(60);
    let may_have = |thread: &&Value| {
        let Some(made) = made else { return true };
        let is_older = instant(thread, "created_at").is_none_or(|created| created <= made.plus(tolerance));
        let has_changed = instant(thread, "updated_at").is_none_or(|updated| updated >= made.minus(tolerance));
        is_older && has_changed
    };
    for candidate in threads.iter().filter(may_have) {
        let thread = text(candidate, "thread_id");
        match api.get(&["threads", &thread, "runs", run], &[]).await {
            Ok(_) => {
                let run = run.to_owned();
                return Ok(FoundRun { thread, run });
            }
            Err(error) if error.is_refusal(&[404, 422]) => {}
            Err(error) => return Err(error),
        }
    }
    Err(ClientError::NotFound(format!(
        "there is no run `{run}` in the last {} threads; name the thread with --thread",
        threads.len()
    )))
}

/// Returns the time in an id; none if the id contains no time.
fn made_at(id: &str) -> Option<Timestamp> {
    let id = uuid::Uuid::try_parse(id).ok()?;
    let (seconds, nanoseconds) = id.get_timestamp()?.to_unix();
    let micros = i64::try_from(seconds).ok()?.checked_mul(1_000_000)?;
    Some(Timestamp(micros.checked_add(i64::from(nanoseconds / 1000))?))
}

/// Returns the runs of a thread, the newest first.
pub(in crate::client) async fn runs_of(
    api: &ApiClient,
    thread: &str,
    status: Option<&str>,
    limit: u32,
) -> ClientResult<Vec<Value>> {
    let limit = limit.to_string();
    let mut query = vec![("limit", limit.as_str())];
    query.extend(status.map(|status| ("status", status)));
    Ok(items(api.get(&["threads", thread, "runs"], &query).await?))
}

/// Returns the interrupts of a status, at most `limit`, the oldest first.
pub(in crate::client) async fn interrupts(
    api: &ApiClient,
    thread: Option<&str>,
    status: &str,
    limit: u32,
) -> ClientResult<Vec<Value>> {
    if let Some(thread) = thread {
        let mut found = api
            .get(&["threads", thread, "interrupts"], &[("status", status)])
            .await?;
        return Ok(items(found["interrupts"].take()));
    }
    let mut all: Vec<Value> = vec![];
    if status != PENDING {
        return answered_interrupts(api, status, limit).await;
    }
    loop {
        let rest = limit.saturating_sub(u32::try_from(all.len()).unwrap_or(u32::MAX));
        let page = rest.min(PAGE);
        if page == 0 {
            return Ok(all);
        }
        let size = page.to_string();
        let offset = all.len().to_string();
        let query = [("status", PENDING), ("limit", &size), ("offset", &offset)];
        let mut found = api.get(&["interrupts"], &query).await?;
        let found = items(found["interrupts"].take());
        let is_last = found.len() < usize::try_from(page).unwrap_or(usize::MAX);
        all.extend(found);
        if is_last {
            return Ok(all);
        }
    }
}

/// Returns the interrupts of a status other than pending, of the threads that changed last.
async fn answered_interrupts(api: &ApiClient, status: &str, limit: u32) -> ClientResult<Vec<Value>> {
    let limit = usize::try_from(limit).unwrap_or(usize::MAX);
    let body = json!({
        "limit": MAX_SEARCHED, "sort_by": "updated_at", "sort_order": "desc", "select": ["thread_id"],
    });
    let threads = items(api.post(&["threads", "search"], &body).await?);
    let mut all = vec![];
    for thread in &threads {
        let thread = text(thread, "thread_id");
        let mut found = api
            .get(&["threads", &thread, "interrupts"], &[("status", status)])
            .await?;
        all.extend(items(found["interrupts"].take()));
        if all.len() >= limit {
            break;
        }
    }
    all.sort_by_key(|interrupt| instant(interrupt, "created_at"));
    all.truncate(limit);
    Ok(all)
}

/// Returns the interrupt that a person means, of these statuses.
pub(super) async fn interrupt(api: &ApiClient, given: &str, statuses: &[&str], min: usize) -> ClientResult<Value> {
    const LARGEST: u32 = 10_000;
    let given = given.trim().to_ascii_lowercase();
    if given.len() < min {
        return Err(ClientError::Usage(format!(
            "`{given}` is too short: give the id of the interrupt, or at least its first {min} digits"
        )));
    }
    let mut found: Vec<Value> = vec![];
    for status in statuses {
        let all = interrupts(api, None, status, LARGEST).await?;
        found.extend(
            all.into_iter()
                .filter(|interrupt| text(interrupt, "id").starts_with(&given)),
        );
        // One that waits is meant first; the others are in many threads.
        if !found.is_empty() {
            break;
        }
    }
    let id = unique(
        "interrupt",
        &given,
        found.iter().map(|interrupt| text(interrupt, "id")).collect(),
    )?;
    let one = found.into_iter().find(|interrupt| text(interrupt, "id") == id);
    one.ok_or_else(|| ClientError::NotFound(format!("there is no interrupt `{given}`")))
}

/// Returns the decisions that hold for the rest of a thread, the oldest first.
pub(in crate::client) async fn approvals(api: &ApiClient, thread: &str) -> ClientResult<Vec<Value>> {
    let mut found = api.get(&["threads", thread, "approvals"], &[]).await?;
    Ok(items(found["approvals"].take()))
}

/// Returns the id of the decision of a thread that a person means: a whole id, or the beginning of one.
pub(super) async fn approval(api: &ApiClient, thread: &str, given: &str) -> ClientResult<String> {
    let given = given.trim();
    if is_uuid(given) {
        return Ok(given.to_owned());
    }
    let found = approvals(api, thread).await?;
    unique("decision", given, found.iter().map(|one| text(one, "id")).collect())
}
