//! Searches: which threads, in which order, and by which index they are come by.
//!
//! A search never reads the whole table. Without metadata it walks an index that has its order; for each status there is
//! one for each order. With metadata the terms decide: if the rarest one has few threads, these are fetched and sorted;
//! if it has many, the index of the order is walked and every thread asked for its terms, and one in few fits. Pages are
//! cut from the index before anything else is read of a thread.

use std::sync::Arc;

use sqlx::{QueryBuilder, query_scalar};
use uuid::Uuid;

use super::{ThreadRow, columns};
use crate::db::engine::{Contains, on_engine};
use crate::db::json::unless_corrupt;
use crate::db::states::object_weight;
use crate::db::{DbError, DbResult, Tx, background, checkpoints, copies, off_thread};
use crate::domain::checkpoint::Lane;
use crate::domain::filter::{Filter, Term};
use crate::domain::id::ThreadId;
use crate::domain::state::State;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::visibility::Visibility;

/// How many threads are fetched and sorted at most; with more, the index of the order is walked.
const FEW: i64 = 1000;
/// Up to how many the threads that match a search are counted.
pub const COUNTED: i64 = 100_000;
/// Into how many threads a search by values may look.
pub const LOOKED_INTO: usize = 2000;
/// How many of them are read at once.
const AT_ONCE: i64 = 200;

/// By what threads are sorted; those that tie, by their id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadSort {
    /// By id.
    Id,
    /// By status, as a word.
    Status,
    /// By when they were made.
    #[default]
    CreatedAt,
    /// By when anything about them last changed.
    UpdatedAt,
    /// By when their state last changed.
    StateUpdatedAt,
}

/// Which threads are wanted, and in which order. The default wants the ten newest.
#[derive(Debug, Clone)]
pub struct ThreadSearch {
    /// Only these.
    pub ids: Option<Vec<ThreadId>>,
    /// Only those whose metadata contains this.
    pub metadata: Filter,
    /// Only those whose main agent's state contains this.
    pub values: Filter,
    /// Only those of this status.
    pub status: Option<ThreadStatus>,
    /// In which order.
    pub sort: ThreadSort,
    /// Whether the smallest come first.
    pub ascending: bool,
    /// How many at most.
    pub limit: i64,
    /// How many to pass over before.
    pub offset: i64,
    /// How much memory the threads of the page may take, roughly, in bytes: it ends early beyond it, behind one thread at
    /// least.
    pub bytes: usize,
    /// Threads that nobody is to find: copies in the making. [`search`] and [`count`] fill them in.
    pub hidden: Vec<ThreadId>,
}

impl Default for ThreadSearch {
    fn default() -> Self {
        Self {
            ids: None,
            metadata: Filter::default(),
            values: Filter::default(),
            status: None,
            sort: ThreadSort::default(),
            ascending: false,
            limit: 10,
            offset: 0,
            bytes: usize::MAX,
            hidden: vec![],
        }
    }
}

/// A page of threads.
#[derive(Debug, Clone, PartialEq)]
pub struct ThreadPage {
    /// The threads.
    pub threads: Vec<Thread>,
    /// How many match the search on all pages. Counting ends at [`COUNTED`] or behind this page, whichever is more.
    pub total: i64,
}

/// How the threads of a search are come by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum Way {
    /// By their ids.
    Ids,
    /// By a term that few of them have.
    Term(Term),
    /// By walking the index of the order.
    Order,
}

