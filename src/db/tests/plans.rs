//! The query plans of thread searches, among a hundred thousand threads.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, QueryBuilder, raw_sql};

use super::{Db, object, on_both, read};
use crate::db::engine::Conn;
use crate::db::thread_search::{self, AccessPath, ThreadOrder, ThreadQuery};
use crate::db::{DbResult, Engine, Tx};
use crate::domain::access::{AccessScope, Ownership};
use crate::domain::filter::{MetadataFilter, Term};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::thread::ThreadStatus;

on_both!(searches_among_many_threads_are_right_and_read_from_indexes);

async fn searches_among_many_threads_are_right_and_read_from_indexes(db: Db) {
    // To store the threads takes seconds, and the checks only read.
    fill(&db).await;
    pages_are_read_from_an_index(&db).await;
    matches_are_counted_in_an_index(&db).await;
    searches_find_rare_and_frequent_terms(&db).await;
    searches_of_a_scope_are_read_from_an_index(&db).await;
    searches_of_a_scope_find_few_and_many_threads(&db).await;
}

const SORTS: [ThreadOrder; 5] = [
    ThreadOrder::Id,
    ThreadOrder::Status,
    ThreadOrder::CreatedAt,
    ThreadOrder::UpdatedAt,
    ThreadOrder::StateUpdatedAt,
];

fn filter(wanted: Value) -> MetadataFilter {
    MetadataFilter::new("metadata", object(wanted)).expect("a filter")
}

/// Matches all threads.
fn many() -> MetadataFilter {
    filter(json!({"graph_id": "agent"}))
}

/// Matches ten threads.
fn few() -> MetadataFilter {
    filter(json!({"owner": "me"}))
}

fn only_term(filter: &MetadataFilter) -> Term {
    *filter.terms().first().expect("a term")
}

/// Stores the threads, a tenth of them idle, and updates the planner's statistics.
async fn fill(db: &Db) {
    let threads = |id: &str, numbers: &str, pair: &str| {
        format!(
            "insert into threads (thread_id, status, metadata, config, created_at, updated_at, state_updated_at, tenant, owner) \
             select {id}, case n % 10 when 0 then 'idle' when 1 then 'error' when 2 then 'busy' else 'interrupted' end, \
             case when n <= 10 then {pair} else '{{\"graph_id\":\"agent\"}}' end, '{{}}', n, 200000 - n, n, \
             case when n > 40000 then 'acme' else 'default' end, \
             case when n > 50000 then 'ann' when n > 40010 then 'cleo' when n > 40000 then 'bob' else '' end \
             from {numbers};"
        )
    };
    let all = only_term(&many()).0;
    let some = only_term(&few()).0;
    db.write(move |tx| {
        Box::pin(async move {
            match &mut tx.conn {
                Conn::Sqlite(conn) => {
                    let numbers = "(with recursive c(n) as (select 1 union all select n + 1 from c where n < 100000) \
                                   select n from c)";
                    let pair = "'{\"graph_id\":\"agent\",\"owner\":\"me\"}'";
                    let threads = threads("randomblob(16)", numbers, pair);
                    let terms = format!(
                        "insert into thread_terms select x'{}', thread_id from threads; \
                         insert into thread_terms select x'{}', thread_id from threads where created_at <= 10;",
                        all.simple(),
                        some.simple()
                    );
                    raw_sql(AssertSqlSafe(threads + &terms)).execute(conn).await?;
                }
                Conn::Postgres(conn) => {
                    let pair = "'{\"graph_id\":\"agent\",\"owner\":\"me\"}'::jsonb";
                    let threads = threads("gen_random_uuid()", "generate_series(1, 100000) n", pair).replace(
                        "else '{\"graph_id\":\"agent\"}'",
                        "else '{\"graph_id\":\"agent\"}'::jsonb",
                    );
                    let terms = format!(
                        "insert into thread_terms select '{all}', thread_id from threads; \
                         insert into thread_terms select '{some}', thread_id from threads where created_at <= 10; \
                         analyze;"
                    );
                    raw_sql(AssertSqlSafe(threads + &terms)).execute(conn).await?;
                }
            }
            DbResult::Ok(())
        })
    })
    .await
    .expect("the threads are stored");
}

