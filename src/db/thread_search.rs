//! Searches for threads, and the access path of each search.
//!
//! A search never reads the whole table. Without metadata it walks the index of its sort order; there is one per order for
//! all threads, and one for those that are interrupted or have failed. Busy threads are fetched and sorted, and idle ones
//! if they are few. With metadata the rarest term decides: if few threads have it, these are fetched and sorted; if many,
//! the index of the order is walked and the terms of each thread are checked, since many of them match. The scope of a
//! search is like a term: there is an index of owners, and threads that are shared are found by a term of the rule that
//! shares them. The ids of a page come from the index before any other column is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use const_format::concatcp;
use sqlx::{QueryBuilder, query_scalar};
use uuid::Uuid;

use crate::db::access::{ScopedRows, push_owner, push_permitted, push_unforbidden};
use crate::db::codec::json::unless_corrupt;
use crate::db::engine::{Contains, Engine, on_engine};
use crate::db::list_part::ListBuilder;
use crate::db::states::object_weight;
use crate::db::threads::{COLUMNS, ThreadRow};
use crate::db::{DbError, DbResult, Tx, background, checkpoints, copies, off_thread};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::checkpoint::Lane;
use crate::domain::filter::{MetadataFilter, Term};
use crate::domain::id::ThreadId;
use crate::domain::identity::Tenant;
use crate::domain::ruling::RowCondition;
use crate::domain::state::State;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::visibility::Visibility;

/// The maximum number of threads to fetch and sort; with more, the index of the order is walked.
const MAX_SORTED: i64 = 1000;
/// The same for the threads of a scope. It is higher, so that a search of a tenant with a thousand threads among the
/// millions of other tenants does not walk past all of theirs.
const MAX_SORTED_OF_SCOPE: i64 = 20_000;
/// The maximum number of matches that a search counts.
pub const COUNTED: i64 = 100_000;
/// The maximum number of threads whose states a search by values may fold.
pub const MAX_FOLDED_STATES: usize = 2000;
/// The number of threads read at once.
const BATCH: i64 = 200;

/// A sort key of threads. Ties are sorted by id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThreadOrder {
    /// By id.
    Id,
    /// By status, as text.
    Status,
    /// By creation time.
    #[default]
    CreatedAt,
    /// By the time of the last change.
    UpdatedAt,
    /// By the time of the last change of the state.
    StateUpdatedAt,
}

/// A search for threads.
#[derive(Debug, Clone)]
pub struct ThreadQuery {
    /// Only threads in this scope.
    pub scope: AccessScope,
    /// Only threads with these ids.
    pub ids: Option<Vec<ThreadId>>,
    /// Only threads whose metadata contains this.
    pub metadata: MetadataFilter,
    /// Only threads whose main agent's state contains this.
    pub values: MetadataFilter,
    /// Only threads with this status.
    pub status: Option<ThreadStatus>,
    /// The sort key.
    pub sort: ThreadOrder,
    /// True for ascending order.
    pub ascending: bool,
    /// The maximum number of threads.
    pub limit: i64,
    /// The number of threads to skip.
    pub offset: i64,
    /// The approximate memory the page may take, in bytes. The page ends before the thread that exceeds it, but has at
    /// least one thread.
    pub bytes: usize,
    /// Threads to leave out: unfinished copies. [`search`] and [`count`] set them.
    pub hidden: Vec<ThreadId>,
}

