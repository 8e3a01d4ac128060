//! Owners and scopes: every search finds what its scope contains and nothing else, on every page and in every count.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Map, Value, json};
use sqlx::raw_sql;

use super::copies::copy_for;
use super::crons::cron_at;
use super::interrupts::pending_interrupt;
use super::{Db, object, on_both, read, run_at, thread_at, write};
use crate::db::access::{assistant_facts, cron_facts, delivery_facts, run_thread, thread_facts};
use crate::db::assistants::{self, AssistantQuery};
use crate::db::crons::{self, CronQuery};
use crate::db::deliveries::{self, DeliverySearch};
use crate::db::engine::on_engine;
use crate::db::interrupts;
use crate::db::items::{self, NamespaceSearch, VectorQuery, VectorSearch, nearest};
use crate::db::runs;
use crate::db::thread_search::{self, ThreadOrder, ThreadQuery};
use crate::db::threads;
use crate::db::{DbResult, Tx};
use crate::domain::access::{AccessScope, InterruptScope, Ownership};
use crate::domain::assistant::{Assistant, AssistantSettings};
use crate::domain::checkpoint::Lane;
use crate::domain::cron::Cron;
use crate::domain::delivery::Delivery;
use crate::domain::filter::MetadataFilter;
use crate::domain::id::{AssistantId, CronId, DeliveryId, RunId, ThreadId, WorkerId};
use crate::domain::identity::{Tenant, UserId};
use crate::domain::item::{ItemAddress, ItemFilter, ItemSearch, ItemVector, Namespace, PreparedItem};
use crate::domain::ruling::{RowCondition, Ruling};
use crate::domain::run::RunStatus;
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

on_both!(
    searches_for_threads_keep_to_their_scope,
    searches_find_what_generated_rulings_leave,
    the_largest_rulings_are_searched_with,
    metadata_that_cannot_be_read_are_forbidden_where_policies_ask_for_them,
    a_thread_that_is_no_longer_shared_is_not_found,
    a_copy_belongs_to_whom_it_was_made_for,
    searches_for_assistants_keep_to_their_scope,
    assistants_given_to_the_server_are_there_for_all,
    searches_for_crons_keep_to_their_scope,
    searches_for_deliveries_keep_to_their_scope,
    pending_interrupts_are_listed_within_a_scope,
    runs_to_cancel_are_listed_within_a_scope,
    owners_have_stores_of_their_own,
    facts_name_the_owner,
);

fn of(tenant: &str, owner: &str) -> Ownership {
    Ownership {
        tenant: Tenant::stored(tenant.to_owned()),
        owner: UserId::stored(owner.to_owned()),
    }
}

/// Several owners, some of one name in different tenants.
fn owners() -> [Ownership; 6] {
    [
        Ownership::default(),
        of("default", "ann"),
        of("acme", "ann"),
        of("acme", "bob"),
        of("acme", ""),
        of("other", "bob"),
    ]
}

fn filter(wanted: Value) -> MetadataFilter {
    MetadataFilter::new("metadata", object(wanted)).expect("a filter")
}

/// One scope of each kind, for several owners and rules of sharing.
fn scopes() -> Vec<AccessScope> {
    let mut all = vec![AccessScope::Server, AccessScope::Nothing];
    all.extend(["default", "acme", "nobody"].map(|name| AccessScope::Tenant(Tenant::stored(name.to_owned()))));
    let rules = [
        vec![],
        vec![filter(json!({"visibility": "team"}))],
        vec![
            filter(json!({"visibility": "team"})),
            filter(json!({"visibility": "open"})),
        ],
        // Terms alone do not decide this one.
        vec![filter(json!({"list": [{"a": 1, "b": 2}]}))],
        // Shares everything with the tenant.
        vec![filter(json!({}))],
    ];
    for ownership in owners().into_iter().chain([of("acme", "zoe")]) {
        let own = |shared: &Vec<MetadataFilter>| AccessScope::Own {
            ownership: ownership.clone(),
            shared: shared.clone(),
        };
        all.extend(rules.iter().map(own));
    }
    all.extend(rulings().into_iter().flat_map(ruled));
    all
}

fn owned_by(user: &str) -> RowCondition {
    RowCondition::OwnedBy(UserId::stored(user.to_owned()))
}

fn with(wanted: Value) -> RowCondition {
    RowCondition::Metadata(filter(wanted))
}