/// A statement of a search.
#[derive(Debug, Clone, Copy)]
enum Part {
    Page,
    Count,
}

/// Returns the database's plan for a statement of a search.
async fn plan(tx: &mut Tx<'_>, wanted: &ThreadQuery, path: AccessPath, part: Part) -> DbResult<String> {
    macro_rules! explain {
        ($explain:literal, $conn:expr, $row:ty) => {{
            let mut sql = QueryBuilder::new($explain);
            match part {
                Part::Page => wanted.push_page(&mut sql, path)?,
                Part::Count => wanted.push_count(&mut sql, path, Some(thread_search::COUNTED))?,
            }
            let rows: Vec<$row> = sql.build_query_as().fetch_all($conn).await?;
            rows
        }};
    }
    Ok(match &mut tx.conn {
        Conn::Sqlite(conn) => {
            let rows = explain!("explain query plan ", conn, (i64, i64, i64, String));
            rows.into_iter().map(|row| row.3).collect::<Vec<_>>().join("\n")
        }
        Conn::Postgres(conn) => {
            let rows = explain!("explain ", conn, (String,));
            rows.into_iter().map(|row| row.0).collect::<Vec<_>>().join("\n")
        }
    })
}

/// Checks that a plan scans no table. SQLite also says `SCAN` for an index walked in order, but then names the index.
fn assert_indexed(plan: &str, about: &str) {
    for line in plan.lines() {
        // The table itself is in the order of ids, and read only up to the end of the page.
        let by_id = line == "SCAN found"
            && (about.contains("status: None, sort: Id") || about.contains("status: Some(Idle), sort: Id"));
        let whole_table = line.contains("Seq Scan")
            || line.contains("SCAN")
                && !line.contains("INDEX")
                && !line.contains("SCAN page")
                && !line.contains("SCAN known")
                && !line.contains("matches");
        assert!(!whole_table || by_id, "{about}\n{plan}");
    }
}

fn searches() -> Vec<(ThreadQuery, AccessPath)> {
    let mut all = vec![];
    let filters = [
        (MetadataFilter::default(), AccessPath::Order),
        (many(), AccessPath::Order),
        (few(), AccessPath::Term(only_term(&few()))),
        (
            filter(json!({"graph_id": "agent", "owner": "me"})),
            AccessPath::Term(only_term(&few())),
        ),
        (
            filter(json!({"owner": "me", "list": [{"a": 1, "b": 2}]})),
            AccessPath::Term(only_term(&few())),
        ),
    ];
    for sort in SORTS {
        for ascending in [false, true] {
            for status in [None, Some(ThreadStatus::Idle), Some(ThreadStatus::Interrupted)] {
                all.extend(filters.clone().map(|(metadata, path)| {
                    (
                        ThreadQuery {
                            metadata,
                            status,
                            sort,
                            ascending,
                            ..ThreadQuery::within(AccessScope::Server)
                        },
                        path,
                    )
                }));
            }
        }
    }
    all
}

