//! The export of everything that belongs to one user, as JSON lines.
//!
//! Each line is an object with a `type` and the `data`, in the form of the API where it has one.

use std::io::Write;

use serde_json::{Map, Value, json};

use crate::db::assistants::AssistantQuery;
use crate::db::audit::AuditSearch;
use crate::db::crons::CronQuery;
use crate::db::deliveries::DeliverySearch;
use crate::db::erasure::{DataSubject, threads_of};
use crate::db::events::{Logged, LoggedEvent};
use crate::db::runs::RunList;
use crate::db::{
    Db, DbResult, PageQuery, Tx, assistants, audit, checkpoints, crons, deliveries, events, interrupts, items, keys,
    runs, threads,
};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::audit::AuditEntry;
use crate::domain::checkpoint::Lane;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::ThreadId;
use crate::domain::item::{ItemFilter, ItemSearch, Namespace};
use crate::domain::state::State;
use crate::domain::time::Timestamp;
use crate::http::wire::assistant::{AssistantView, VersionView};
use crate::http::wire::cron::CronView;
use crate::http::wire::delivery::DeliveryView;
use crate::http::wire::interrupt::InterruptView;
use crate::http::wire::item::ItemView;
use crate::http::wire::key::ApiKeyView;
use crate::http::wire::run::RunView;
use crate::http::wire::thread::ThreadView;
use crate::http::wire::{self};

/// The number of rows of a page.
const PAGE: i64 = 100;
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

/// Runs a read of the database.
macro_rules! read {
    ($db:expr, |$tx:ident| $body:expr) => {
        $db.read(move |$tx| Box::pin(async move { $body })).await?
    };
}

/// Writes everything that belongs to a user.
pub(super) async fn write_user(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let user = json!({"user": owner.owner.as_str(), "tenant": owner.tenant.as_str()});
    write_lines(output, vec![Line::new("user", user)])?;
    write_keys(db, owner, output).await?;
    write_assistants(db, owner, output).await?;
    write_crons(db, owner, output).await?;
    write_items(db, owner, output).await?;
    let subject = DataSubject {
        tenant: owner.tenant.clone(),
        user: Some(owner.owner.clone()),
    };
    let mut last: Option<ThreadId> = None;
    loop {
        let subject = subject.clone();
        let found: Vec<ThreadId> = read!(db, |tx| threads_of(tx, &subject, last, PAGE).await);
        for thread in &found {
            write_thread(db, *thread, output).await?;
        }
        last = found.last().copied();
        if last.is_none() {
            break;
        }
    }
    write_deliveries(db, owner, output).await?;
    write_audit(db, owner, output).await
}

fn write_lines(output: &mut (dyn Write + Send), lines: Vec<Line>) -> anyhow::Result<()> {
    for Line { kind, data } in lines {
        serde_json::to_writer(&mut *output, &json!({"type": kind, "data": data}))?;
        output.write_all(b"\n")?;
    }
    Ok(())
}

fn own(owner: &Ownership) -> AccessScope {
    AccessScope::Own {
        ownership: owner.clone(),
        shared: vec![],
    }
}

async fn write_keys(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let tenant = owner.tenant.clone();
        let page = read!(db, |tx| keys::list(tx, Some(&tenant), PAGE, offset).await);
        if page.is_empty() {
            return Ok(());
        }
        let of_user = page.iter().filter(|key| key.user == owner.owner);
        let lines = of_user.map(|key| Line::new("api_key", wire::json(&ApiKeyView::of(key))));
        write_lines(output, lines.collect())?;
        offset += PAGE;
    }
}

async fn write_assistants(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let wanted = AssistantQuery {
            offset,
            limit: PAGE,
            ..AssistantQuery::within(own(owner))
        };
        let page = read!(db, |tx| assistants::search(tx, &wanted, PAGE_BYTES).await);
        if page.rows.is_empty() {
            return Ok(());
        }
        offset += i64::try_from(page.rows.len())?;
        // The default assistants of the server are in every scope.
        let of_user = page.into_items().into_iter().filter(|found| found.ownership == *owner);
        for assistant in of_user {
            let id = assistant.id;
            write_lines(
                output,
                vec![Line::new("assistant", wire::json(&AssistantView::from(assistant)))],
            )?;
            let mut from = 0;
            loop {
                let all = MetadataFilter::default();
                let page = PageQuery {
                    limit: PAGE,
                    offset: from,
                    bytes: PAGE_BYTES,
                };
                let versions = read!(db, |tx| assistants::versions(tx, id, &all, page).await);
                if versions.rows.is_empty() {
                    break;
                }
                from += i64::try_from(versions.rows.len())?;
                let versions = versions.into_items().into_iter().map(VersionView::from);
                let lines = versions.map(|version| Line::new("assistant_version", wire::json(&version)));
                write_lines(output, lines.collect())?;
            }
        }
    }
}