impl ThreadQuery {
    /// Returns the search for the ten newest threads of a scope.
    pub fn within(scope: AccessScope) -> Self {
        Self {
            scope,
            ids: None,
            metadata: MetadataFilter::default(),
            values: MetadataFilter::default(),
            status: None,
            sort: ThreadOrder::default(),
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
    /// The number of matches on all pages. Counting ends at [`COUNTED`] or behind this page, whichever is more.
    pub total: i64,
}

/// The access path of a search: the index from which candidates are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::db) enum AccessPath {
    /// The primary key, for given ids.
    Ids,
    /// The index of terms, for a term that few threads have.
    Term(Term),
    /// The index of owners and, for shared threads, that of terms, for a scope with few threads.
    Scope,
    /// The index of the sort order.
    Order,
    /// The index of statuses, for idle threads if few match.
    Status,
}

/// The threads among which all of a scope are.
enum Candidates<'a> {
    /// All threads.
    All,
    /// No threads.
    None,
    /// All threads of a tenant.
    OfTenant(&'a Tenant),
    /// The threads of an owner, and all that have one of these terms.
    Own(&'a Ownership, BTreeSet<Term>),
}

impl<'a> Candidates<'a> {
    fn of(scope: &'a AccessScope) -> Self {
        match scope {
            AccessScope::Server => Self::All,
            AccessScope::Nothing => Self::None,
            AccessScope::Ruled { base, ruling, .. } if ruling.permits == RowCondition::NEVER => Self::of(base),
            AccessScope::Tenant(tenant) | AccessScope::Ruled { tenant, .. } => Self::OfTenant(tenant),
            AccessScope::Own { ownership, shared } => {
                let terms = shared.iter().map(|filter| filter.terms().first().copied());
                // A rule without a value shares everything with the tenant.
                terms.collect::<Option<_>>().map_or_else(
                    || Self::OfTenant(&ownership.tenant),
                    |terms| Self::Own(ownership, terms),
                )
            }
        }
    }

    /// Returns whether all of them are in the scope.
    fn are_decided(&self, scope: &AccessScope) -> bool {
        if matches!(scope, AccessScope::Ruled { .. }) {
            return false;
        }
        match self {
            Self::All | Self::None => true,
            Self::OfTenant(_) => matches!(scope, AccessScope::Tenant(_)),
            Self::Own(_, terms) => terms.is_empty(),
        }
    }
}

impl ThreadQuery {
    fn order(&self) -> &'static str {
        match (self.sort, self.ascending) {
            (ThreadOrder::Id, true) => " order by thread_id",
            (ThreadOrder::Id, false) => " order by thread_id desc",
            (ThreadOrder::Status, true) => " order by status, updated_at, thread_id",
            (ThreadOrder::Status, false) => " order by status desc, updated_at desc, thread_id desc",
            (ThreadOrder::CreatedAt, true) => " order by created_at, thread_id",
            (ThreadOrder::CreatedAt, false) => " order by created_at desc, thread_id desc",
            (ThreadOrder::UpdatedAt, true) => " order by updated_at, thread_id",
            (ThreadOrder::UpdatedAt, false) => " order by updated_at desc, thread_id desc",
            (ThreadOrder::StateUpdatedAt, true) => " order by state_updated_at, thread_id",
            (ThreadOrder::StateUpdatedAt, false) => " order by state_updated_at desc, thread_id desc",
        }
    }

    /// Returns whether a condition needs columns of the table of threads itself.
    fn filters_on_table(&self, path: AccessPath) -> bool {
        self.status.is_some() || !self.metadata.is_decided_by_terms() || self.checks_scope(path)
    }

    /// Returns whether not all candidates of this path are in the scope.
    fn checks_scope(&self, path: AccessPath) -> bool {
        match path {
            AccessPath::Scope => !Candidates::of(&self.scope).are_decided(&self.scope),
            AccessPath::Ids | AccessPath::Term(_) | AccessPath::Order | AccessPath::Status => {
                !matches!(self.scope, AccessScope::Server)
            }
        }
    }

    /// Appends the tables and the conditions. An empty list of ids matches nothing.
    fn push_matches<DB>(&self, sql: &mut QueryBuilder<DB>, path: AccessPath, needs_table: bool) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        match path {
            AccessPath::Scope => push_candidates(sql, &Candidates::of(&self.scope), needs_table),
            AccessPath::Term(term) if needs_table => {
                sql.push(" from thread_terms known cross join threads found where found.thread_id = known.thread_id");
                sql.push(" and known.term = ").push_bind(term.0);
            }
            AccessPath::Term(term) => {
                sql.push(" from thread_terms found where found.term = ")
                    .push_bind(term.0);
            }
            AccessPath::Ids | AccessPath::Order | AccessPath::Status => {
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
        let terms = self.metadata.terms().into_iter();
        push_metadata(
            sql,
            terms.filter(|term| path != AccessPath::Term(*term)),
            &self.metadata,
        )?;
        if self.checks_scope(path) {
            push_scope(sql, &self.scope)?;
        }
        Ok(())
    }

    /// Returns whether an index has the threads of each status in the order of the search.
    fn has_index_of_all_statuses(&self) -> bool {
        matches!(self.sort, ThreadOrder::Status | ThreadOrder::UpdatedAt)
    }

    /// Returns the access path to a page of a search that has so many matches. To look for few idle threads in the order of
    /// the search would be to walk past most others.
    fn path_to_page(&self, paths: &AccessPaths, total: i64) -> AccessPath {
        let is_of_idle = self.status == Some(ThreadStatus::Idle) && !self.has_index_of_all_statuses();
        if !is_of_idle || paths.to_read != AccessPath::Order {
            return paths.to_read;
        }
        let most = match paths.to_count {
            AccessPath::Order => MAX_SORTED,
            // There may be many other idle threads. The order is left if it would be walked to its end.
            AccessPath::Ids | AccessPath::Term(_) | AccessPath::Scope | AccessPath::Status => {
                self.offset.saturating_add(self.limit)
            }
        };
        match total <= most {
            true => AccessPath::Status,
            false => AccessPath::Order,
        }
    }

    /// Appends the condition on the status.
    fn push_status<DB>(&self, sql: &mut QueryBuilder<DB>)
    where
        DB: sqlx::Database,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        if let Some(status) = self.status {
            sql.push(" and status = ").push_bind(status.word());
        }
    }

    /// Appends the condition on the status of threads that are read in the order of the search.
    fn push_status_in_order<DB>(&self, sql: &mut QueryBuilder<DB>, path: AccessPath)
    where
        DB: sqlx::Database,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        let has_index = self.has_index_of_all_statuses();
        match self.status {
            // The condition of the indexes of such threads, word for word.
            Some(ThreadStatus::Interrupted | ThreadStatus::Error) if !has_index => {
                sql.push(" and status <> 'idle' and status <> 'busy'");
                self.push_status(sql);
            }
            // Most threads are idle: the order is walked. In this form the index of statuses does not seem better.
            Some(ThreadStatus::Idle) if !has_index && path == AccessPath::Order => {
                sql.push(" and (status = 'idle') is true");
            }
            // Few threads are busy, and are sorted.
            Some(_) | None => self.push_status(sql),
        }
    }

