//! A hundred thousand threads, and how the databases go about every search among them.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, QueryBuilder, raw_sql};

use super::{Db, object, on_both, read};
use crate::db::engine::Conn;
use crate::db::threads::{self, ThreadSearch, ThreadSort, Way};
use crate::db::{DbResult, Tx};
use crate::domain::filter::{Filter, Term};
use crate::domain::thread::ThreadStatus;

on_both!(
    pages_are_cut_from_an_index,
    matches_are_counted_in_an_index,
    searches_find_the_few_and_the_many
);

const SORTS: [ThreadSort; 5] = [
    ThreadSort::Id,
    ThreadSort::Status,
    ThreadSort::CreatedAt,
    ThreadSort::UpdatedAt,
    ThreadSort::StateUpdatedAt,
];

fn filter(wanted: Value) -> Filter {
    Filter::new("metadata", object(wanted)).expect("a filter")
}

/// What all threads have in their metadata.
fn many() -> Filter {
    filter(json!({"graph_id": "agent"}))
}

/// What ten of them have.
fn few() -> Filter {
    filter(json!({"owner": "me"}))
}

fn only_term(filter: &Filter) -> Term {
    *filter.terms().first().expect("a term")
}

/// Stores the threads, each with a tenth of them idle, and tells the planner.
async fn fill(db: &Db) {
    let threads = |id: &str, numbers: &str, pair: &str| {
        format!(
            "insert into threads (thread_id, status, metadata, config, created_at, updated_at, state_updated_at) \
             select {id}, case n % 10 when 0 then 'idle' when 1 then 'error' when 2 then 'busy' else 'interrupted' end, \
             case when n <= 10 then {pair} else '{{\"graph_id\":\"agent\"}}' end, '{{}}', n, 200000 - n, n from {numbers};"
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
                    raw_sql(AssertSqlSafe(threads + &terms)).execute(&mut **conn).await?;
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
                    raw_sql(AssertSqlSafe(threads + &terms)).execute(&mut **conn).await?;
                }
            }
            Ok(())
        })
    })
    .await
    .expect("the threads are stored");
}

/// Which statement of a search.
#[derive(Debug, Clone, Copy)]
enum Part {
    Page,
    Count,
}