/// Rulings of access policies with all forms of conditions.
fn rulings() -> Vec<Ruling> {
    let ruling = |permits, forbids| Ruling { permits, forbids };
    let team = || with(json!({"visibility": "team"}));
    let open = || with(json!({"visibility": "open"}));
    vec![
        ruling(owned_by("bob"), RowCondition::NEVER),
        ruling(RowCondition::ALWAYS, owned_by("ann").negated()),
        ruling(team(), with(json!({"even": true}))),
        ruling(
            RowCondition::NEVER,
            RowCondition::any([owned_by(""), with(json!({"list": [{"a": 1, "b": 2}]}))]),
        ),
        ruling(
            RowCondition::any([RowCondition::all([team(), owned_by("bob")]), open()]),
            RowCondition::all([RowCondition::any([open(), owned_by("ann")]).negated(), team().negated()]),
        ),
    ]
}

/// Returns the scopes of callers with different roles to whom a ruling applies.
fn ruled(ruling: Ruling) -> impl Iterator<Item = AccessScope> {
    let own = AccessScope::Own {
        ownership: of("acme", "ann"),
        shared: vec![filter(json!({"visibility": "team"}))],
    };
    let acme = Tenant::stored("acme".to_owned());
    let bases = [AccessScope::Nothing, own, AccessScope::Tenant(acme.clone())];
    bases.into_iter().map(move |base| AccessScope::Ruled {
        tenant: acme.clone(),
        base: Box::new(base),
        ruling: ruling.clone(),
    })
}

/// Returns whether a scope contains what belongs to the server and has these metadata.
fn has_those_of_server(scope: &AccessScope, metadata: &Map<String, Value>) -> bool {
    match scope {
        AccessScope::Nothing => false,
        AccessScope::Server | AccessScope::Tenant(_) | AccessScope::Own { .. } => true,
        AccessScope::Ruled { base, ruling, .. } => {
            has_those_of_server(base, metadata) && !ruling.forbids.is_met(&Ownership::of_server(), metadata, None)
        }
    }
}

/// Returns whether a resource is in a scope, as the rules of access say.
fn is_in(scope: &AccessScope, ownership: &Ownership, metadata: &Map<String, Value>) -> bool {
    match scope {
        AccessScope::Server => true,
        AccessScope::Nothing => false,
        AccessScope::Tenant(tenant) => *tenant == ownership.tenant,
        AccessScope::Ruled { tenant, base, ruling } => {
            let is_met = |condition: &RowCondition| condition.is_met(ownership, metadata, None);
            *tenant == ownership.tenant
                && !is_met(&ruling.forbids)
                && (is_in(base, ownership, metadata) || is_met(&ruling.permits))
        }
        AccessScope::Own {
            ownership: caller,
            shared,
        } => {
            let is_shared = || shared.iter().any(|filter| filter.matches(metadata));
            caller.tenant == ownership.tenant && (caller.owner == ownership.owner || is_shared())
        }
    }
}

/// Returns metadata of the number `n`: private, for the team, or open; and with a list that looks shared but is not.
fn metadata(n: usize) -> Map<String, Value> {
    let list = match n % 4 {
        0 => json!([{"a": 1}, {"b": 2}]),
        1 => json!([{"a": 1, "b": 2, "c": 3}]),
        _ => json!([]),
    };
    let word = ["private", "team", "open"][n % 3];
    object(json!({"visibility": word, "list": list, "even": n.is_multiple_of(2)}))
}

/// Stores threads of all owners, in the order of their creation.
async fn stored_threads(db: &Db) -> Vec<Thread> {
    let mut all = vec![];
    for (place, ownership) in owners().into_iter().cycle().take(72).enumerate() {
        let thread = Thread {
            ownership,
            metadata: metadata(place / 6),
            status: if place % 5 == 0 {
                ThreadStatus::Busy
            } else {
                ThreadStatus::Idle
            },
            ..thread_at(i64::try_from(place).expect("few"))
        };
        let stored = thread.clone();
        assert!(write!(db, |tx| threads::insert(tx, &stored)));
        all.push(thread);
    }
    all
}

/// Checks the whole result of a search, its pages, its total and its count.
async fn check_threads(db: &Db, wanted: ThreadQuery, expected: &[ThreadId]) {
    let about = format!("{wanted:?}");
    let total = i64::try_from(expected.len()).expect("few");
    let mut found = vec![];
    loop {
        let page = ThreadQuery {
            limit: 25,
            offset: i64::try_from(found.len()).expect("few"),
            ..wanted.clone()
        };
        let page = read!(db, |tx| thread_search::search(tx, &page));
        assert_eq!(page.total, total, "{about}");
        let is_last = page.threads.len() < 25;
        found.extend(page.threads.into_iter().map(|thread| thread.id));
        if is_last {
            break;
        }
    }
    assert_eq!(found, expected, "{about}");
    assert_eq!(read!(db, |tx| thread_search::count(tx, &wanted)), total, "{about}");
}