async fn pages_are_read_from_an_index(db: &Db) {
    for (wanted, path) in searches() {
        for offset in [0, 50_000] {
            let search = ThreadQuery {
                offset,
                ..wanted.clone()
            };
            let about = format!("{search:?}");
            let asked = search.clone();
            let plan = read!(db, |tx| plan(tx, &asked, path, Part::Page));
            assert_indexed(&plan, &about);
            // An index walked in order needs no sort but that of the page. Postgres may sort threads of one status.
            let sorts = plan.matches("TEMP B-TREE").count();
            assert!(path != AccessPath::Order || sorts <= 1, "{about}\n{plan}");
        }
    }
    for sort in SORTS {
        let search = ThreadQuery {
            status: Some(ThreadStatus::Idle),
            sort,
            ..ThreadQuery::within(AccessScope::Server)
        };
        let plan = read!(db, |tx| plan(tx, &search, AccessPath::Status, Part::Page));
        assert_indexed(&plan, "by status");
        // Postgres knows how many threads are idle, and decides by itself.
        assert!(
            db.engine() != Engine::Sqlite || plan.contains("threads_by_status"),
            "{plan}"
        );
    }
    let ids = read!(db, |tx| thread_search::search(
        tx,
        &ThreadQuery::within(AccessScope::Server)
    ));
    let ids = Some(ids.threads.iter().map(|thread| thread.id).collect());
    for sort in SORTS {
        let search = ThreadQuery {
            ids: ids.clone(),
            sort,
            ..ThreadQuery::within(AccessScope::Server)
        };
        let plan = read!(db, |tx| plan(tx, &search, AccessPath::Ids, Part::Page));
        assert_indexed(&plan, "by ids");
    }
}

async fn matches_are_counted_in_an_index(db: &Db) {
    for (wanted, path) in searches() {
        let path = if wanted.metadata == many() {
            AccessPath::Term(only_term(&many()))
        } else {
            path
        };
        let about = format!("{wanted:?}");
        let plan = read!(db, |tx| plan(tx, &wanted, path, Part::Count));
        assert_indexed(&plan, &about);
    }
}

/// Returns the times of creation of the threads on a page, and the total.
async fn found(db: &Db, wanted: ThreadQuery) -> (Vec<i64>, i64) {
    let page = read!(db, |tx| thread_search::search(tx, &wanted));
    let times = page.threads.iter().map(|thread| thread.created_at.0);
    (times.collect(), page.total)
}

async fn searches_find_rare_and_frequent_terms(db: &Db) {
    let found = async |wanted: ThreadQuery| found(db, wanted).await;
    let all = ThreadQuery {
        limit: 3,
        ascending: true,
        ..ThreadQuery::within(AccessScope::Server)
    };
    assert_eq!(found(all.clone()).await, (vec![1, 2, 3], 100_000));
    let deep = ThreadQuery {
        offset: 99_998,
        ..all.clone()
    };
    assert_eq!(found(deep).await, (vec![99_999, 100_000], 100_000));
    assert_eq!(
        found(ThreadQuery {
            metadata: many(),
            ..all.clone()
        })
        .await,
        (vec![1, 2, 3], 100_000)
    );
    assert_eq!(
        found(ThreadQuery {
            metadata: few(),
            offset: 8,
            ..all.clone()
        })
        .await,
        (vec![9, 10], 10)
    );
    let idle = ThreadQuery {
        status: Some(ThreadStatus::Idle),
        sort: ThreadOrder::UpdatedAt,
        ..all.clone()
    };
    assert_eq!(found(idle).await, (vec![100_000, 99_990, 99_980], 10_000));
    // The last page of the idle threads in an order that has no index of statuses.
    let last = ThreadQuery {
        status: Some(ThreadStatus::Idle),
        metadata: many(),
        offset: 9_998,
        ..all.clone()
    };
    assert_eq!(found(last).await, (vec![99_990, 100_000], 10_000));
    let both = filter(json!({"graph_id": "agent", "owner": "me"}));
    let busy = Some(ThreadStatus::Busy);
    assert_eq!(
        found(ThreadQuery {
            metadata: both,
            status: busy,
            ..all.clone()
        })
        .await,
        (vec![2], 1)
    );
    let none = filter(json!({"owner": "you"}));
    assert_eq!(found(ThreadQuery { metadata: none, ..all }).await, (vec![], 0));
}

fn own(tenant: &str, user: &str, shared: Vec<MetadataFilter>) -> AccessScope {
    let ownership = Ownership {
        tenant: Tenant::stored(tenant.to_owned()),
        owner: UserId::stored(user.to_owned()),
    };
    AccessScope::Own { ownership, shared }
}