    /// Appends the statement that reads a page.
    pub(in crate::db) fn push_page<DB>(&self, sql: &mut QueryBuilder<DB>, path: AccessPath) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push(concatcp!("select ", COLUMNS, " from (select found.thread_id as id"));
        self.push_matches(sql, path, true)?;
        self.push_status_in_order(sql, path);
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

    /// Appends the statement that counts the matches, up to `most` if given.
    pub(in crate::db) fn push_count<DB>(
        &self,
        sql: &mut QueryBuilder<DB>,
        path: AccessPath,
        most: Option<i64>,
    ) -> DbResult<()>
    where
        DB: sqlx::Database,
        QueryBuilder<DB>: Contains,
        for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
        for<'q> i64: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    {
        sql.push("select count(*) from (select 1 as one");
        self.push_matches(sql, path, self.filters_on_table(path))?;
        self.push_status(sql);
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

/// Appends the condition that a thread is in the scope, after `and`. The index of owners is not used for it, and shared
/// threads are found by their terms, which the scopes of other tables do not have.
fn push_scope<DB>(sql: &mut QueryBuilder<DB>, scope: &AccessScope) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
    for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    let tenant = match scope {
        AccessScope::Server => return Ok(()),
        AccessScope::Nothing => {
            sql.push(" and false");
            return Ok(());
        }
        AccessScope::Tenant(tenant) | AccessScope::Ruled { tenant, .. } => tenant,
        AccessScope::Own { ownership, .. } => &ownership.tenant,
    };
    sql.push(" and ")
        .push(<QueryBuilder<DB> as Contains>::WITHOUT_INDEX)
        .push("found.tenant = ")
        .push_bind(tenant.as_str());
    if let AccessScope::Own { ownership, shared } = scope {
        sql.push(" and (found.owner = ").push_bind(ownership.owner.as_str());
        for filter in shared {
            sql.push(" or (true");
            push_metadata(sql, filter.terms().into_iter(), filter)?;
            sql.push(")");
        }
        sql.push(")");
    }
    if let AccessScope::Ruled { base, ruling, .. } = scope {
        let rows = ScopedRows {
            alias: "found.",
            can_be_shared: true,
            are_threads: true,
            some_are_of_server: false,
            by_other_index: true,
        };
        push_unforbidden(sql, &ruling.forbids, rows)?;
        sql.push(" and ((true");
        push_scope(sql, base)?;
        sql.push(") or (true");
        push_permitted(sql, &ruling.permits, rows)?;
        sql.push("))");
    }
    Ok(())
}

