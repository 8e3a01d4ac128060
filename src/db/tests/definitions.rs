use serde_json::json;
use sqlx::{AssertSqlSafe, raw_sql};

use super::{Db, end_run, on_both, page, read, run_at, stored_thread, thread_at, write};
use crate::db::engine::on_engine;
use crate::db::{DbResult, Engine, assistants, definitions, runs, threads};
use crate::definition::{AgentDefinition, DefinitionDigest, DefinitionSource, DefinitionVersion};
use crate::domain::access::Ownership;
use crate::domain::assistant::Assistant;
use crate::domain::id::AssistantId;
use crate::domain::identity::{Tenant, UserId};
use crate::domain::run::{AssignedAgent, RunRequest, RunStatus};
use crate::domain::thread::{Thread, ThreadStatus};
use crate::domain::time::Timestamp;

on_both!(
    only_a_changed_definition_gets_a_new_version,
    definitions_that_are_stored_together_get_the_versions_of_single_ones,
    an_agent_of_a_client_is_listed_until_it_is_removed,
    an_agent_stays_that_of_its_tenant,
    versions_of_a_client_are_there_for_its_tenant_only,
    the_agents_of_a_tenant_are_erased_and_others_stay,
    agents_of_the_former_release_belong_to_the_only_tenant_or_to_the_default_one,
    a_server_of_the_former_release_stores_agents_of_the_default_tenant,
    a_definition_is_kept_while_a_run_needs_it,
    a_run_that_has_ended_without_work_left_needs_no_definition,
    changes_are_counted,
);

fn saying(prompt: &str) -> AgentDefinition {
    let schema = json!({"type": "object", "properties": {"z": {}, "a": {}}});
    AgentDefinition {
        model: "scripted:x".into(),
        system_prompt: prompt.into(),
        response_format: Some(schema),
        ..AgentDefinition::default()
    }
}

async fn store_version(db: &Db, graph_id: &'static str, prompt: &str, now: i64) -> i64 {
    let definition = saying(prompt);
    let version = write!(db, |tx| definitions::keep(
        tx,
        graph_id,
        &definition,
        &DefinitionSource::Client,
        Timestamp(now)
    ));
    version.number
}

async fn only_a_changed_definition_gets_a_new_version(db: Db) {
    assert_eq!(store_version(&db, "a", "one", 1).await, 1);
    assert_eq!(store_version(&db, "a", "one", 2).await, 1);
    assert_eq!(store_version(&db, "a", "two", 3).await, 2);
    assert_eq!(store_version(&db, "a", "one", 4).await, 3);
    assert_eq!(store_version(&db, "b", "one", 5).await, 1);
    let file = DefinitionSource::File("agents/a".to_owned());
    let definition = saying("one");
    let at = file.clone();
    assert_eq!(
        write!(db, |tx| definitions::keep(tx, "a", &definition, &at, Timestamp(6))).number,
        4
    );
    let all = read!(db, |tx| definitions::versions(tx, "a", None, page(10, 0))).into_items();
    let shown: Vec<_> = all
        .iter()
        .map(|v| (v.number, v.definition.system_prompt.parts()[0], v.created_at.0))
        .collect();
    assert_eq!(shown, [(4, "one", 6), (3, "one", 4), (2, "two", 3), (1, "one", 1)]);
    assert_eq!(all[0].definition_source, file);
    // The order of keys matters to models, so it must be stored.
    assert_eq!(all[3].definition.text(), saying("one").text());
    assert_eq!(
        read!(db, |tx| definitions::version(tx, "a", None, 2)),
        Some(all[2].clone())
    );
    assert_eq!(
        read!(db, |tx| definitions::versions(tx, "a", None, page(1, 1))).into_items()[0].number,
        3
    );
    assert_eq!(read!(db, |tx| definitions::count_versions(tx, "a", None)), 4);
    assert_eq!(read!(db, |tx| definitions::version(tx, "a", None, 9)), None);
    write!(db, |tx| definitions::forget_versions(tx, "a", 2));
    assert_eq!(read!(db, |tx| definitions::count_versions(tx, "a", None)), 2);
}

