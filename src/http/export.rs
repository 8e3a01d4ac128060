//! The export of everything that belongs to one user, as JSON lines.
//!
//! Each line is an object with a `type` and the `data`, in the form of the API where it has one.

use std::sync::Arc;

use axum::body::Bytes;
use futures::channel::mpsc;
use futures::future::BoxFuture;
use futures::{SinkExt, Stream, StreamExt, stream};
use serde_json::{Map, Value, json};
use tokio::sync::Semaphore;
use uuid::Uuid;

use super::audit::AuditEntryView;
use super::wire;
use super::wire::approval::ApprovalView;
use super::wire::assistant::{AssistantView, VersionView};
use super::wire::child_run::UsageView;
use super::wire::cron::CronView;
use super::wire::delivery::DeliveryView;
use super::wire::interrupt::InterruptView;
use super::wire::item::ItemView;
use super::wire::key::ApiKeyView;
use super::wire::run::RunView;
use super::wire::thread::ThreadView;
use crate::db::assistants::AssistantQuery;
use crate::db::crons::CronQuery;
use crate::db::deliveries::DeliverySearch;
use crate::db::erasure::{DataSubject, threads_of};
use crate::db::events::{Logged, LoggedEvent};
use crate::db::runs::RunList;
use crate::db::{
    Db, DbError, DbResult, PageQuery, Tx, assistants, audit, checkpoints, crons, deliveries, events, interrupts, items,
    keys, remembered, runs, threads,
};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, ThreadId};
use crate::domain::item::{ItemFilter, ItemSearch, Namespace};
use crate::domain::time::Timestamp;

/// The number of rows of a page.
const PAGE: i64 = 100;
/// The number of items of a page.
const ITEMS_OF_PAGE: u32 = 100;
/// The approximate size of a page in memory, in bytes.
const PAGE_BYTES: usize = 8 << 20;

/// A line of the export.
struct Line {
    kind: &'static str,
    data: Value,
}

impl Line {
    fn new(kind: &'static str, data: Value) -> Self {
        Self { kind, data }
    }
}

/// Runs a read of the database, which may be slow.
macro_rules! read {
    ($writer:expr, |$tx:ident| $body:expr) => {
        $writer.search(move |$tx| Box::pin(async move { $body })).await?
    };
}

/// Returns everything that belongs to a user, as JSON lines. Each chunk has whole lines. `turns` are the connections for
/// searches that whoever reads the lines may hold, if they are limited.
///
/// An error ends the lines; what was read before is part of them.
pub fn user_lines(
    db: Db,
    owner: Ownership,
    turns: Option<Arc<Semaphore>>,
) -> impl Stream<Item = DbResult<Bytes>> + Send {
    let (sender, receiver) = mpsc::channel(0);
    let mut writer = LineWriter {
        db,
        owner,
        turns,
        sender,
    };
    let writing = async move { writer.write_user().await.err() };
    // The stream drives the reading, so that nothing is read for a client that is gone.
    let failure = stream::once(writing).filter_map(std::future::ready).map(Err);
    stream::select(receiver.map(Ok), failure)
}

/// Reads what belongs to a user, and sends it as lines. A page is read after the one before it was taken.
struct LineWriter {
    db: Db,
    owner: Ownership,
    turns: Option<Arc<Semaphore>>,
    sender: mpsc::Sender<Bytes>,
}

impl LineWriter {
    async fn write_user(&mut self) -> DbResult<()> {
        let user = json!({"user": self.owner.owner.as_str(), "tenant": self.owner.tenant.as_str()});
        self.write(vec![Line::new("user", user)]).await?;
        self.write_keys().await?;
        self.write_assistants().await?;
        self.write_crons().await?;
        self.write_items().await?;
        self.write_threads().await?;
        self.write_deliveries().await?;
        self.write_audit().await
    }

