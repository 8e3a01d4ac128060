//! Threads: creation, search, changes, copies and deletion.

use futures::future::join_all;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, raw_sql};
use uuid::Uuid;

use crate::support::{
    Engine, Human, TestServer, eventually, mail, on_both_engines, play, postgres, script, task, transcript,
};

/// Returns the ids of the threads in a response, in its order.
fn ids(threads: &Value) -> Vec<&str> {
    threads
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|thread| thread["thread_id"].as_str())
        .collect()
}

on_both_engines! {
    a_new_thread_is_idle_and_empty,
    a_client_can_choose_the_id_of_a_thread_once,
    a_patch_adds_to_the_metadata,
    deleting_a_thread_deletes_everything_on_it,
    deleting_a_busy_thread_stops_its_run,
    search_by_metadata_and_status_returns_the_total,
    search_finds_by_values,
    search_finds_by_metadata_that_changed,
    filters_and_metadata_have_bounds,
    search_pages_through_the_threads,
    select_returns_only_the_selected_columns,
    the_first_run_sets_the_metadata_of_the_thread,
    an_invalid_thread_is_refused_by_field,
    a_copy_is_independent_of_the_original,
    the_ids_of_checkpoints_name_the_same_states_in_a_copy,
    deletions_in_a_thread_do_not_change_its_copy,
    a_copy_with_an_interrupted_subagent_has_its_own_child_run,
    a_copy_of_an_interrupted_thread_has_its_own_interrupt,
}

async fn a_new_thread_is_idle_and_empty(server: TestServer) {
    let client = server.client();
    let thread = client
        .post("/threads", json!({"metadata": {"colour": "red"}}))
        .await
        .ok();
    assert_eq!(thread["status"], "idle");
    assert_eq!(thread["metadata"], json!({"colour": "red"}));
    assert_eq!(thread["values"], Value::Null);
    assert_eq!(&thread["error"], &Value::Null);
    assert_eq!(&thread["interrupts"], &json!({}));
    let id = thread["thread_id"].as_str().unwrap();
    assert_eq!(client.get(&format!("/threads/{id}")).await.ok(), thread);
}

async fn a_client_can_choose_the_id_of_a_thread_once(server: TestServer) {
    let client = server.client();
    let id = Uuid::new_v4();
    let first = client
        .post("/threads", json!({"thread_id": id, "metadata": {"n": 1}}))
        .await
        .ok();
    let again = client.post("/threads", json!({"thread_id": id})).await;
    assert_eq!(again.refused(409), format!("Thread with ID {id} already exists"));
    let body = json!({"thread_id": id, "if_exists": "do_nothing", "metadata": {"n": 2}});
    assert_eq!(client.post("/threads", body).await.ok(), first);
}

async fn a_patch_adds_to_the_metadata(server: TestServer) {
    let client = server.client();
    let thread = client
        .post("/threads", json!({"metadata": {"a": 1, "b": 1}}))
        .await
        .ok();
    let path = format!("/threads/{}", thread["thread_id"].as_str().unwrap());
    let patched = client.patch(&path, json!({"metadata": {"b": 2, "c": 3}})).await.ok();
    assert_eq!(patched["metadata"], json!({"a": 1, "b": 2, "c": 3}));
    assert_eq!(
        client.get(&path).await.ok()["metadata"],
        json!({"a": 1, "b": 2, "c": 3})
    );
}