async fn definitions_that_are_stored_together_get_the_versions_of_single_ones(db: Db) {
    let first = |graph_id: &str, prompt: &str| {
        DefinitionVersion::first(graph_id, saying(prompt), DefinitionSource::Client, Timestamp(5))
    };
    store_version(&db, "same", "one", 1).await;
    store_version(&db, "changed", "one", 1).await;
    let together = vec![
        first("same", "one"),
        first("changed", "two"),
        first("new", "two"),
        first("newer", "two"),
    ];
    let kept = write!(db, |tx| definitions::keep_all(tx, together));
    let shown: Vec<_> = kept
        .iter()
        .map(|version| (version.graph_id.as_str(), version.number, version.created_at.0))
        .collect();
    assert_eq!(
        shown,
        [("same", 1, 1), ("changed", 2, 5), ("new", 1, 5), ("newer", 1, 5)]
    );
    for version in kept {
        let graph_id = version.graph_id.clone();
        let newest = read!(db, |tx| definitions::newest(tx, &graph_id)).expect("a version");
        assert_eq!(newest.number, version.number);
        assert_eq!(newest.digest, version.digest);
    }
    assert!(write!(db, |tx| definitions::keep_all(tx, vec![])).is_empty());
}

fn tenant(name: &str) -> Tenant {
    Tenant::stored(name.to_owned())
}

async fn an_agent_stays_that_of_its_tenant(db: Db) {
    assert_eq!(read!(db, |tx| definitions::owner(tx, "a")), None);
    for (name, number) in [("acme", 1), ("other", 2)] {
        store_version(&db, "a", name, number).await;
        let client = tenant(name);
        write!(db, |tx| definitions::put(tx, "a", number, &client));
        assert_eq!(read!(db, |tx| definitions::owner(tx, "a")), Some(tenant("acme")));
    }
}

async fn versions_of_a_client_are_there_for_its_tenant_only(db: Db) {
    store_version(&db, "a", "one", 1).await;
    let acme = tenant("acme");
    write!(db, |tx| definitions::put(tx, "a", 1, &acme));
    let definition = saying("of a file");
    let file = DefinitionSource::File("agents/a".to_owned());
    write!(db, |tx| definitions::keep(tx, "a", &definition, &file, Timestamp(2)));
    for (name, there) in [(None, vec![2, 1]), (Some("acme"), vec![2, 1]), (Some("other"), vec![2])] {
        let reader = name.map(tenant);
        let listed = read!(db, |tx| definitions::versions(tx, "a", reader.as_ref(), page(10, 0)));
        let numbers: Vec<i64> = listed.into_items().iter().map(|version| version.number).collect();
        assert_eq!(numbers, there, "{name:?}");
        let reader = name.map(tenant);
        let count = read!(db, |tx| definitions::count_versions(tx, "a", reader.as_ref()));
        assert_eq!(usize::try_from(count), Ok(there.len()), "{name:?}");
        let reader = name.map(tenant);
        let first = read!(db, |tx| definitions::version(tx, "a", reader.as_ref(), 1));
        assert_eq!(first.is_some(), there.contains(&1), "{name:?}");
    }
}

/// Executes statements.
async fn execute(db: &Db, sql: &str) {
    let sql = sql.to_owned();
    write!(db, |tx| async {
        on_engine!(tx, |conn| raw_sql(AssertSqlSafe(sql)).execute(conn).await.map(drop))?;
        DbResult::Ok(())
    });
}

async fn agents_of_the_former_release_belong_to_the_only_tenant_or_to_the_default_one(db: Db) {
    const BEFORE: &str = "drop index agents_by_tenant; alter table agents drop column tenant";
    let migration = match db.engine() {
        Engine::Sqlite => include_str!("../../../migrations/sqlite/0010_tenants_of_agents.sql"),
        Engine::Postgres => include_str!("../../../migrations/postgres/0010_tenants_of_agents.sql"),
    };
    store_version(&db, "a", "one", 1).await;
    let acme = tenant("acme");
    write!(db, |tx| definitions::put(tx, "a", 1, &acme));
    // Without threads, with those of one tenant, and with those of two.
    for (new, owner) in [(None, "default"), (Some("other"), "other"), (Some("third"), "default")] {
        if let Some(new) = new {
            let thread = Thread {
                ownership: Ownership {
                    tenant: tenant(new),
                    owner: UserId::default(),
                },
                ..thread_at(1)
            };
            assert!(write!(db, |tx| threads::insert(tx, &thread)));
        }
        execute(&db, BEFORE).await;
        execute(&db, migration).await;
        assert_eq!(
            read!(db, |tx| definitions::owner(tx, "a")),
            Some(tenant(owner)),
            "{new:?}"
        );
    }
}