async fn searches_for_threads_keep_to_their_scope(db: Db) {
    let all = stored_threads(&db).await;
    let some: Vec<ThreadId> = all.iter().step_by(5).map(|thread| thread.id).collect();
    let filters = [
        MetadataFilter::default(),
        filter(json!({"even": true})),
        filter(json!({"list": [{"a": 1, "b": 2}]})),
    ];
    for scope in scopes() {
        for metadata in &filters {
            for status in [None, Some(ThreadStatus::Idle)] {
                for ids in [None, Some(some.clone())] {
                    let wanted = ThreadQuery {
                        metadata: metadata.clone(),
                        status,
                        ids: ids.clone(),
                        ascending: true,
                        ..ThreadQuery::within(scope.clone())
                    };
                    let matches = |thread: &&Thread| {
                        is_in(&scope, &thread.ownership, &thread.metadata)
                            && metadata.matches(&thread.metadata)
                            && status.is_none_or(|status| status == thread.status)
                            && ids.as_ref().is_none_or(|ids| ids.contains(&thread.id))
                    };
                    let expected: Vec<ThreadId> = all.iter().filter(matches).map(|thread| thread.id).collect();
                    check_threads(&db, wanted, &expected).await;
                }
            }
        }
        let sorts = [
            ThreadOrder::Id,
            ThreadOrder::Status,
            ThreadOrder::UpdatedAt,
            ThreadOrder::StateUpdatedAt,
        ];
        for sort in sorts {
            let wanted = ThreadQuery {
                sort,
                limit: 100,
                ..ThreadQuery::within(scope.clone())
            };
            let found = read!(db, |tx| thread_search::search(tx, &wanted)).threads;
            let contained = all
                .iter()
                .filter(|thread| is_in(&scope, &thread.ownership, &thread.metadata));
            assert_eq!(found.len(), contained.count(), "{sort:?} {scope:?}");
            let is_right = |thread: &Thread| is_in(&scope, &thread.ownership, &thread.metadata);
            assert!(found.iter().all(is_right), "{sort:?} {scope:?}");
        }
    }
}

/// A condition of any form.
fn any_condition() -> impl Strategy<Value = RowCondition> {
    let leaf = prop_oneof![
        any::<bool>().prop_map(RowCondition::Is),
        prop::sample::select(vec!["ann", "bob", "", "zoe"]).prop_map(owned_by),
        prop::sample::select(vec!["private", "team", "open"]).prop_map(|word| with(json!({"visibility": word}))),
        any::<bool>().prop_map(|even| with(json!({"even": even}))),
        Just(with(json!({"list": [{"a": 1, "b": 2}]}))),
    ];
    leaf.prop_recursive(4, 16, 3, |inner| {
        let some = prop::collection::vec(inner.clone(), 1..4);
        prop_oneof![
            inner.prop_map(|one| RowCondition::Not(Box::new(one))),
            some.clone().prop_map(RowCondition::All),
            some.prop_map(RowCondition::Any),
        ]
    })
}

/// Returns generated rulings, the same in each run.
fn generated_rulings(number: usize) -> Vec<Ruling> {
    let mut runner = TestRunner::deterministic();
    let both = [any_condition(), any_condition()];
    let next = || {
        let [permits, forbids] = both.new_tree(&mut runner).expect("conditions").current();
        Ruling { permits, forbids }
    };
    std::iter::repeat_with(next).take(number).collect()
}