/// On SQLite writes are one after the other, so only Postgres has patches at the same time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn patches_at_the_same_time_do_not_exceed_the_size_of_metadata_together() {
    const WAITING: &str = "select count(*) from pg_stat_activity where datname = current_database() \
        and wait_event_type = 'Lock'";
    play(Engine::Postgres, async |server: TestServer| {
        let client = server.client();
        let thread = client.thread().await;
        let path = format!("/threads/{thread}");
        let mut other = postgres::connect(&server.database_url()).await;
        let id = server.id_in_sql(&thread);
        let lock = format!("begin; select 1 from threads where thread_id = {id} for update");
        raw_sql(AssertSqlSafe(lock))
            .execute(&mut other)
            .await
            .expect("the lock");
        // Each of them fits, but not both.
        let patches = ["a", "b"].map(|key| client.patch(&path, json!({"metadata": {key: "x".repeat(40_000)}})));
        let both_wait = async {
            eventually(async || server.number_in_database(WAITING).await == 2).await;
            raw_sql("rollback").execute(&mut other).await.expect("it is there");
        };
        let (replies, ()) = tokio::join!(join_all(patches), both_wait);
        let (stored, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 200);
        assert_eq!(stored.len(), 1);
        for reply in refused {
            let reason = reply.refused(422);
            assert!(reason.starts_with("metadata: is larger than "), "{reason}");
        }
        let metadata = client.get(&path).await.ok()["metadata"].clone();
        assert_eq!(metadata.as_object().expect("an object").len(), 1);
    })
    .await;
}

async fn deleting_a_thread_deletes_everything_on_it(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says(script().says("hello")).await;
    let run = alice.run(&alice.runs().await[0]);
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    let not_found = format!("Thread with ID {} not found", alice.thread);
    assert_eq!(client.get(&alice.path("")).await.refused(404), not_found);
    assert_eq!(client.get(&alice.path("/state")).await.refused(404), not_found);
    assert_eq!(client.delete(&alice.path("")).await.refused(404), not_found);
    assert_eq!(client.get(&run.path).await.status, 404);
}

async fn deleting_a_busy_thread_stops_its_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    server.tools.hold("lookup");
    alice
        .asks(script().calls(crate::support::lookup("c1", "x")).says("done"))
        .await;
    server.tools.called("lookup", 1).await;
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    server.tools.let_go("lookup");
    assert_eq!(client.get(&alice.path("")).await.status, 404);
}

async fn search_by_metadata_and_status_returns_the_total(server: TestServer) {
    let client = server.client();
    let mut red = vec![];
    for number in 0..3 {
        let metadata = json!({"colour": "red", "nested": {"number": number, "more": true}});
        let thread = client.post("/threads", json!({"metadata": metadata})).await.ok();
        red.push(thread["thread_id"].as_str().unwrap().to_owned());
    }
    client
        .post("/threads", json!({"metadata": {"colour": "blue"}}))
        .await
        .ok();
    let wanted = json!({"metadata": {"colour": "red"}, "sort_by": "created_at", "sort_order": "asc"});
    assert_eq!(ids(&client.post("/threads/search", wanted.clone()).await.ok()), red);
    assert_eq!(client.post("/threads/count", wanted).await.ok(), json!(3));
    let nested = json!({"metadata": {"nested": {"number": 1}}});
    assert_eq!(ids(&client.post("/threads/search", nested).await.ok()), [&red[1]]);
    let idle = client
        .post("/threads/search", json!({"status": "idle", "ids": [red[2]]}))
        .await
        .ok();
    assert_eq!(ids(&idle), [&red[2]]);
    assert_eq!(
        client.post("/threads/search", json!({"status": "error"})).await.ok(),
        json!([])
    );
}

async fn search_finds_by_values(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    alice.says("red").await;
    bob.says("blue").await;
    client.thread().await;
    let wanted = json!({"values": {"messages": [{"type": "ai", "content": "echo: red"}]}});
    let found = client.post("/threads/search", wanted.clone()).await;
    assert_eq!(found.header("x-pagination-total"), Some("1"));
    assert_eq!(ids(&found.ok()), [&alice.thread]);
    assert_eq!(client.post("/threads/count", wanted).await.ok(), json!(1));
    client
        .post(
            &bob.path("/state"),
            json!({"values": {"todos": [{"content": "paint", "status": "pending"}]}}),
        )
        .await
        .ok();
    let wanted = json!({"values": {"todos": [{"content": "paint"}]}, "metadata": {"graph_id": "agent"}});
    assert_eq!(ids(&client.post("/threads/search", wanted).await.ok()), [&bob.thread]);
    let nobody = json!({"values": {"messages": [{"type": "ai", "content": "red"}]}});
    assert_eq!(client.post("/threads/search", nobody).await.ok(), json!([]));
}