async fn a_server_of_the_former_release_stores_agents_of_the_default_tenant(db: Db) {
    store_version(&db, "a", "one", 1).await;
    execute(&db, "insert into agents (graph_id, version) values ('a', 1)").await;
    assert_eq!(read!(db, |tx| definitions::owner(tx, "a")), Some(Tenant::default()));
    let all = read!(db, |tx| definitions::of_clients(tx));
    assert_eq!(all[0].tenant, Tenant::default());
}

async fn the_agents_of_a_tenant_are_erased_and_others_stay(db: Db) {
    let defaults = ["a", "b", "c"];
    for (name, graph_id, prompt) in [
        ("acme", "a", "of acme"),
        ("other", "b", "of other"),
        ("acme", "c", "of both"),
    ] {
        store_version(&db, graph_id, prompt, 1).await;
        let client = tenant(name);
        write!(db, |tx| definitions::put(tx, graph_id, 1, &client));
    }
    store_version(&db, "of a file", "of both", 1).await;
    let all: Vec<Assistant> = defaults
        .iter()
        .map(|graph_id| Assistant::automatic(graph_id, graph_id, None, Timestamp(1)))
        .collect();
    write!(db, |tx| assistants::insert_all(tx, &all));
    for is_there in [true, true, false] {
        let acme = tenant("acme");
        let erased = write!(db, |tx| definitions::erase_one_of_tenant(tx, &acme));
        assert_eq!(erased, is_there);
    }
    let left = read!(db, |tx| definitions::of_clients(tx));
    let left: Vec<&str> = left.iter().map(|agent| agent.version.graph_id.as_str()).collect();
    assert_eq!(left, ["b"]);
    for (prompt, is_kept) in [("of acme", false), ("of other", true), ("of both", true)] {
        let digest = saying(prompt).digest();
        let found = read!(db, |tx| definitions::find(tx, &digest));
        assert_eq!(found.is_some(), is_kept, "{prompt}");
    }
    for (graph_id, is_kept) in [("a", false), ("b", true), ("c", false)] {
        assert_eq!(read!(db, |tx| definitions::newest(tx, graph_id)).is_some(), is_kept);
        let found = read!(db, |tx| assistants::find(tx, AssistantId::of_graph(graph_id)));
        assert_eq!(found.is_some(), is_kept, "{graph_id}");
    }
    assert_eq!(read!(db, |tx| definitions::last_change(tx)), 2);
}

async fn an_agent_of_a_client_is_listed_until_it_is_removed(db: Db) {
    for (prompt, number) in [("one", 1), ("two", 2)] {
        assert_eq!(store_version(&db, "a", prompt, number).await, number);
        let acme = tenant("acme");
        write!(db, |tx| definitions::put(tx, "a", number, &acme));
    }
    store_version(&db, "of a file", "one", 3).await;
    assert_eq!(read!(db, |tx| definitions::count(tx)), 1);
    let all = read!(db, |tx| definitions::of_clients(tx));
    assert_eq!(
        all.iter()
            .map(|agent| (agent.version.graph_id.as_str(), agent.version.number, &agent.tenant))
            .collect::<Vec<_>>(),
        [("a", 2, &tenant("acme"))]
    );
    assert_eq!(read!(db, |tx| definitions::of_client(tx, "a")), Some(all[0].clone()));
    assert_eq!(read!(db, |tx| definitions::of_client(tx, "of a file")), None);
    // The current version is not deleted.
    write!(db, |tx| definitions::forget_versions(tx, "a", 2));
    assert_eq!(read!(db, |tx| definitions::newest(tx, "a")).map(|v| v.number), Some(2));
    for (name, is_removed) in [("other", false), ("acme", true), ("acme", false)] {
        let client = tenant(name);
        let removed = write!(db, |tx| definitions::remove(tx, "a", &client, Timestamp(9)));
        assert_eq!(removed, is_removed, "{name}");
    }
    assert_eq!(read!(db, |tx| definitions::count(tx)), 0);
    assert_eq!(read!(db, |tx| definitions::newest(tx, "a")), None);
    let digest = saying("two").digest();
    assert_eq!(read!(db, |tx| definitions::find(tx, &digest)), Some(saying("two")));
    assert_eq!(
        read!(db, |tx| definitions::find(tx, &DefinitionDigest("none".to_owned()))),
        None
    );
}