impl ThreadSearch {
    fn order(&self) -> &'static str {
        match (self.sort, self.ascending) {
            (ThreadSort::Id, true) => " order by thread_id",
            (ThreadSort::Id, false) => " order by thread_id desc",
            (ThreadSort::Status, true) => " order by status, updated_at, thread_id",
            (ThreadSort::Status, false) => " order by status desc, updated_at desc, thread_id desc",
            (ThreadSort::CreatedAt, true) => " order by created_at, thread_id",
            (ThreadSort::CreatedAt, false) => " order by created_at desc, thread_id desc",
            (ThreadSort::UpdatedAt, true) => " order by updated_at, thread_id",
            (ThreadSort::UpdatedAt, false) => " order by updated_at desc, thread_id desc",
            (ThreadSort::StateUpdatedAt, true) => " order by state_updated_at, thread_id",
            (ThreadSort::StateUpdatedAt, false) => " order by state_updated_at desc, thread_id desc",
        }
    }

    /// Whether the columns of the table itself are asked for anything but the order.
    fn asks_the_table(&self) -> bool {
        self.status.is_some() || !self.metadata.is_told_by_terms()
    }

    /// Adds the tables and the conditions. An empty list of ids is a condition that nothing meets.
    fn push_matches<DB>(&self, sql: &mut QueryBuilder<DB>, way: Way, needs_table: bool) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        match way {
            Way::Term(term) if needs_table => {
                sql.push(" from thread_terms known cross join threads found where found.thread_id = known.thread_id");
                sql.push(" and known.term = ").push_bind(term.0);
            }
            Way::Term(term) => {
                sql.push(" from thread_terms found where found.term = ")
                    .push_bind(term.0);
            }
            Way::Ids | Way::Order => {
                sql.push(" from threads found where true");
            }
        }
        match &self.ids {
            Some(ids) if ids.is_empty() => {
                sql.push(" and false");
            }
            Some(ids) => {
                sql.push(" and found.thread_id in (");
                let mut list = sql.separated(", ");
                for id in ids {
                    list.push_bind(id.0);
                }
                sql.push(")");
            }
            None => {}
        }
        if !self.hidden.is_empty() {
            sql.push(" and found.thread_id not in (");
            let mut list = sql.separated(", ");
            for id in &self.hidden {
                list.push_bind(id.0);
            }
            sql.push(")");
        }
        if let Some(status) = self.status {
            sql.push(" and status = ").push_bind(status.word());
        }
        for term in self.metadata.terms().into_iter().filter(|term| way != Way::Term(*term)) {
            sql.push(" and exists (select 1 from thread_terms also where also.thread_id = found.thread_id");
            sql.push(" and also.term = ").push_bind(term.0).push(")");
        }
        if !self.metadata.is_told_by_terms() {
            sql.push(" and ").push_contains("metadata", self.metadata.wanted())?;
        }
        Ok(())
    }

    /// Adds the statement that reads a page.
    pub(in crate::db) fn push_page<DB>(&self, sql: &mut QueryBuilder<DB>, way: Way) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(concat!("select ", columns!(), " from (select found.thread_id as id"));
        self.push_matches(sql, way, true)?;
        let order = self.order().replace("thread_id", "found.thread_id");
        sql.push(order)
            .push(" limit ")
            .push_bind(self.limit)
            .push(" offset ")
            .push_bind(self.offset);
        sql.push(") page cross join threads where thread_id = page.id")
            .push(self.order());
        Ok(())
    }

    /// Adds the statement that counts the matches, up to a bound if there is one.
    pub(in crate::db) fn push_count<DB>(&self, sql: &mut QueryBuilder<DB>, way: Way, most: Option<i64>) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push("select count(*) from (select 1 as one");
        self.push_matches(sql, way, self.asks_the_table())?;
        if let Some(most) = most {
            sql.push(" limit ").push_bind(most);
        }
        sql.push(") matches");
        Ok(())
    }

    fn page(&self, limit: i64, offset: i64) -> Self {
        Self {
            limit,
            offset,
            ..self.clone()
        }
    }
}

/// The threads that are wanted.
///
/// # Errors
/// [`DbError::Unfit`] when a search by values would have to look into too many threads.
pub async fn search(tx: &mut Tx<'_>, wanted: &ThreadSearch) -> DbResult<ThreadPage> {
    let wanted = &ThreadSearch {
        hidden: copies::unfinished(tx).await?,
        ..wanted.clone()
    };
    let ways = ways(tx, wanted).await?;
    if !wanted.values.is_empty() {
        return by_values(tx, wanted, ways.to_read).await;
    }
    let most = COUNTED.max(wanted.offset.saturating_add(wanted.limit).saturating_add(1));
    let total = count_by(tx, wanted, ways.to_count, Some(most)).await?;
    Ok(ThreadPage {
        threads: read_some(tx, wanted, ways.to_read).await?,
        total,
    })
}

/// How many threads meet the conditions; order, limit and offset are none.
///
/// # Errors
/// As [`search`].
pub async fn count(tx: &mut Tx<'_>, wanted: &ThreadSearch) -> DbResult<i64> {
    let wanted = &ThreadSearch {
        hidden: copies::unfinished(tx).await?,
        ..wanted.clone()
    };
    let ways = ways(tx, wanted).await?;
    if wanted.values.is_empty() {
        return count_by(tx, wanted, ways.to_count, None).await;
    }
    Ok(by_values(tx, &wanted.page(0, 0), ways.to_read).await?.total)
}

/// How the threads of a search are come by.
struct Ways {
    to_read: Way,
    to_count: Way,
}

async fn ways(tx: &mut Tx<'_>, wanted: &ThreadSearch) -> DbResult<Ways> {
    if wanted.ids.is_some() {
        return Ok(Ways {
            to_read: Way::Ids,
            to_count: Way::Ids,
        });
    }
    let mut rarest: Option<(i64, Term)> = None;
    for term in wanted.metadata.terms() {
        let found = (count_few(tx, term).await?, term);
        rarest = Some(rarest.map_or(found, |rarest| rarest.min(found)));
    }
    Ok(match rarest {
        None => Ways {
            to_read: Way::Order,
            to_count: Way::Order,
        },
        Some((count, term)) if count <= FEW => Ways {
            to_read: Way::Term(term),
            to_count: Way::Term(term),
        },
        Some((_, term)) => Ways {
            to_read: Way::Order,
            to_count: Way::Term(term),
        },
    })
}