async fn search_finds_by_metadata_that_changed(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    client
        .patch(&alice.path(""), json!({"metadata": {"colour": "red", "size": 1}}))
        .await
        .ok();
    alice.says("hello").await;
    client
        .patch(&alice.path(""), json!({"metadata": {"colour": "blue"}}))
        .await
        .ok();
    let count = async |metadata: Value| client.post("/threads/count", json!({"metadata": metadata})).await.ok();
    assert_eq!(count(json!({"colour": "red"})).await, json!(0));
    assert_eq!(
        count(json!({"colour": "blue", "size": 1.0, "graph_id": "agent"})).await,
        json!(1)
    );
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    assert_eq!(count(json!({"colour": "blue"})).await, json!(2));
    client
        .delete(&format!("/threads/{}", copy["thread_id"].as_str().unwrap()))
        .await
        .ok();
    assert_eq!(count(json!({"colour": "blue"})).await, json!(1));
}

async fn filters_and_metadata_have_bounds(server: TestServer) {
    let client = server.client();
    let many: Vec<u32> = (0..1001).collect();
    let refused = client.post("/threads", json!({"metadata": {"many": many}})).await;
    assert_eq!(refused.refused(422), "metadata: holds more than 1000 values");
    let deep = (0..20).fold(json!(1), |inner, _| json!({"a": inner}));
    let refused = client.post("/threads/search", json!({"metadata": deep})).await;
    assert_eq!(refused.refused(422), "metadata: nests deeper than 16 levels");
    let ids = vec![Uuid::new_v4(); 1001];
    assert_eq!(client.post("/threads/count", json!({"ids": ids})).await.status, 422);
    assert_eq!(client.post("/threads/count", json!({})).await.ok(), json!(0));
}

async fn search_pages_through_the_threads(server: TestServer) {
    let client = server.client();
    for _ in 0..3 {
        client.thread().await;
    }
    let page = |offset: u64| json!({"limit": 2, "offset": offset, "sort_by": "created_at", "sort_order": "asc"});
    let first = client.post("/threads/search", page(0)).await;
    assert_eq!(first.header("x-pagination-total"), Some("3"));
    assert_eq!(first.header("x-pagination-next"), Some("2"));
    let second = client.post("/threads/search", page(2)).await;
    assert_eq!(second.header("x-pagination-total"), Some("3"));
    assert_eq!(second.header("x-pagination-next"), None);
    let first = first.ok();
    let second = second.ok();
    assert_eq!(ids(&first).len(), 2);
    assert_eq!(ids(&second).len(), 1);
    assert!(!ids(&first).contains(&ids(&second)[0]));
    assert!(client.post("/threads/search", json!({"limit": 0})).await.status == 422);
    assert!(client.post("/threads/search", json!({"limit": 1001})).await.status == 422);
}

async fn select_returns_only_the_selected_columns(server: TestServer) {
    let client = server.client();
    let id = client.thread().await;
    let found = client
        .post("/threads/search", json!({"select": ["thread_id", "status"]}))
        .await
        .ok();
    assert_eq!(found, json!([{"thread_id": id, "status": "idle"}]));
    assert_eq!(
        client
            .post("/threads/search", json!({"select": ["shoe_size"]}))
            .await
            .status,
        422
    );
}

async fn the_first_run_sets_the_metadata_of_the_thread(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says(script().says("hello")).await;
    let thread = alice.record().await;
    assert_eq!(thread["status"], "idle");
    assert_eq!(thread["metadata"]["graph_id"], "agent");
    assert_eq!(thread["values"]["messages"][1]["content"], "hello");
    let assistant = thread["metadata"]["assistant_id"].as_str().unwrap();
    let card = server.client().get(&format!("/assistants/{assistant}")).await.ok();
    assert_eq!(&card["graph_id"], &json!("agent"));
    assert_eq!(&card["name"], &json!("main-agent"));
}