/// Returns the request of a run that is pinned to a definition.
fn request_under(prompt: &str) -> RunRequest {
    let definition = Some(saying(prompt).digest());
    let agent = Some(AssignedAgent {
        graph_id: "a".to_owned(),
        version: 1,
        definition,
    });
    RunRequest {
        agent,
        ..RunRequest::default()
    }
}

async fn a_run_that_has_ended_without_work_left_needs_no_definition(db: Db) {
    for (prompt, waits) in [("waits", true), ("done", false)] {
        store_version(&db, "a", prompt, 1).await;
        let thread = stored_thread(&db).await;
        let mut run = run_at(thread, 1);
        run.request = request_under(prompt);
        let id = run.id;
        write!(db, |tx| runs::insert(tx, &run, None));
        end_run(&db, id, waits).await;
        let change = threads::ThreadChange {
            status: Some(ThreadStatus::Interrupted),
            ..Default::default()
        };
        write!(db, |tx| threads::set(tx, thread, change, Timestamp(4)));
    }
    write!(db, |tx| definitions::forget_versions(tx, "a", 2));
    assert_eq!(write!(db, |tx| definitions::sweep(tx, Timestamp(100))), 1);
    for (prompt, is_there) in [("waits", true), ("done", false)] {
        let digest = saying(prompt).digest();
        let found = read!(db, |tx| definitions::find(tx, &digest));
        assert_eq!(found.is_some(), is_there, "{prompt}");
    }
}

async fn a_definition_is_kept_while_a_run_needs_it(db: Db) {
    for prompt in ["waits", "runs", "done", "listed"] {
        store_version(&db, "a", prompt, 1).await;
    }
    for (prompt, status) in [
        ("waits", RunStatus::Success),
        ("runs", RunStatus::Pending),
        ("done", RunStatus::Success),
    ] {
        let thread = stored_thread(&db).await;
        let mut run = run_at(thread, 1);
        (run.request, run.status) = (request_under(prompt), status);
        write!(db, |tx| runs::insert(tx, &run, None));
        let status = (prompt == "waits").then_some(ThreadStatus::Interrupted);
        let change = threads::ThreadChange {
            status,
            ..Default::default()
        };
        write!(db, |tx| threads::set(tx, thread, change, Timestamp(2)));
    }
    write!(db, |tx| definitions::forget_versions(tx, "a", 3));
    assert_eq!(
        write!(db, |tx| definitions::sweep(tx, Timestamp(1))),
        0,
        "it went out of use too recently"
    );
    assert_eq!(write!(db, |tx| definitions::sweep(tx, Timestamp(100))), 1);
    for (prompt, is_there) in [("waits", true), ("runs", true), ("done", false), ("listed", true)] {
        let digest = saying(prompt).digest();
        assert_eq!(
            read!(db, |tx| definitions::find(tx, &digest)).is_some(),
            is_there,
            "{prompt}"
        );
    }
    assert_eq!(write!(db, |tx| definitions::sweep(tx, Timestamp(100))), 0);
}

async fn changes_are_counted(db: Db) {
    assert_eq!(read!(db, |tx| definitions::last_change(tx)), 0);
    assert_eq!(write!(db, |tx| definitions::note_change(tx)), 1);
    assert_eq!(write!(db, |tx| definitions::note_change(tx)), 2);
    assert_eq!(read!(db, |tx| definitions::last_change(tx)), 2);
}