/// Appends the conditions that the metadata of a thread match the filter, of whose terms only these are left to check.
fn push_metadata<DB>(
    sql: &mut QueryBuilder<DB>,
    terms: impl Iterator<Item = Term>,
    filter: &MetadataFilter,
) -> DbResult<()>
where
    DB: sqlx::Database,
    QueryBuilder<DB>: Contains,
    for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    for term in terms {
        sql.push(" and exists (select 1 from thread_terms also where also.thread_id = found.thread_id");
        sql.push(" and also.term = ").push_bind(term.0).push(")");
    }
    if !filter.is_decided_by_terms() {
        sql.push(" and ").push_contains("found.metadata", filter.wanted())?;
    }
    Ok(())
}

/// Appends the tables from which the candidates of a scope are read, each candidate once.
fn push_candidates<DB>(sql: &mut QueryBuilder<DB>, candidates: &Candidates<'_>, needs_table: bool)
where
    DB: sqlx::Database,
    for<'q> Uuid: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
    for<'q> &'q str: sqlx::Encode<'q, DB> + sqlx::Type<DB>,
{
    let none = BTreeSet::new();
    let (tenant, owner, terms) = match candidates {
        Candidates::All => {
            sql.push(" from threads found where true");
            return;
        }
        Candidates::None => {
            sql.push(" from threads found where false");
            return;
        }
        Candidates::OfTenant(tenant) => (*tenant, None, &none),
        Candidates::Own(ownership, terms) => (&ownership.tenant, Some(&ownership.owner), terms),
    };
    if terms.is_empty() && !needs_table {
        sql.push(" from threads found where ");
        push_owner(sql, "found.", tenant, owner);
        return;
    }
    sql.push(" from (select owned.thread_id from threads owned where ");
    push_owner(sql, "owned.", tenant, owner);
    for (at, term) in terms.iter().enumerate() {
        sql.push(" union all select shared.thread_id from thread_terms shared where shared.term = ")
            .push_bind(term.0);
        sql.push(" and not exists (select 1 from threads owned where owned.thread_id = shared.thread_id and ");
        push_owner(sql, "owned.", tenant, owner);
        sql.push(")");
        for earlier in terms.iter().take(at) {
            sql.push(" and not exists (select 1 from thread_terms also where also.thread_id = shared.thread_id");
            sql.push(" and also.term = ").push_bind(earlier.0).push(")");
        }
    }
    sql.push(") known cross join threads found where found.thread_id = known.thread_id");
}

/// Returns a page of the threads that match a search, and the total.
///
/// # Errors
/// [`DbError::Unfit`] when a search by values would have to fold the states of more than [`MAX_FOLDED_STATES`] threads.
pub async fn search(tx: &mut Tx<'_>, wanted: &ThreadQuery) -> DbResult<ThreadPage> {
    let wanted = &ThreadQuery {
        hidden: copies::unfinished(tx).await?,
        ..wanted.clone()
    };
    let paths = access_paths(tx, wanted).await?;
    if !wanted.values.is_empty() {
        return by_values(tx, wanted, paths.to_read).await;
    }
    let most = COUNTED.max(wanted.offset.saturating_add(wanted.limit).saturating_add(1));
    let total = count_by(tx, wanted, paths.to_count, Some(most)).await?;
    let path = wanted.path_to_page(&paths, total);
    Ok(ThreadPage {
        threads: read_in_batches(tx, wanted, path).await?,
        total,
    })
}

/// Returns the number of threads of a page of which other rows are read together. On SQLite, the statements for several threads would
/// be a text that is prepared anew for each number of threads.
pub fn read_together(tx: &Tx<'_>) -> usize {
    match tx.engine() {
        Engine::Sqlite => 1,
        Engine::Postgres => 16,
    }
}

/// Counts the threads that match a search; order, limit and offset are ignored.
///
/// # Errors
/// As [`search`].
pub async fn count(tx: &mut Tx<'_>, wanted: &ThreadQuery) -> DbResult<i64> {
    let wanted = &ThreadQuery {
        hidden: copies::unfinished(tx).await?,
        ..wanted.clone()
    };
    let paths = access_paths(tx, wanted).await?;
    if wanted.values.is_empty() {
        return count_by(tx, wanted, paths.to_count, None).await;
    }
    Ok(by_values(tx, &wanted.page(0, 0), paths.to_read).await?.total)
}

/// The access paths of a search, to read a page and to count the matches.
struct AccessPaths {
    to_read: AccessPath,
    to_count: AccessPath,
}

/// Chooses the access paths of a search by the number of threads that have its rarest term, and by the number of its
/// scope.
async fn access_paths(tx: &mut Tx<'_>, wanted: &ThreadQuery) -> DbResult<AccessPaths> {
    if wanted.ids.is_some() {
        return Ok(AccessPaths {
            to_read: AccessPath::Ids,
            to_count: AccessPath::Ids,
        });
    }
    let mut rarest: Option<(i64, Term)> = None;
    for term in wanted.metadata.terms() {
        let found = (count_term(tx, term).await?, term);
        rarest = Some(rarest.map_or(found, |rarest| rarest.min(found)));
    }
    let scope = count_scope(tx, &Candidates::of(&wanted.scope)).await?;
    let few_by_term = rarest.filter(|(count, _)| *count <= MAX_SORTED);
    let few_by_scope = scope.filter(|count| *count <= MAX_SORTED_OF_SCOPE);
    let few = match (few_by_term, few_by_scope) {
        (Some((count, _)), Some(of_scope)) if of_scope < count => Some(AccessPath::Scope),
        (Some((_, term)), _) => Some(AccessPath::Term(term)),
        (None, Some(_)) => Some(AccessPath::Scope),
        (None, None) => None,
    };
    if let Some(path) = few {
        return Ok(AccessPaths {
            to_read: path,
            to_count: path,
        });
    }
    let to_count = match (scope, rarest) {
        (Some(_), _) => AccessPath::Scope,
        (None, Some((_, term))) => AccessPath::Term(term),
        (None, None) => AccessPath::Order,
    };
    Ok(AccessPaths {
        to_read: AccessPath::Order,
        to_count,
    })
}

/// Counts the candidates of a scope, up to a few more than [`MAX_SORTED_OF_SCOPE`]; none if these are all threads.
async fn count_scope(tx: &mut Tx<'_>, candidates: &Candidates<'_>) -> DbResult<Option<i64>> {
    let (tenant, owner) = match candidates {
        Candidates::All => return Ok(None),
        Candidates::None => return Ok(Some(0)),
        Candidates::OfTenant(tenant) => (*tenant, None),
        Candidates::Own(ownership, _) => (&ownership.tenant, Some(&ownership.owner)),
    };
    let mut count: i64 = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("select count(*) from (select 1 as one from threads owned where ");
        push_owner(&mut sql, "owned.", tenant, owner);
        sql.push(" limit ").push_bind(MAX_SORTED_OF_SCOPE + 1).push(") few");
        sql.build_query_scalar().fetch_one(conn).await
    })?;
    if let Candidates::Own(_, terms) = candidates {
        for term in terms {
            // More threads than a search may sort by a term are too many for a scope, too.
            let found = count_term(tx, *term).await?;
            count += if found > MAX_SORTED {
                MAX_SORTED_OF_SCOPE + 1
            } else {
                found
            };
        }
    }
    Ok(Some(count))
}