async fn an_invalid_thread_is_refused_by_field(server: TestServer) {
    let client = server.client();
    let nowhere = Uuid::new_v4();
    assert_eq!(
        client.get("/threads/nope").await.refused(422),
        "Invalid thread ID: must be a UUID"
    );
    let unknown = client.get(&format!("/threads/{nowhere}")).await;
    assert_eq!(unknown.refused(404), format!("Thread with ID {nowhere} not found"));
    let patch = client
        .patch(&format!("/threads/{nowhere}"), json!({"metadata": {}}))
        .await;
    assert_eq!(patch.status, 404);
    let body = client
        .request(reqwest::Method::POST, "/threads")
        .header("content-type", "application/json")
        .body("{");
    let body = body.send().await.unwrap();
    assert_eq!(body.status(), 422);
    assert_eq!(client.get("/nowhere").await.refused(404), "Not Found");
}

async fn a_copy_is_independent_of_the_original(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    let id = copy["thread_id"].as_str().unwrap();
    assert_ne!(copy["thread_id"], alice.record().await["thread_id"]);
    assert_eq!(&copy["status"], &json!("idle"));
    assert_eq!(&copy["values"], &alice.state().await["values"]);
    alice.says("two").await;
    let history = client
        .post(&format!("/threads/{id}/history"), json!({"limit": 50}))
        .await
        .ok();
    assert_eq!(history.as_array().unwrap().len(), 3);
    assert_eq!(history[0]["metadata"]["thread_id"], id);
    let input = json!({"assistant_id": "agent", "input": {"messages": "three"}});
    let values = client.post(&format!("/threads/{id}/runs/wait"), input).await.ok();
    assert_eq!(
        transcript(&values),
        ["human: one", "ai: echo: one", "human: three", "ai: echo: three"]
    );
    assert_eq!(
        client
            .post(&format!("/threads/{}/copy", Uuid::new_v4()), json!({}))
            .await
            .status,
        404
    );
}

async fn the_ids_of_checkpoints_name_the_same_states_in_a_copy(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().unwrap());
    let ids = |history: &[Value]| -> Vec<Value> {
        history
            .iter()
            .map(|state| json!([state["checkpoint_id"], state["parent_checkpoint_id"]]))
            .collect()
    };
    let old = alice.history().await;
    let new = bob.history().await;
    assert_eq!(ids(&new), ids(&old));
    let after_one = &old[3]["checkpoint_id"];
    let at = |who: &Human| format!("{}/{}", who.path("/state"), after_one.as_str().unwrap());
    let here = client.get(&at(&alice)).await.ok();
    let there = client.get(&at(&bob)).await.ok();
    assert_eq!(&there["values"], &here["values"]);
    assert_eq!(&there["checkpoint"]["thread_id"], &json!(bob.thread));
    assert_eq!(transcript(&there["values"]), ["human: one", "ai: echo: one"]);

    // A fork, a replay and a write from a stored id, each in the copy alone.
    let runs = bob.path("/runs/wait");
    let forked = json!({"assistant_id": "agent", "checkpoint_id": after_one, "input": {"messages": "three"}});
    let forked = client.post(&runs, forked).await.ok();
    assert_eq!(
        transcript(&forked),
        ["human: one", "ai: echo: one", "human: three", "ai: echo: three"]
    );
    let before_model = old.iter().rfind(|state| state["next"] == json!(["model"])).unwrap()["checkpoint_id"].clone();
    let replayed = json!({"assistant_id": "agent", "checkpoint_id": before_model, "input": null});
    let replayed = client.post(&runs, replayed).await.ok();
    assert_eq!(transcript(&replayed), ["human: one", "ai: echo: one"]);
    let write = json!({"values": {"messages": [{"role": "user", "content": "four"}]}, "checkpoint_id": after_one});
    client.post(&bob.path("/state"), write).await.ok();
    assert_eq!(bob.transcript().await, ["human: one", "ai: echo: one", "human: four"]);
    assert_eq!(alice.history().await, old);
}