async fn searches_find_what_generated_rulings_leave(db: Db) {
    let threads = stored_threads(&db).await;
    let mut kept = vec![];
    for (place, ownership) in owners().into_iter().cycle().take(24).enumerate() {
        let assistant = assistant_of(ownership, metadata(place / 6), i64::try_from(place).expect("few"));
        let stored = assistant.clone();
        assert!(write!(db, |tx| assistants::insert(tx, &stored)));
        kept.push(assistant);
    }
    for scope in generated_rulings(40).into_iter().flat_map(ruled) {
        let left = threads
            .iter()
            .filter(|thread| is_in(&scope, &thread.ownership, &thread.metadata));
        let expected: Vec<ThreadId> = left.map(|thread| thread.id).collect();
        let wanted = ThreadQuery {
            ascending: true,
            ..ThreadQuery::within(scope.clone())
        };
        check_threads(&db, wanted, &expected).await;
        let left = kept
            .iter()
            .filter(|assistant| is_in(&scope, &assistant.ownership, &assistant.settings.metadata));
        let expected: Vec<Assistant> = left.cloned().collect();
        let wanted = AssistantQuery {
            ascending: true,
            limit: 100,
            ..AssistantQuery::within(scope.clone())
        };
        let found = read!(db, |tx| assistants::search(tx, &wanted, usize::MAX)).into_items();
        assert_eq!(found, expected, "{scope:?}");
    }
}

async fn the_largest_rulings_are_searched_with(db: Db) {
    let thread = Thread {
        ownership: of("acme", "ann"),
        metadata: object(json!({"visibility": "team"})),
        ..thread_at(1)
    };
    let id = thread.id;
    write!(db, |tx| threads::insert(tx, &thread));
    // As large as the policies of a server can be: each of 512 parts in the rulings about searching and reading.
    let part = |number: usize| with(json!({"visibility": format!("word {number}")}));
    let policies = (0..256).map(|policy| RowCondition::any((0..2).map(|number| part(policy * 2 + number))));
    let wide = RowCondition::any(policies);
    let deep = (0..64).fold(with(json!({"visibility": "team"})), |inner, number| {
        let around = RowCondition::any([part(number), inner]).negated();
        RowCondition::all([owned_by("ann"), around]).negated()
    });
    assert!(deep.is_met(&of("acme", "ann"), &object(json!({"visibility": "team"})), None));
    for permits in [
        RowCondition::any([wide.clone(), with(json!({"visibility": "team"}))]),
        deep,
    ] {
        let scope = AccessScope::Ruled {
            tenant: Tenant::stored("acme".to_owned()),
            base: Box::new(AccessScope::Nothing),
            ruling: Ruling {
                permits,
                forbids: wide.clone(),
            },
        };
        check_threads(&db, ThreadQuery::within(scope), &[id]).await;
    }
}

/// Makes the metadata of all threads unreadable.
async fn lose_metadata(tx: &mut Tx<'_>) -> DbResult<()> {
    const SQL: &str = "update threads set metadata = '[]'";
    on_engine!(tx, |conn| raw_sql(SQL).execute(conn).await.map(drop))?;
    Ok(())
}

async fn metadata_that_cannot_be_read_are_forbidden_where_policies_ask_for_them(db: Db) {
    let thread = Thread {
        ownership: of("acme", "ann"),
        ..thread_at(1)
    };
    let id = thread.id;
    write!(db, |tx| threads::insert(tx, &thread));
    write!(db, |tx| lose_metadata(tx));
    let team = || with(json!({"visibility": "team"}));
    for (permits, forbids, is_found) in [
        (RowCondition::NEVER, owned_by("bob"), true),
        (RowCondition::NEVER, team(), false),
        (RowCondition::NEVER, team().negated(), false),
    ] {
        let scope = AccessScope::Ruled {
            tenant: Tenant::stored("acme".to_owned()),
            base: Box::new(AccessScope::Tenant(Tenant::stored("acme".to_owned()))),
            ruling: Ruling { permits, forbids },
        };
        let expected: Vec<ThreadId> = is_found.then_some(id).into_iter().collect();
        check_threads(&db, ThreadQuery::within(scope), &expected).await;
    }
    let scope = AccessScope::Ruled {
        tenant: Tenant::stored("acme".to_owned()),
        base: Box::new(AccessScope::Nothing),
        ruling: Ruling {
            permits: team().negated(),
            forbids: RowCondition::NEVER,
        },
    };
    check_threads(&db, ThreadQuery::within(scope), &[]).await;
    let facts = read!(db, |tx| thread_facts(tx, id, true)).expect("a thread");
    assert!(facts.is_unreadable);
}

async fn a_thread_that_is_no_longer_shared_is_not_found(db: Db) {
    let shared = Thread {
        ownership: of("acme", "ann"),
        metadata: object(json!({"visibility": "team"})),
        ..thread_at(1)
    };
    let id = shared.id;
    write!(db, |tx| threads::insert(tx, &shared));
    let of_bob = ThreadQuery::within(AccessScope::Own {
        ownership: of("acme", "bob"),
        shared: vec![filter(json!({"visibility": "team"}))],
    });
    check_threads(&db, of_bob.clone(), &[id]).await;
    let private = object(json!({"visibility": "private"}));
    write!(db, |tx| threads::patch(tx, id, &private, None, Timestamp(2)));
    check_threads(&db, of_bob, &[]).await;
}