/// How many threads have this term, if they are few.
async fn count_few(tx: &mut Tx<'_>, term: Term) -> DbResult<i64> {
    const SQL: &str = "select count(*) from (select 1 as one from thread_terms where term = $1 limit $2) few";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(term.0)
        .bind(FEW + 1)
        .fetch_one(conn)
        .await)?)
}

async fn read_page(tx: &mut Tx<'_>, wanted: &ThreadSearch, way: Way) -> DbResult<Vec<Thread>> {
    let rows: Vec<ThreadRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("");
        wanted.push_page(&mut sql, way)?;
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows.into_iter().map(Thread::from).collect())
}

async fn count_by(tx: &mut Tx<'_>, wanted: &ThreadSearch, way: Way, most: Option<i64>) -> DbResult<i64> {
    Ok(on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("");
        wanted.push_count(&mut sql, way, most)?;
        sql.build_query_scalar().fetch_one(conn).await
    })?)
}

/// The page, a part after the other, until it is full.
async fn read_some(tx: &mut Tx<'_>, wanted: &ThreadSearch, way: Way) -> DbResult<Vec<Thread>> {
    let mut page = Page::of(wanted, 0);
    loop {
        let count = i64::try_from(page.threads.len()).unwrap_or(i64::MAX);
        let rest = (wanted.limit - count).min(AT_ONCE);
        let some = read_page(tx, &wanted.page(rest, wanted.offset + count), way).await?;
        let is_last = i64::try_from(some.len()).is_ok_and(|read| read < rest) || rest == wanted.limit - count;
        for thread in some {
            page.add(thread);
        }
        if is_last || page.is_full {
            return Ok(page.threads);
        }
    }
}

/// A page under construction.
struct Page {
    threads: Vec<Thread>,
    /// How many threads come before it.
    before: usize,
    limit: usize,
    /// How many bytes are left.
    bytes: usize,
    is_full: bool,
}

impl Page {
    /// The page of a search, of whose threads this many are still to be passed over.
    fn of(wanted: &ThreadSearch, before: i64) -> Self {
        let count = |number| usize::try_from(number).unwrap_or(usize::MAX);
        Self {
            threads: vec![],
            before: count(before),
            limit: count(wanted.limit),
            bytes: wanted.bytes,
            is_full: wanted.limit == 0,
        }
    }

    fn add(&mut self, thread: Thread) {
        if self.before > 0 {
            self.before -= 1;
            return;
        }
        let bytes = object_weight(&thread.metadata) + object_weight(&thread.config);
        self.is_full |= self.threads.len() >= self.limit || (bytes > self.bytes && !self.threads.is_empty());
        if !self.is_full {
            self.bytes = self.bytes.saturating_sub(bytes);
            self.threads.push(thread);
        }
    }
}

/// The page of a search by values. States are summed up from what was written, so every thread that meets the other
/// conditions is looked into; one state is in memory at a time.
async fn by_values(tx: &mut Tx<'_>, wanted: &ThreadSearch, way: Way) -> DbResult<ThreadPage> {
    let mut page = Page::of(wanted, wanted.offset);
    let mut total = 0;
    let mut offset = 0;
    loop {
        let threads = read_page(tx, &wanted.page(AT_ONCE, offset), way).await?;
        let count = threads.len();
        offset += AT_ONCE;
        if usize::try_from(offset).is_ok_and(|looked| looked > LOOKED_INTO) && count > 0 {
            return Err(DbError::Unfit(format!(
                "values: the search would look into more than {LOOKED_INTO} threads; narrow it by ids, metadata or status"
            )));
        }
        for thread in threads {
            let Some(state) = unless_corrupt(state_of(tx, thread.id).await)? else {
                continue;
            };
            // Of what clients do not see they find nothing.
            if contains(state, &wanted.values).await?
                && background::visibility(tx, thread.id).await? == Visibility::Full
            {
                total += 1;
                page.add(thread);
            }
        }
        if count < usize::try_from(AT_ONCE).unwrap_or(usize::MAX) {
            return Ok(ThreadPage {
                threads: page.threads,
                total,
            });
        }
    }
}

/// Whether what clients read of a state contains what is wanted.
async fn contains(state: Arc<State>, wanted: &Filter) -> DbResult<bool> {
    let wanted = wanted.clone();
    off_thread(move |stop| wanted.matches_fields(|name| state.value(name), &|| stop.is_set())).await
}

/// The main agent's state.
async fn state_of(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Arc<State>> {
    match checkpoints::head(tx, thread, Lane::Main).await? {
        Some(head) => checkpoints::shared_state(tx, thread, Lane::Main, &head).await,
        None => Ok(Arc::default()),
    }
}