async fn deletions_in_a_thread_do_not_change_its_copy(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says("one").await;
    alice.says("two").await;
    let copies = [
        client.post(&alice.path("/copy"), json!({})).await.ok(),
        client.post(&alice.path("/copy"), json!({})).await.ok(),
    ];
    let [bob, carol] = copies.map(|copy| alice.on(copy["thread_id"].as_str().unwrap()));
    let ids =
        |history: &[Value]| -> Vec<Value> { history.iter().map(|state| state["checkpoint_id"].clone()).collect() };
    let all = ids(&alice.history().await);
    let prune = json!({"thread_ids": [bob.thread], "strategy": "keep_latest"});
    assert_eq!(client.post("/threads/prune", prune).await.ok()["pruned_count"], 1);
    let said = ["human: one", "ai: echo: one", "human: two", "ai: echo: two"];
    assert_eq!(ids(&bob.history().await), vec![all[0].clone()]);
    assert_eq!(bob.transcript().await, said.map(str::to_owned).to_vec());
    assert_eq!(ids(&alice.history().await), all.clone());
    assert_eq!(ids(&carol.history().await), all.clone());
    let undone = bob
        .asks(script().turn(json!({"text": "x y", "delay_ms": 3_600_000})))
        .await;
    undone.is_cancelled("rollback").await.ok();
    assert_eq!(ids(&alice.history().await), all);
    assert_eq!(client.delete(&alice.path("")).await.status, 204);
    assert_eq!(ids(&carol.history().await), all);
    assert_eq!(carol.transcript().await, said.map(str::to_owned).to_vec());
    let on = transcript(&bob.says("three").await);
    assert_eq!(on[4..], ["human: three", "ai: echo: three"]);
}

async fn a_copy_with_an_interrupted_subagent_has_its_own_child_run(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    let mailer = script().calls(mail("m1", "bob")).says("sent");
    let run = alice
        .asks(script().calls(task("t1", "mailer", mailer)).says("done"))
        .await;
    run.finishes().await;
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    let bob = alice.on(copy["thread_id"].as_str().unwrap());
    let own = bob.starts(json!({"input": null})).await;
    own.finishes().await;
    let here = alice.question().await;
    let there = bob.question().await;
    assert_ne!(here.id(), there.id());
    // The subagent hangs below the run from which the copy goes on, and not below one that only continues it.
    assert!(own.children().await.is_empty());
    let from = bob.run(bob.runs().await.last().unwrap());
    let children = from.children().await;
    assert_eq!(children.len(), 1);
    assert_ne!(run.children().await[0]["run_id"], children[0]["run_id"]);
    assert_eq!(children[0]["thread_id"], json!(bob.thread));
    bob.approves(&there).await.finishes().await;
    assert_eq!(bob.transcript().await.pop().unwrap(), "ai: done".to_owned());
    assert_eq!(alice.status().await.as_str(), "interrupted");
    alice.approves(&here).await.finishes().await;
    assert_eq!(alice.transcript().await.pop().unwrap(), "ai: done");
    let calls = server.tools.calls_of("send_email");
    assert_eq!(calls.len(), 2);
    assert_eq!(&calls[0]["thread_id"], &json!(bob.thread));
    assert_eq!(&calls[1]["thread_id"], &json!(alice.thread));
}

async fn a_copy_of_an_interrupted_thread_has_its_own_interrupt(server: TestServer) {
    let client = server.client();
    let alice = server.human("agent").await;
    alice.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let copy = client.post(&alice.path("/copy"), json!({})).await.ok();
    assert_eq!(&copy["status"], &json!("interrupted"));
    let own = alice.on(copy["thread_id"].as_str().unwrap()).question().await;
    let listed: Vec<&Value> = copy["interrupts"].as_object().unwrap().values().collect();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0][0]["id"], own.id());
    let runs = format!("/threads/{}/runs/wait", copy["thread_id"].as_str().unwrap());
    let asked = client.post(&runs, json!({"assistant_id": "agent"})).await.ok();
    let question = alice.question().await;
    assert_ne!(asked["__interrupt__"][0]["id"], question.id());
    assert_eq!(asked["__interrupt__"][0]["id"], own.id(), "it is not asked anew");
    let answer = json!({"assistant_id": "agent", "command": {"resume": {"decisions": [{"type": "approve"}]}}});
    let values = client.post(&runs, answer).await.ok();
    assert_eq!(transcript(&values).last().unwrap(), "ai: sent");
    assert_eq!(alice.status().await, "interrupted");
    alice.approves(&question).await.finishes().await;
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
}