async fn a_copy_belongs_to_whom_it_was_made_for(db: Db) {
    let original = Thread {
        ownership: of("acme", "ann"),
        ..thread_at(1)
    };
    let from = original.id;
    write!(db, |tx| threads::insert(tx, &original));
    let to = copy_for(&db, from, of("acme", "bob")).await;
    for (owner, thread) in [("ann", from), ("bob", to)] {
        let scope = AccessScope::Own {
            ownership: of("acme", owner),
            shared: vec![],
        };
        check_threads(&db, ThreadQuery::within(scope), &[thread]).await;
    }
}

fn assistant_of(ownership: Ownership, metadata: Map<String, Value>, now: i64) -> Assistant {
    let settings = AssistantSettings {
        graph_id: "agent".to_owned(),
        name: format!("assistant {now}"),
        metadata,
        ..AssistantSettings::default()
    };
    Assistant::new(AssistantId::mint(), ownership, settings, Timestamp(now))
}

async fn searches_for_assistants_keep_to_their_scope(db: Db) {
    let mut all = vec![Assistant::automatic("agent", "agent", None, Timestamp(0))];
    for (place, ownership) in owners().into_iter().cycle().take(24).enumerate() {
        let now = i64::try_from(place + 1).expect("few");
        all.push(assistant_of(ownership, metadata(place / 6), now));
    }
    for assistant in all.clone() {
        assert!(write!(db, |tx| assistants::insert(tx, &assistant)));
    }
    for scope in scopes() {
        for graph_id in [None, Some("agent".to_owned()), Some("nothing".to_owned())] {
            let matches = |assistant: &&Assistant| {
                let settings = &assistant.settings;
                let is_of_all = assistant.ownership.is_of_server();
                (is_of_all && has_those_of_server(&scope, &settings.metadata)
                    || is_in(&scope, &assistant.ownership, &settings.metadata))
                    && graph_id.as_ref().is_none_or(|graph_id| *graph_id == settings.graph_id)
            };
            let expected: Vec<Assistant> = all.iter().filter(matches).cloned().collect();
            let wanted = AssistantQuery {
                graph_id: graph_id.clone(),
                ascending: true,
                limit: 100,
                ..AssistantQuery::within(scope.clone())
            };
            let page = AssistantQuery {
                limit: 2,
                offset: 1,
                ..wanted.clone()
            };
            let counted = wanted.clone();
            let found = read!(db, |tx| assistants::search(tx, &wanted, usize::MAX)).into_items();
            assert_eq!(found, expected, "{scope:?}");
            let second: Vec<Assistant> = expected.iter().skip(1).take(2).cloned().collect();
            let found = read!(db, |tx| assistants::search(tx, &page, usize::MAX)).into_items();
            assert_eq!(found, second, "{scope:?}");
            let count = read!(db, |tx| assistants::count(tx, &counted));
            assert_eq!(usize::try_from(count).expect("few"), expected.len(), "{scope:?}");
        }
    }
}

async fn assistants_given_to_the_server_are_there_for_all(db: Db) {
    let given = assistant_of(of("acme", "ann"), Map::new(), 1);
    let kept = assistant_of(of("acme", "ann"), Map::new(), 2);
    let id = given.id;
    for assistant in [given, kept] {
        write!(db, |tx| assistants::insert(tx, &assistant));
    }
    write!(db, |tx| assistants::give_to_server(tx, &[id, AssistantId::mint()]));
    let others = AssistantQuery::within(AccessScope::Tenant(Tenant::stored("other".to_owned())));
    let found = read!(db, |tx| assistants::search(tx, &others, usize::MAX)).into_items();
    assert_eq!(found.iter().map(|assistant| assistant.id).collect::<Vec<_>>(), [id]);
    assert!(found.iter().all(|assistant| assistant.ownership.is_of_server()));
}