async fn write_crons(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let wanted = CronQuery {
            offset,
            ..CronQuery::within(own(owner), PAGE)
        };
        let page = read!(db, |tx| crons::search(tx, &wanted, PAGE_BYTES).await);
        if page.rows.is_empty() {
            return Ok(());
        }
        offset += i64::try_from(page.rows.len())?;
        let crons = page.into_items().into_iter().map(CronView::from);
        write_lines(output, crons.map(|cron| Line::new("cron", wire::json(&cron))).collect())?;
    }
}

async fn write_items(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let wanted = ItemSearch {
            prefix: Namespace::stored(vec![]),
            filter: ItemFilter::default(),
            limit: u32::try_from(PAGE)?,
            offset,
        };
        let space = owner.clone();
        // Items that have expired but were not yet removed are part of the export.
        let page = read!(db, |tx| items::search(tx, &space, &wanted, PAGE_BYTES, Timestamp(0))
            .await);
        if page.rows.is_empty() {
            return Ok(());
        }
        offset += u32::try_from(page.rows.len())?;
        let items = page.into_items().into_iter().map(ItemView::from);
        write_lines(output, items.map(|item| Line::new("item", wire::json(&item))).collect())?;
    }
}

async fn write_deliveries(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let wanted = DeliverySearch {
            offset,
            ..DeliverySearch::within(own(owner), PAGE)
        };
        let page = read!(db, |tx| deliveries::search(tx, &wanted, PAGE_BYTES).await);
        if page.rows.is_empty() {
            return Ok(());
        }
        offset += i64::try_from(page.rows.len())?;
        let deliveries = page.into_items().into_iter().map(DeliveryView::whole);
        let lines = deliveries.map(|delivery| Line::new("webhook_delivery", wire::json(&delivery)));
        write_lines(output, lines.collect())?;
    }
}

/// Writes a thread with its newest state, its runs, its interrupts and its log.
async fn write_thread(db: &Db, thread: ThreadId, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let lines: Vec<Line> = read!(db, |tx| thread_lines(tx, thread).await);
    write_lines(output, lines)?;
    let mut offset = 0;
    loop {
        let wanted = RunList {
            thread,
            status: None,
            limit: PAGE,
            offset,
            bytes: PAGE_BYTES,
        };
        let page = read!(db, |tx| runs::list(tx, &wanted).await);
        if page.rows.is_empty() {
            break;
        }
        offset += i64::try_from(page.rows.len())?;
        for run in page.into_items() {
            let root = run.id;
            let below = read!(db, |tx| runs::descendants(tx, root).await);
            let all = std::iter::once(run).chain(below).map(RunView::from);
            write_lines(output, all.map(|run| Line::new("run", wire::json(&run))).collect())?;
        }
    }
    let asked = read!(db, |tx| interrupts::of_thread(tx, thread, None).await);
    let asked = asked.into_iter().map(InterruptView::from);
    write_lines(
        output,
        asked.map(|asked| Line::new("interrupt", wire::json(&asked))).collect(),
    )?;
    let mut after = i64::MIN;
    loop {
        let page: Vec<LoggedEvent> = read!(db, |tx| events::read(tx, thread, after, PAGE).await);
        let Some(last) = page.last() else { return Ok(()) };
        after = last.seq;
        let lines = page.iter().map(|event| log_line(thread, event)).collect();
        write_lines(output, lines)?;
    }
}

/// Returns the line of a thread with its newest state; none if it is gone.
async fn thread_lines(tx: &mut Tx<'_>, id: ThreadId) -> DbResult<Vec<Line>> {
    let Some(thread) = threads::find(tx, id).await? else {
        return Ok(vec![]);
    };
    let values = match checkpoints::head(tx, id, Lane::Main).await? {
        Some(head) => Some(State::values(
            &checkpoints::load_state(tx, id, Lane::Main, &head).await?,
        )),
        None => None,
    };
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
            data["event"] = json!(fact);
            Line::new("event", data)
        }
    }
}

async fn write_audit(db: &Db, owner: &Ownership, output: &mut (dyn Write + Send)) -> anyhow::Result<()> {
    let mut before = None;
    loop {
        let wanted = AuditSearch {
            tenant: owner.tenant.clone(),
            user: Some(owner.owner.as_str().to_owned()),
            resource: None,
            action: None,
            outcome: None,
            since: None,
            until: None,
            before,
            limit: PAGE,
        };
        let page = read!(db, |tx| audit::search(tx, &wanted, PAGE_BYTES).await);
        let page: Vec<AuditEntry> = page.into_items();
        let Some(last) = page.last() else { return Ok(()) };
        before = Some(last.id);
        write_lines(output, page.iter().map(audit_line).collect())?;
    }
}

fn audit_line(entry: &AuditEntry) -> Line {
    let data = json!({
        "id": entry.id,
        "created_at": entry.created_at.to_string(),
        "credential": entry.credential,
        "action": entry.action,
        "resource": entry.resource,
        "outcome": entry.outcome.word(),
        "address": entry.address,
        "detail": entry.detail,
    });
    Line::new("audit_entry", data)
}