/// How the database goes about a statement of a search.
async fn plan(tx: &mut Tx<'_>, wanted: &ThreadSearch, way: Way, part: Part) -> DbResult<String> {
    macro_rules! explain {
        ($explain:literal, $conn:expr, $row:ty) => {{
            let mut sql = QueryBuilder::new($explain);
            match part {
                Part::Page => wanted.push_page(&mut sql, way)?,
                Part::Count => wanted.push_count(&mut sql, way, Some(threads::COUNTED))?,
            }
            let rows: Vec<$row> = sql.build_query_as().fetch_all(&mut **$conn).await?;
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

/// No table is read whole. SQLite says `SCAN` of an index that is walked in order, too; then it names the index.
fn assert_indexed(plan: &str, about: &str) {
    for line in plan.lines() {
        // The table of threads is in the order of their ids, and read only as far as the page goes.
        let by_id = line == "SCAN found" && about.contains("status: None, sort: Id");
        let whole_table = line.contains("Seq Scan")
            || line.contains("SCAN")
                && !line.contains("INDEX")
                && !line.contains("SCAN page")
                && !line.contains("matches");
        assert!(!whole_table || by_id, "{about}\n{plan}");
    }
}

fn searches() -> Vec<(ThreadSearch, Way)> {
    let mut all = vec![];
    let filters = [
        (Filter::default(), Way::Order),
        (many(), Way::Order),
        (few(), Way::Term(only_term(&few()))),
        (
            filter(json!({"graph_id": "agent", "owner": "me"})),
            Way::Term(only_term(&few())),
        ),
        (
            filter(json!({"owner": "me", "list": [{"a": 1, "b": 2}]})),
            Way::Term(only_term(&few())),
        ),
    ];
    for sort in SORTS {
        for ascending in [false, true] {
            for status in [None, Some(ThreadStatus::Idle)] {
                all.extend(filters.clone().map(|(metadata, way)| {
                    (
                        ThreadSearch {
                            metadata,
                            status,
                            sort,
                            ascending,
                            ..ThreadSearch::default()
                        },
                        way,
                    )
                }));
            }
        }
    }
    all
}

async fn pages_are_cut_from_an_index(db: Db) {
    fill(&db).await;
    for (wanted, way) in searches() {
        for offset in [0, 50_000] {
            let search = ThreadSearch {
                offset,
                ..wanted.clone()
            };
            let about = format!("{search:?}");
            let asked = search.clone();
            let plan = read!(db, |tx| plan(tx, &asked, way, Part::Page));
            assert_indexed(&plan, &about);
            // What is walked in its order is not sorted: at most the page is. Postgres may sort threads of one status.
            let sorts = plan.matches("TEMP B-TREE").count();
            assert!(way != Way::Order || sorts <= 1, "{about}\n{plan}");
        }
    }
    let ids = read!(db, |tx| threads::search(tx, &ThreadSearch::default()));
    let ids = Some(ids.threads.iter().map(|thread| thread.id).collect());
    for sort in SORTS {
        let search = ThreadSearch {
            ids: ids.clone(),
            sort,
            ..ThreadSearch::default()
        };
        let plan = read!(db, |tx| plan(tx, &search, Way::Ids, Part::Page));
        assert_indexed(&plan, "by ids");
    }
}

async fn matches_are_counted_in_an_index(db: Db) {
    fill(&db).await;
    for (wanted, way) in searches() {
        let way = if wanted.metadata == many() {
            Way::Term(only_term(&many()))
        } else {
            way
        };
        let about = format!("{wanted:?}");
        let plan = read!(db, |tx| plan(tx, &wanted, way, Part::Count));
        assert_indexed(&plan, &about);
    }
}

async fn searches_find_the_few_and_the_many(db: Db) {
    fill(&db).await;
    let found = async |wanted: ThreadSearch| {
        let page = read!(db, |tx| threads::search(tx, &wanted));
        (
            page.threads
                .iter()
                .map(|thread| thread.created_at.0)
                .collect::<Vec<_>>(),
            page.total,
        )
    };
    let all = ThreadSearch {
        limit: 3,
        ascending: true,
        ..ThreadSearch::default()
    };
    assert_eq!(found(all.clone()).await, (vec![1, 2, 3], 100_000));
    let deep = ThreadSearch {
        offset: 99_998,
        ..all.clone()
    };
    assert_eq!(found(deep).await, (vec![99_999, 100_000], 100_000));
    assert_eq!(
        found(ThreadSearch {
            metadata: many(),
            ..all.clone()
        })
        .await,
        (vec![1, 2, 3], 100_000)
    );
    assert_eq!(
        found(ThreadSearch {
            metadata: few(),
            offset: 8,
            ..all.clone()
        })
        .await,
        (vec![9, 10], 10)
    );
    let idle = ThreadSearch {
        status: Some(ThreadStatus::Idle),
        sort: ThreadSort::UpdatedAt,
        ..all.clone()
    };
    assert_eq!(found(idle).await, (vec![100_000, 99_990, 99_980], 10_000));
    let both = filter(json!({"graph_id": "agent", "owner": "me"}));
    let busy = Some(ThreadStatus::Busy);
    assert_eq!(
        found(ThreadSearch {
            metadata: both,
            status: busy,
            ..all.clone()
        })
        .await,
        (vec![2], 1)
    );
    let none = filter(json!({"owner": "you"}));
    assert_eq!(found(ThreadSearch { metadata: none, ..all }).await, (vec![], 0));
}

#[test]
fn a_whole_table_in_a_plan_is_seen() {
    assert!(std::panic::catch_unwind(|| assert_indexed("SCAN found", "a scan")).is_err());
    assert!(std::panic::catch_unwind(|| assert_indexed("Seq Scan on threads", "a scan")).is_err());
    assert_indexed("SCAN found USING COVERING INDEX threads_by_created", "an index");
}