    async fn write(&mut self, lines: Vec<Line>) -> DbResult<()> {
        let mut text = vec![];
        for Line { kind, data } in lines {
            text.extend_from_slice(json!({"type": kind, "data": data}).to_string().as_bytes());
            text.push(b'\n');
        }
        if text.is_empty() {
            return Ok(());
        }
        // The receiver is gone only when this future is, too.
        self.sender.send(text.into()).await.map_err(|_| DbError::Closed)
    }

    /// Reads the database in a turn of whoever reads the lines. An export waits for it as long as that takes, and holds none
    /// while its client takes a page.
    async fn search<T, J>(&self, job: J) -> DbResult<T>
    where
        T: Send + 'static,
        J: for<'t> FnOnce(&'t mut Tx<'_>) -> BoxFuture<'t, DbResult<T>> + Send + 'static,
    {
        let _turn = match &self.turns {
            Some(turns) => turns.acquire().await.ok(),
            None => None,
        };
        self.db.search(job).await
    }

    /// The filter of searches for what the user owns.
    fn own(&self) -> AccessScope {
        AccessScope::Own {
            ownership: self.owner.clone(),
            shared: vec![],
        }
    }

    async fn write_keys(&mut self) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let tenant = self.owner.tenant.clone();
            let page = read!(self, |tx| keys::list(tx, Some(&tenant), PAGE, offset).await);
            if page.is_empty() {
                return Ok(());
            }
            let of_user = page.iter().filter(|key| key.user == self.owner.owner);
            let lines = of_user.map(|key| Line::new("api_key", wire::json(&ApiKeyView::of(key))));
            self.write(lines.collect()).await?;
            offset += PAGE;
        }
    }

    async fn write_assistants(&mut self) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let wanted = AssistantQuery {
                offset,
                limit: PAGE,
                ..AssistantQuery::within(self.own())
            };
            let page = read!(self, |tx| assistants::search(tx, &wanted, PAGE_BYTES).await);
            if page.rows.is_empty() {
                return Ok(());
            }
            offset += count(&page.rows);
            // The default assistants of the server are in every scope.
            let found = page.into_items().into_iter();
            let of_user: Vec<_> = found.filter(|found| found.ownership == self.owner).collect();
            for assistant in of_user {
                let id = assistant.id;
                let view = wire::json(&AssistantView::from(assistant));
                self.write(vec![Line::new("assistant", view)]).await?;
                self.write_versions(id).await?;
            }
        }
    }

    async fn write_versions(&mut self, assistant: AssistantId) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let all = MetadataFilter::default();
            let wanted = PageQuery {
                limit: PAGE,
                offset,
                bytes: PAGE_BYTES,
            };
            let page = read!(self, |tx| assistants::versions(tx, assistant, &all, wanted).await);
            if page.rows.is_empty() {
                return Ok(());
            }
            offset += count(&page.rows);
            let versions = page.into_items().into_iter().map(VersionView::from);
            let lines = versions.map(|version| Line::new("assistant_version", wire::json(&version)));
            self.write(lines.collect()).await?;
        }
    }

    async fn write_crons(&mut self) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let wanted = CronQuery {
                offset,
                ..CronQuery::within(self.own(), PAGE)
            };
            let page = read!(self, |tx| crons::search(tx, &wanted, PAGE_BYTES).await);
            if page.rows.is_empty() {
                return Ok(());
            }
            offset += count(&page.rows);
            let crons = page.into_items().into_iter().map(CronView::from);
            let lines = crons.map(|cron| Line::new("cron", wire::json(&cron)));
            self.write(lines.collect()).await?;
        }
    }

    async fn write_items(&mut self) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let wanted = ItemSearch {
                prefix: Namespace::stored(vec![]),
                filter: ItemFilter::default(),
                limit: ITEMS_OF_PAGE,
                offset,
            };
            let space = self.owner.clone();
            // Items that have expired but were not yet removed are part of the export.
            let page = read!(self, |tx| {
                items::search(tx, &space, &wanted, PAGE_BYTES, Timestamp(0)).await
            });
            let Ok(read @ 1..) = u32::try_from(page.rows.len()) else {
                return Ok(());
            };
            offset += read;
            let items = page.into_items().into_iter().map(ItemView::from);
            let lines = items.map(|item| Line::new("item", wire::json(&item)));
            self.write(lines.collect()).await?;
        }
    }

    async fn write_threads(&mut self) -> DbResult<()> {
        let subject = DataSubject::user(self.owner.clone());
        let mut last: Option<ThreadId> = None;
        loop {
            let subject = subject.clone();
            let found: Vec<ThreadId> = read!(self, |tx| threads_of(tx, &subject, last, PAGE).await);
            if found.is_empty() {
                return Ok(());
            }
            last = found.last().copied();
            for thread in found {
                self.write_thread(thread).await?;
            }
        }
    }

    /// Writes a thread with its newest state, its runs, its interrupts and its log.
    async fn write_thread(&mut self, thread: ThreadId) -> DbResult<()> {
        let lines: Vec<Line> = read!(self, |tx| thread_lines(tx, thread).await);
        self.write(lines).await?;
        self.write_runs(thread).await?;
        let asked = read!(self, |tx| interrupts::of_thread(tx, thread, None).await);
        let asked = asked.into_iter().map(InterruptView::from);
        let lines = asked.map(|asked| Line::new("interrupt", wire::json(&asked)));
        self.write(lines.collect()).await?;
        let decided = read!(self, |tx| remembered::of_thread(tx, thread).await);
        let decided = decided.into_iter().map(ApprovalView::from);
        let lines = decided.map(|decided| Line::new("approval", wire::json(&decided)));
        self.write(lines.collect()).await?;
        let mut after = i64::MIN;
        loop {
            let page: Vec<LoggedEvent> = read!(self, |tx| events::read(tx, thread, after, PAGE).await);
            let Some(last) = page.last() else { return Ok(()) };
            after = last.seq;
            let lines = page.iter().map(|event| log_line(thread, event));
            self.write(lines.collect()).await?;
        }
    }

    async fn write_runs(&mut self, thread: ThreadId) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let wanted = RunList {
                thread,
                status: None,
                limit: PAGE,
                offset,
                bytes: PAGE_BYTES,
            };
            let page = read!(self, |tx| runs::list(tx, &wanted).await);
            if page.rows.is_empty() {
                return Ok(());
            }
            offset += count(&page.rows);
            for run in page.into_items() {
                let root = run.id;
                let below = read!(self, |tx| runs::descendants(tx, root).await);
                let all = std::iter::once(run).chain(below).map(RunView::from);
                let lines = all.map(|run| Line::new("run", wire::json(&run)));
                self.write(lines.collect()).await?;
            }
        }
    }

    async fn write_deliveries(&mut self) -> DbResult<()> {
        let mut offset = 0;
        loop {
            let wanted = DeliverySearch {
                offset,
                ..DeliverySearch::within(self.own(), PAGE)
            };
            let page = read!(self, |tx| deliveries::search(tx, &wanted, PAGE_BYTES).await);
            if page.rows.is_empty() {
                return Ok(());
            }
            offset += count(&page.rows);
            let deliveries = page.into_items().into_iter().map(DeliveryView::whole);
            let lines = deliveries.map(|delivery| Line::new("webhook_delivery", wire::json(&delivery)));
            self.write(lines.collect()).await?;
        }
    }

    async fn write_audit(&mut self) -> DbResult<()> {
        let mut after = Uuid::nil();
        loop {
            let of = self.owner.clone();
            let part = read!(self, |tx| audit::of_user(
                tx,
                &of.tenant,
                &of.owner,
                after,
                audit::ENTRIES_OF_PART
            )
            .await);
            let entries = part.found.into_iter().map(AuditEntryView::from);
            let lines = entries.map(|entry| Line::new("audit_entry", wire::json(&entry)));
            self.write(lines.collect()).await?;
            let Some(end) = part.end else { return Ok(()) };
            after = end;
        }
    }
}