async fn searches_for_crons_keep_to_their_scope(db: Db) {
    let assistant = Assistant::automatic("agent", "agent", None, Timestamp(0));
    write!(db, |tx| assistants::insert(tx, &assistant));
    let mut all = vec![];
    for (place, ownership) in owners().into_iter().cycle().take(24).enumerate() {
        let mut cron = cron_at(None, i64::try_from(place).expect("few"));
        cron.ownership = ownership;
        cron.metadata = metadata(place / 6);
        let stored = cron.clone();
        write!(db, |tx| crons::insert(tx, &stored));
        all.push(cron);
    }
    for scope in scopes() {
        for assistant in [None, Some(AssistantId::of_graph("agent"))] {
            let matches = |cron: &&Cron| is_in(&scope, &cron.ownership, &Map::new());
            let shares_all =
                matches!(&scope, AccessScope::Own { shared, .. } if shared.iter().any(MetadataFilter::is_empty));
            if shares_all {
                continue;
            }
            let expected: Vec<CronId> = all.iter().filter(matches).map(|cron| cron.id).collect();
            let wanted = CronQuery {
                assistant,
                ascending: true,
                ..CronQuery::within(scope.clone(), 100)
            };
            let page = CronQuery {
                limit: 2,
                offset: 1,
                ..wanted.clone()
            };
            let counted = wanted.clone();
            let found = read!(db, |tx| crons::search(tx, &wanted, usize::MAX)).into_items();
            assert_eq!(
                found.iter().map(|cron| cron.id).collect::<Vec<_>>(),
                expected,
                "{scope:?}"
            );
            assert!(
                found.iter().all(|cron| all.contains(cron)),
                "owners are read as they were stored"
            );
            let second: Vec<CronId> = expected.iter().skip(1).take(2).copied().collect();
            let found = read!(db, |tx| crons::search(tx, &page, usize::MAX)).into_items();
            assert_eq!(
                found.iter().map(|cron| cron.id).collect::<Vec<_>>(),
                second,
                "{scope:?}"
            );
            let count = read!(db, |tx| crons::count(tx, &counted));
            assert_eq!(usize::try_from(count).expect("few"), expected.len(), "{scope:?}");
        }
    }
}

async fn searches_for_deliveries_keep_to_their_scope(db: Db) {
    let run = RunId::mint();
    let mut all = vec![];
    for (place, ownership) in owners().into_iter().cycle().take(24).enumerate() {
        let of_run = if place < 12 { run } else { RunId::mint() };
        let now = Timestamp(i64::try_from(place).expect("few"));
        let url = "https://example.org/";
        let delivery = Delivery::new(of_run, ThreadId::mint(), ownership, url, "{}".to_owned(), now);
        let stored = delivery.clone();
        write!(db, |tx| deliveries::insert(tx, &stored));
        all.insert(0, delivery);
    }
    for scope in scopes() {
        let shares_all =
            matches!(&scope, AccessScope::Own { shared, .. } if shared.iter().any(MetadataFilter::is_empty));
        if shares_all {
            continue;
        }
        for of_run in [None, Some(run)] {
            let matches = |delivery: &&Delivery| {
                is_in(&scope, &delivery.ownership, &Map::new()) && of_run.is_none_or(|run| run == delivery.run)
            };
            let expected: Vec<Delivery> = all.iter().filter(matches).cloned().collect();
            let wanted = DeliverySearch {
                run: of_run,
                ..DeliverySearch::within(scope.clone(), 100)
            };
            let page = DeliverySearch {
                limit: 2,
                offset: 1,
                ..wanted.clone()
            };
            let counted = wanted.clone();
            let found = read!(db, |tx| deliveries::search(tx, &wanted, usize::MAX)).into_items();
            assert_eq!(found, expected, "{scope:?}");
            let second: Vec<Delivery> = expected.iter().skip(1).take(2).cloned().collect();
            let found = read!(db, |tx| deliveries::search(tx, &page, usize::MAX)).into_items();
            assert_eq!(found, second, "{scope:?}");
            let count = read!(db, |tx| deliveries::count(tx, &counted));
            assert_eq!(usize::try_from(count).expect("few"), expected.len(), "{scope:?}");
        }
    }
}

async fn pending_interrupts_are_listed_within_a_scope(db: Db) {
    let threads = stored_threads(&db).await;
    let mut all = vec![];
    for (seq, thread) in (1..).zip(&threads) {
        let asked = pending_interrupt(thread.id, Lane::Main, seq);
        let stored = asked.clone();
        write!(db, |tx| interrupts::insert(tx, &stored));
        all.push((thread, asked));
    }
    for scope in scopes() {
        let contained = all
            .iter()
            .filter(|(thread, _)| is_in(&scope, &thread.ownership, &thread.metadata));
        let expected: Vec<_> = contained.map(|(_, asked)| asked.clone()).collect();
        let within = InterruptScope {
            threads: scope.clone(),
            assigned: None,
            forbids: RowCondition::NEVER,
        };
        let found = read!(db, |tx| interrupts::pending(tx, &within, 100, 0));
        assert_eq!(found, expected, "{scope:?}");
        let second: Vec<_> = expected.into_iter().skip(2).take(2).collect();
        let within = InterruptScope {
            threads: scope.clone(),
            assigned: None,
            forbids: RowCondition::NEVER,
        };
        let found = read!(db, |tx| interrupts::pending(tx, &within, 2, 2));
        assert_eq!(found, second, "{scope:?}");
    }
}