/// Counts the threads that have this term, up to one more than [`MAX_SORTED`].
async fn count_term(tx: &mut Tx<'_>, term: Term) -> DbResult<i64> {
    const SQL: &str = "select count(*) from (select 1 as one from thread_terms where term = $1 limit $2) few";
    Ok(on_engine!(tx, |conn| query_scalar(SQL)
        .bind(term.0)
        .bind(MAX_SORTED + 1)
        .fetch_one(conn)
        .await)?)
}

async fn read_page(tx: &mut Tx<'_>, wanted: &ThreadQuery, path: AccessPath) -> DbResult<Vec<Thread>> {
    let rows: Vec<ThreadRow> = on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("");
        wanted.push_page(&mut sql, path)?;
        sql.build_query_as().fetch_all(conn).await
    })?;
    Ok(rows.into_iter().map(Thread::from).collect())
}

async fn count_by(tx: &mut Tx<'_>, wanted: &ThreadQuery, path: AccessPath, most: Option<i64>) -> DbResult<i64> {
    Ok(on_engine!(tx, |conn| {
        let mut sql = QueryBuilder::new("");
        wanted.push_count(&mut sql, path, most)?;
        sql.build_query_scalar().fetch_one(conn).await
    })?)
}

/// Reads a page in batches until it is full.
async fn read_in_batches(tx: &mut Tx<'_>, wanted: &ThreadQuery, path: AccessPath) -> DbResult<Vec<Thread>> {
    let mut page = ListBuilder::new(wanted.limit, wanted.bytes);
    while !page.is_over() {
        let next = BATCH.min(wanted.limit - page.count());
        let threads = read_page(tx, &wanted.page(next, wanted.offset + page.count()), path).await?;
        page.take(next, threads, weigh, Ok)?;
    }
    Ok(page.finish().into_items())
}