/// Returns the number of rows of a page.
fn count<T>(rows: &[T]) -> i64 {
    i64::try_from(rows.len()).unwrap_or(PAGE)
}

/// Returns the line of a thread with its newest state; none if it is gone.
async fn thread_lines(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Vec<Line>> {
    let Some(thread) = threads::find(tx, id).await? else {
        return Ok(vec![]);
    };
    let values = checkpoints::newest_state(tx, id, Lane::Main).await?;
    let view = ThreadView::new(thread, values, Map::new());
    Ok(vec![Line::new("thread", wire::json(&view))])
}

/// Returns the line of a checkpoint or another event of a thread.
fn log_line(thread: ThreadId, event: &LoggedEvent) -> Line {
    let subagent_run = match event.lane {
        Lane::Main => None,
        Lane::Child(run) => Some(run),
    };
    let mut data = json!({
        "thread_id": thread,
        "number": event.seq,
        "run_id": event.run,
        "subagent_run_id": subagent_run,
        "created_at": event.at.to_string(),
    });
    match &event.what {
        Logged::Entry(entry) => {
            data["checkpoint_id"] = json!(entry.id);
            data["parent_checkpoint_id"] = json!(entry.parent);
            data["node"] = json!(entry.node);
            data["writes"] = json!(entry.writes);
            Line::new("checkpoint", data)
        }
        Logged::Fact(fact) => {
            data["event"] = shown_fact(fact);
            Line::new("event", data)
        }
    }
}

/// Returns an event with the fields that are not stored while they are empty.
fn shown_fact(fact: &Fact) -> Value {
    let mut shown = json!(fact);
    match fact {
        Fact::Started { base, .. } => shown["base"] = json!(base),
        Fact::Answered { writes, .. } => shown["writes"] = json!(writes),
        Fact::Ended { error, waits, used, .. } => {
            shown["error"] = json!(error);
            shown["waits"] = json!(waits);
            if let Some(used) = used {
                shown["used"]["own"] = json!(UsageView::from(used.own));
            }
            if let Some(tree) = used.as_ref().and_then(|used| used.tree) {
                shown["used"]["tree"] = json!(UsageView::from(tree));
            }
        }
        Fact::Calling { .. }
        | Fact::BrokenOff { .. }
        | Fact::FellBack { .. }
        | Fact::Asked { .. }
        | Fact::Paused
        | Fact::Undone
        | Fact::Custom { .. } => {}
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::db::RowAccess;

    #[tokio::test]
    #[expect(
        clippy::disallowed_methods,
        reason = "the writer of a database that lives as long as the test"
    )]
    async fn every_read_waits_for_a_turn_and_gives_it_back() {
        let spawn = |_: &'static str, task: BoxFuture<'static, ()>| drop(tokio::spawn(task));
        let db = Db::open("sqlite::memory:", &spawn).await.expect("a database");
        let turns = Arc::new(Semaphore::new(1));
        let reading = async {
            let mut lines = pin!(user_lines(db, Ownership::default(), Some(Arc::clone(&turns))));
            let first = lines.next().await.expect("a line").expect("it is read");
            assert!(String::from_utf8_lossy(&first).contains("\"type\":\"user\""));
            let held = turns.acquire().await.expect("a turn");
            assert!(futures::poll!(lines.next()).is_pending());
            let mut later = Box::pin(turns.acquire());
            assert!(futures::poll!(&mut later).is_pending());
            drop(held);
            assert!(
                futures::poll!(&mut later).is_pending(),
                "the turn is that of the export, which has waited for longer"
            );
            drop(later);
            while let Some(line) = lines.next().await {
                line.expect("it is read");
            }
        };
        RowAccess::Server.scope(reading).await;
        assert_eq!(turns.available_permits(), 1);
    }
}