async fn runs_to_cancel_are_listed_within_a_scope(db: Db) {
    let threads = stored_threads(&db).await;
    for (place, thread) in threads.iter().enumerate() {
        let mut run = run_at(thread.id, 5);
        let mut worker = None;
        if place % 2 == 0 {
            run.status = RunStatus::Running;
            worker = Some(WorkerId::mint());
        }
        write!(db, |tx| runs::insert(tx, &run, worker));
    }
    for scope in scopes() {
        let numbered = threads.iter().enumerate();
        let contained = numbered.filter(|(_, thread)| is_in(&scope, &thread.ownership, &thread.metadata));
        let (running, pending): (Vec<_>, Vec<_>) = contained.partition(|(place, _)| place % 2 == 0);
        let sorted = |threads: Vec<(usize, &Thread)>| {
            let mut ids: Vec<ThreadId> = threads.into_iter().map(|(_, thread)| thread.id).collect();
            ids.sort();
            ids
        };
        let within = scope.clone();
        let found = read!(db, |tx| runs::some_running(tx, &within, None, 100));
        let found: Vec<ThreadId> = found.into_iter().map(|(thread, _)| thread).collect();
        assert_eq!(found, sorted(running), "{scope:?}");
        let within = scope.clone();
        let found = read!(db, |tx| runs::some_pending(tx, &within, Timestamp(5), 100));
        let mut found: Vec<ThreadId> = found.into_iter().map(|run| run.thread).collect();
        found.sort();
        assert_eq!(found, sorted(pending), "{scope:?}");
    }
}

fn address(label: &str, key: &str) -> ItemAddress {
    let namespace = Namespace::prefix("n", vec![label.to_owned()]).expect("a namespace");
    ItemAddress::new(namespace, key).expect("an address")
}

fn everything() -> ItemSearch {
    ItemSearch {
        prefix: Namespace::prefix("n", vec![]).expect("a namespace"),
        filter: ItemFilter::default(),
        limit: 100,
        offset: 0,
    }
}

/// Returns the keys that a search by a vector finds in a space, by each method that the database has.
async fn nearest_keys(db: &Db, space: &Ownership) -> Vec<String> {
    let mut lists = vec![];
    for by in [
        VectorSearch::Scan,
        db.vector_search().await.expect("the database answers"),
    ] {
        let near = VectorQuery {
            vector: vec![1.0, 0.0],
            by,
        };
        let space = space.clone();
        let found = read!(db, |tx| nearest(tx, &space, &everything(), &near, Timestamp(5)));
        let found = found.expect("few enough").into_iter();
        lists.push(found.map(|found| found.item.address.key).collect::<Vec<_>>());
    }
    assert_eq!(lists[0], lists[1], "both methods give the same result");
    lists.swap_remove(0)
}