/// Returns the approximate memory of a thread on a page, in bytes.
fn weigh(thread: &Thread) -> usize {
    object_weight(&thread.metadata) + object_weight(&thread.config)
}

/// Searches by values. States are not stored, so the state of every thread that meets the other conditions is folded,
/// one at a time.
async fn by_values(tx: &mut Tx<'_>, wanted: &ThreadQuery, path: AccessPath) -> DbResult<ThreadPage> {
    let mut page = ListBuilder::skipping(wanted.offset, wanted.limit, wanted.bytes);
    let mut total = 0;
    let mut offset = 0;
    loop {
        let threads = read_page(tx, &wanted.page(BATCH, offset), path).await?;
        let count = threads.len();
        offset += BATCH;
        if usize::try_from(offset).is_ok_and(|read| read > MAX_FOLDED_STATES) && count > 0 {
            return Err(DbError::Unfit(format!(
                "values: the search would look into more than {MAX_FOLDED_STATES} threads; narrow it by ids, metadata or status"
            )));
        }
        for thread in threads {
            let Some(state) = unless_corrupt(state_of(tx, thread.id).await)? else {
                continue;
            };
            // Values that clients cannot see must not be searchable.
            if contains(state, &wanted.values).await?
                && background::visibility(tx, thread.id).await? == Visibility::Full
            {
                total += 1;
                page.add(weigh(&thread), thread);
            }
        }
        if count < usize::try_from(BATCH).unwrap_or(usize::MAX) {
            return Ok(ThreadPage {
                threads: page.finish().into_items(),
                total,
            });
        }
    }
}

/// Returns whether the values of a state match the filter.
async fn contains(state: Arc<State>, wanted: &MetadataFilter) -> DbResult<bool> {
    let wanted = wanted.clone();
    off_thread(move |stop| wanted.matches_fields(|name| state.value(name), &|| stop.is_set())).await
}

/// Returns the main agent's newest state.
async fn state_of(tx: &mut Tx<'_>, thread: ThreadId) -> DbResult<Arc<State>> {
    let found = checkpoints::newest_state(tx, thread, Lane::Main).await?;
    Ok(found.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_idle_threads_are_not_looked_for_among_all_others() {
        let alone = AccessPaths {
            to_read: AccessPath::Order,
            to_count: AccessPath::Order,
        };
        let of_scope = AccessPaths {
            to_read: AccessPath::Order,
            to_count: AccessPath::Scope,
        };
        let idle = ThreadQuery {
            status: Some(ThreadStatus::Idle),
            ..ThreadQuery::within(AccessScope::Server)
        };
        let page = idle.offset + idle.limit;
        let table = [
            (&alone, MAX_SORTED, AccessPath::Status),
            (&alone, MAX_SORTED + 1, AccessPath::Order),
            (&of_scope, page, AccessPath::Status),
            (&of_scope, page + 1, AccessPath::Order),
        ];
        for (paths, total, expected) in table {
            assert_eq!(idle.path_to_page(paths, total), expected, "{total}");
        }
        let updated = ThreadQuery {
            sort: ThreadOrder::UpdatedAt,
            ..idle.clone()
        };
        assert_eq!(updated.path_to_page(&alone, 1), AccessPath::Order, "it has an index");
        let any = ThreadQuery { status: None, ..idle };
        assert_eq!(any.path_to_page(&alone, 1), AccessPath::Order);
    }
}