fn tenant(name: &str) -> AccessScope {
    AccessScope::Tenant(Tenant::stored(name.to_owned()))
}

async fn searches_of_a_scope_are_read_from_an_index(db: &Db) {
    let scopes = [
        AccessScope::Nothing,
        tenant("acme"),
        tenant("nobody"),
        own("acme", "bob", vec![]),
        own("default", "zoe", vec![few()]),
        own("default", "zoe", vec![few(), many()]),
    ];
    for scope in scopes {
        for (wanted, path) in searches() {
            let wanted = ThreadQuery {
                scope: scope.clone(),
                ..wanted
            };
            let about = format!("{wanted:?}");
            for path in [path, AccessPath::Scope] {
                let asked = wanted.clone();
                let page = read!(db, |tx| plan(tx, &asked, path, Part::Page));
                assert_indexed(&page, &about);
                // The index of owners must not displace that of the order.
                let sorts = page.matches("TEMP B-TREE").count();
                assert!(path != AccessPath::Order || sorts <= 1, "{about}\n{page}");
            }
            let asked = wanted.clone();
            let count = read!(db, |tx| plan(tx, &asked, AccessPath::Scope, Part::Count));
            assert_indexed(&count, &about);
        }
    }
}

async fn searches_of_a_scope_find_few_and_many_threads(db: &Db) {
    let first = async |scope: AccessScope, metadata: MetadataFilter| {
        let wanted = ThreadQuery {
            metadata,
            limit: 2,
            ascending: true,
            ..ThreadQuery::within(scope)
        };
        let counted = wanted.clone();
        let about = format!("{wanted:?}");
        let page = found(db, wanted).await;
        let count = read!(db, |tx| thread_search::count(tx, &counted));
        assert_eq!(count, page.1, "{about}");
        page
    };
    let any = MetadataFilter::default;
    assert_eq!(first(tenant("acme"), any()).await, (vec![40_001, 40_002], 60_000));
    assert_eq!(first(tenant("acme"), many()).await, (vec![40_001, 40_002], 60_000));
    assert_eq!(first(tenant("acme"), few()).await, (vec![], 0));
    assert_eq!(first(tenant("default"), any()).await, (vec![1, 2], 40_000));
    assert_eq!(first(tenant("default"), few()).await, (vec![1, 2], 10));
    assert_eq!(first(tenant("nobody"), any()).await, (vec![], 0));
    assert_eq!(first(AccessScope::Nothing, any()).await, (vec![], 0));
    assert_eq!(
        first(own("acme", "ann", vec![]), any()).await,
        (vec![50_001, 50_002], 50_000)
    );
    assert_eq!(
        first(own("acme", "bob", vec![]), any()).await,
        (vec![40_001, 40_002], 10)
    );
    assert_eq!(
        first(own("acme", "bob", vec![few()]), many()).await,
        (vec![40_001, 40_002], 10)
    );
    assert_eq!(first(own("default", "ann", vec![]), any()).await, (vec![], 0));
    assert_eq!(first(own("default", "zoe", vec![few()]), any()).await, (vec![1, 2], 10));
    assert_eq!(
        first(own("default", "zoe", vec![few(), many()]), any()).await,
        (vec![1, 2], 40_000)
    );
    assert_eq!(
        first(own("acme", "bob", vec![few(), many()]), any()).await,
        (vec![40_001, 40_002], 60_000)
    );
    assert_eq!(
        first(own("acme", "bob", vec![any()]), any()).await,
        (vec![40_001, 40_002], 60_000)
    );
}

#[test]
fn a_table_scan_in_a_plan_is_detected() {
    assert!(std::panic::catch_unwind(|| assert_indexed("SCAN found", "a scan")).is_err());
    assert!(std::panic::catch_unwind(|| assert_indexed("Seq Scan on threads", "a scan")).is_err());
    assert_indexed("SCAN found USING COVERING INDEX threads_by_created", "an index");
}