async fn owners_have_stores_of_their_own(db: Db) {
    for (number, space) in (0..).zip(owners()) {
        let draft = |key: &str| PreparedItem {
            vectors: vec![ItemVector {
                path: "$".to_owned(),
                vector: vec![1.0, 0.0],
            }],
            ..PreparedItem::new(address("notes", key), object(json!({"of": number})), None).expect("a draft")
        };
        let own = PreparedItem::new(address(&format!("only{number}"), "own"), Map::new(), None).expect("a draft");
        for draft in [draft("k"), draft(&format!("k{number}")), own] {
            let space = space.clone();
            write!(db, |tx| items::put(tx, &space, &draft, Timestamp(1)));
        }
    }
    for (number, space) in (0..).zip(owners()) {
        let read_from = space.clone();
        let found = read!(db, |tx| items::find(
            tx,
            &read_from,
            &address("notes", "k"),
            Timestamp(5)
        ));
        assert_eq!(found.expect("an item").value, object(json!({"of": number})));
        let stranger = format!("k{}", (number + 1) % 6);
        let read_from = space.clone();
        let found = read!(db, |tx| items::find(
            tx,
            &read_from,
            &address("notes", &stranger),
            Timestamp(5)
        ));
        assert_eq!(found, None, "items of others are not found");
        let read_from = space.clone();
        let found = read!(db, |tx| items::search(
            tx,
            &read_from,
            &everything(),
            usize::MAX,
            Timestamp(5)
        ));
        let keys: Vec<String> = found.into_items().into_iter().map(|item| item.address.key).collect();
        assert_eq!(keys, ["k".to_owned(), format!("k{number}"), "own".to_owned()]);
        assert_eq!(nearest_keys(&db, &space).await, ["k".to_owned(), format!("k{number}")]);
        let wanted = NamespaceSearch {
            prefix: Namespace::prefix("n", vec![]).expect("a namespace"),
            suffix: Namespace::prefix("n", vec![]).expect("a namespace"),
            max_depth: None,
            limit: 10,
            offset: 0,
        };
        let read_from = space.clone();
        let found = read!(db, |tx| items::list_namespaces(tx, &read_from, &wanted, Timestamp(5)));
        let labels: Vec<String> = found.iter().map(|namespace| namespace.labels().join(".")).collect();
        assert_eq!(labels, ["notes".to_owned(), format!("only{number}")]);
    }
    let [nobody, ann, ..] = owners();
    let gone = ann.clone();
    assert!(write!(db, |tx| items::delete(
        tx,
        &gone,
        &address("notes", "k"),
        Timestamp(5)
    )));
    assert_eq!(nearest_keys(&db, &ann).await, ["k1"]);
    assert_eq!(nearest_keys(&db, &nobody).await, ["k", "k0"]);
}

async fn facts_name_the_owner(db: Db) {
    let ann = of("acme", "ann");
    let thread = Thread {
        ownership: ann.clone(),
        metadata: object(json!({"visibility": "team"})),
        ..thread_at(1)
    };
    let assistant = assistant_of(of("acme", "bob"), object(json!({"visibility": "open"})), 1);
    let mut cron = cron_at(Some(thread.id), 1);
    cron.assistant = assistant.id;
    cron.ownership = of("acme", "cleo");
    let url = "https://example.org/";
    let run = run_at(thread.id, 1);
    let delivery = Delivery::new(run.id, thread.id, ann.clone(), url, "{}".to_owned(), Timestamp(1));
    let ids = (thread.id, assistant.id, cron.id, delivery.id, run.id);
    write!(db, |tx| async move {
        threads::insert(tx, &thread).await?;
        assistants::insert(tx, &assistant).await?;
        crons::insert(tx, &cron).await?;
        deliveries::insert(tx, &delivery).await?;
        runs::insert(tx, &run, None).await
    });
    let (thread, assistant, cron, delivery, run) = ids;
    let plain = read!(db, |tx| thread_facts(tx, thread, false)).expect("a thread");
    assert_eq!(&plain.ownership, &ann);
    assert_eq!(plain.metadata.len(), 0);
    let whole = read!(db, |tx| thread_facts(tx, thread, true)).expect("a thread");
    assert_eq!(&whole.ownership, &ann);
    assert_eq!(whole.metadata, object(json!({"visibility": "team"})));
    let plain = read!(db, |tx| assistant_facts(tx, assistant, false)).expect("an assistant");
    assert_eq!(plain.ownership, of("acme", "bob"));
    assert_eq!(plain.metadata.len(), 0);
    let whole = read!(db, |tx| assistant_facts(tx, assistant, true)).expect("an assistant");
    assert_eq!(whole.metadata, object(json!({"visibility": "open"})));
    let found = read!(db, |tx| cron_facts(tx, cron)).expect("a cron");
    assert_eq!(found.ownership, of("acme", "cleo"));
    let found = read!(db, |tx| delivery_facts(tx, delivery)).expect("a delivery");
    assert_eq!(found.ownership, ann);
    assert_eq!(read!(db, |tx| run_thread(tx, run)), Some(thread));

    assert_eq!(read!(db, |tx| thread_facts(tx, ThreadId::mint(), true)), None);
    assert_eq!(read!(db, |tx| assistant_facts(tx, AssistantId::mint(), true)), None);
    assert_eq!(read!(db, |tx| cron_facts(tx, CronId::mint())), None);
    assert_eq!(read!(db, |tx| delivery_facts(tx, DeliveryId::mint())), None);
    assert_eq!(read!(db, |tx| run_thread(tx, RunId::mint())), None);
}
