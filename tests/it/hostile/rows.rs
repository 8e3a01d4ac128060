//! Rows of the database that cannot be read: they are stepped over, and everything else goes on.

use adjutant::sqlite::SqliteConnection;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, query, query_as};

use crate::agents::background_tasks::{boss, knows_an_outcome, start, the_task};
use crate::remote::awaited::Peer;
use crate::remote::background_tasks::chief;
use crate::support::client::{Client, Reply};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{
    Engine, TestServer, eventually, lookup, mail, on_both_engines, postgres, script, task, transcript,
};

/// The text that replaces JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Poison {
    /// Well-formed JSON that nests too deeply for the reader of stored columns.
    TooDeep,
    /// Text that starts like JSON and is invalid. Columns of a JSON type cannot have it.
    NoJson,
    /// Text that begins like one in the short form and is none. Columns of a JSON type cannot have it either.
    NoShortForm,
}

impl Poison {
    fn text(self) -> String {
        match self {
            Self::TooDeep => unreadable(),
            Self::NoJson => "{\"a\": 1, oops".to_owned(),
            Self::NoShortForm => "\u{1}\u{2}oops".to_owned(),
        }
    }
}

fn unreadable() -> String {
    format!("{}{}", "[".repeat(200), "]".repeat(200))
}

/// A connection to the database, beside those of the server.
#[expect(clippy::large_enum_variant, reason = "a test has one of them")]
enum Beside {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl Beside {
    async fn connect(server: &TestServer) -> Self {
        let url = server.database_url();
        match server.engine {
            Engine::Sqlite => {
                let mut conn = SqliteConnection::connect(&url).await.unwrap();
                query("pragma busy_timeout = 20000").execute(&mut conn).await.unwrap();
                Self::Sqlite(conn)
            }
            Engine::Postgres => Self::Postgres(postgres::connect(&url).await),
        }
    }

    /// Executes a statement, and returns the number of rows.
    async fn execute(&mut self, text: String) -> u64 {
        match self {
            Self::Sqlite(conn) => query(AssertSqlSafe(text)).execute(conn).await.unwrap().rows_affected(),
            // A statement that changes many rows can meet the server's own in the opposite order.
            Self::Postgres(conn) => loop {
                match query(AssertSqlSafe(text.clone())).execute(&mut *conn).await {
                    Ok(done) => return done.rows_affected(),
                    Err(error) if is_deadlock(&error) => {}
                    Err(error) => panic!("{error}"),
                }
            },
        }
    }
}

/// Executes a statement on the database without the server, and returns the number of rows.
async fn sql(server: &TestServer, text: impl Into<String>) -> u64 {
    Beside::connect(server).await.execute(text.into()).await
}

/// Returns whether Postgres broke the statement off because it and another one waited for each other.
fn is_deadlock(error: &sqlx::Error) -> bool {
    error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)
        .as_deref()
        == Some("40P01")
}

/// A column whose type can hold JSON.
struct Column {
    table_name: String,
    column_name: String,
    data_type: String,
}

impl Column {
    /// Returns whether Postgres parses what is stored here.
    fn is_jsonb(&self) -> bool {
        self.data_type == "jsonb"
    }
}

/// Returns the columns of all tables whose type can hold JSON.
async fn columns(server: &TestServer) -> Vec<Column> {
    const SQLITE: &str = "select m.name as table_name, c.name as column_name, lower(c.type) as data_type \
        from sqlite_master m join pragma_table_info(m.name) c \
        where m.type = 'table' and m.name not like 'sqlite_%' and m.name not like '\\_%' escape '\\' \
        and lower(c.type) in ('text', 'json') and c.pk = 0 order by 1, 2";
    const POSTGRES: &str = "select table_name::text, column_name::text, data_type::text from information_schema.columns \
        where table_schema = 'public' and table_name not like '\\_%' and data_type in ('text', 'json', 'jsonb') \
        order by 1, 2";
    let found: Vec<(String, String, String)> = match Beside::connect(server).await {
        Beside::Sqlite(mut conn) => query_as(SQLITE).fetch_all(&mut conn).await.unwrap(),
        Beside::Postgres(mut conn) => query_as(POSTGRES).fetch_all(&mut conn).await.unwrap(),
    };
    let columns = found.into_iter().map(|row| Column {
        table_name: row.0,
        column_name: row.1,
        data_type: row.2,
    });
    columns.collect()
}

/// Makes the JSON of a column unreadable, except for default assistants, and returns the number of changed rows.
async fn poison(server: &TestServer, table: &str, column: &str) -> u64 {
    poison_column(server, table, column, Poison::TooDeep).await
}

/// Replaces the JSON of a column by this kind of text, and returns the number of changed rows.
async fn poison_column(server: &TestServer, table: &str, column: &str, kind: Poison) -> u64 {
    let mut columns = columns(server).await.into_iter();
    let found = columns.find(|found| found.table_name == table && found.column_name == column);
    let mut beside = Beside::connect(server).await;
    poison_with(&mut beside, &found.expect("the column"), kind).await
}

/// Replaces the JSON of a column by this kind of text, and returns the number of changed rows.
async fn poison_with(beside: &mut Beside, column: &Column, kind: Poison) -> u64 {
    let Column {
        table_name: table,
        column_name: name,
        ..
    } = column;
    let own = if table.starts_with("assistant") {
        " and cast(metadata as text) not like '%created_by%'"
    } else {
        ""
    };
    if column.is_jsonb() && kind != Poison::TooDeep {
        return 0;
    }
    let cast = if column.is_jsonb() { "::jsonb" } else { "" };
    let value = format!("'{}'{cast}", kind.text());
    // Texts in a short form begin with a control character.
    let begins = ["{", "[", "\u{1}", "\u{2}"].map(|begin| format!("cast({name} as text) like '{begin}%'"));
    let holds = format!("({})", begins.join(" or "));
    beside
        .execute(format!("update {table} set {name} = {value} where {holds}{own}"))
        .await
}

/// Creates rows in all tables: finished and interrupted threads, an answered interrupt, pending runs, local and remote
/// background tasks, a failed delivery, and others. Returns the threads.
async fn seed(server: &TestServer, receiver: &WebhookReceiver) -> Vec<String> {
    let client = server.client();
    let done = server.human("agent").await;
    let asks = server.human("agent").await;
    let waits = server.human("agent").await;
    let waits_longer = server.human("agent").await;
    done.says(script().calls(lookup("c1", "x")).says("done")).await;
    asks.says(script().calls(mail("m1", "bob")).says("sent")).await;
    let answered = server.human("agent").await;
    let below = script().calls(mail("m2", "bob")).says("sent by child");
    answered
        .says(script().calls(task("t1", "mailer", below)).says("done"))
        .await;
    answered.approves(&answered.question().await).await.finishes().await;
    let notes = json!({"metadata": {"a": 1}, "context": {"b": 2}, "after_seconds": 3600});
    waits.starts(waits.run_body("later", notes.clone())).await;
    waits_longer.says("hello").await;
    let mut told = notes;
    told["webhook"] = json!(receiver.base);
    waits_longer.starts(waits_longer.run_body("much later", told)).await;
    let settings = json!({"graph_id": "agent", "name": "mine", "metadata": {"a": 1}, "context": {"b": [2]}});
    client.post("/assistants", settings).await.ok();
    let cron =
        json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "metadata": {"a": 1}, "input": {"messages": []}});
    client.post("/runs/crons", cron).await.ok();
    let item = json!({"namespace": ["notes"], "key": "k", "value": {"a": 1}});
    client.put("/store/items", item).await.ok();
    let keyed = client
        .request(reqwest::Method::POST, "/threads")
        .header("idempotency-key", uuid::Uuid::new_v4().to_string());
    crate::support::client::reply(keyed.json(&json!({"metadata": {"a": 1}})))
        .await
        .ok();
    let parent = server.human("boss").await;
    parent
        .says(script().calls(start("a1", "writer", "write it")).says("under way"))
        .await;
    knows_an_outcome(&parent).await;
    let chief = server.human("away").await;
    let asks_there = script().calls(mail("m3", "bob")).says("sent from afar");
    chief
        .says(script().calls(start("a2", "far", asks_there)).says("under way"))
        .await;
    let there = the_task(&chief).await["task_id"].as_str().expect("an id").to_owned();
    eventually(async || !client.get(&format!("/threads/{there}/interrupts")).await.ok()["interrupts"][0].is_null())
        .await;
    knows_an_outcome(&chief).await;
    let reports = server.human("agent").await;
    receiver.answers(&[500]);
    let report = reports
        .starts(reports.run_body("hello", json!({"webhook": receiver.base})))
        .await;
    is_told(server, &report.id, "pending").await;
    let task = the_task(&parent).await["thread_id"].as_str().expect("an id").to_owned();
    let humans = [done, asks, waits, waits_longer, answered, parent, chief, reports];
    humans.into_iter().map(|human| human.thread).chain([task]).collect()
}

/// Waits until the report of a run was tried, and stands so.
async fn is_told(server: &TestServer, run: &str, status: &str) {
    let path = format!("/webhooks/deliveries?run_id={run}");
    let was_tried = |it: &Value| it["attempts"] == 1 && it["status"] == status && it["response_status"].is_number();
    eventually(async || was_tried(&server.client().get(&path).await.ok()[0])).await;
}

/// Requests everything that lists or counts something, for all threads or one.
async fn lists(client: &Client, threads: &[String]) -> Vec<(String, Reply)> {
    let mut replies = vec![];
    for (path, body) in [
        ("/threads/search", json!({})),
        ("/threads/search", json!({"metadata": {"a": 1}})),
        ("/threads/search", json!({"values": {"x": 1}})),
        (
            "/threads/search",
            json!({"status": "interrupted", "select": ["thread_id", "metadata"]}),
        ),
        ("/threads/count", json!({"metadata": {"a": {"b": [1]}}})),
        ("/assistants/search", json!({})),
        ("/assistants/search", json!({"metadata": {"a": 1}})),
        ("/assistants/count", json!({"metadata": {"a": 1}})),
        ("/runs/crons/search", json!({})),
        ("/runs/crons/count", json!({"metadata": {"a": 1}})),
        ("/store/items/search", json!({"namespace_prefix": ["notes"]})),
        (
            "/store/items/search",
            json!({"namespace_prefix": ["notes"], "filter": {"a": 1}}),
        ),
        ("/store/namespaces", json!({})),
        ("/agents/search", json!({})),
    ] {
        replies.push((format!("{path} {body}"), client.post(path, body.clone()).await));
    }
    let mut paths = vec![
        "/interrupts".to_owned(),
        "/webhooks/deliveries".to_owned(),
        "/ok?check_db=1".to_owned(),
    ];
    for thread in threads {
        paths.extend(["", "/runs", "/interrupts", "/storage"].map(|rest| format!("/threads/{thread}{rest}")));
    }
    // The newest come first. The others were read by earlier calls, and they become many.
    let deliveries = client.get("/webhooks/deliveries?limit=1000").await.ok();
    for delivery in deliveries.as_array().expect("a list").iter().take(10) {
        paths.push(format!(
            "/webhooks/deliveries/{}",
            delivery["delivery_id"].as_str().expect("an id")
        ));
    }
    for path in paths {
        let reply = client.get(&path).await;
        replies.push((path, reply));
    }
    replies
}

/// Checks that other requests are served: runs, delayed runs, crons, lists, webhooks, background tasks and the sweeper.
async fn others_are_served(server: &TestServer, receiver: &WebhookReceiver, what: &str, threads: &[String]) {
    let client = server.client();
    let now = server.human("agent").await;
    let later = server.human("agent").await;
    let in_time = json!({"after_seconds": 0.05, "webhook": receiver.base});
    let queued = later.starts(later.run_body("in time", in_time)).await;
    let short = client
        .post("/threads", json!({"ttl": {"ttl": 0.0001, "strategy": "delete"}}))
        .await
        .ok();
    let short = format!("/threads/{}", short["thread_id"].as_str().unwrap());
    let timed = server.human("agent").await;
    let cron = json!({"assistant_id": "agent", "schedule": "0 0 1 1 *", "input": {"messages": ["by the clock"]}});
    let cron = client.post(&timed.path("/runs/crons"), cron).await.ok();
    sql(
        server,
        "update jobs set due_at = 1 where kind in ('cron', 'webhook') and worker is null",
    )
    .await;
    assert_eq!(
        transcript(&now.says("hello").await).last().unwrap(),
        "ai: echo: hello",
        "{what}"
    );
    let parent = server.human("boss").await;
    parent
        .says(script().calls(start("b1", "writer", "write it")).says("under way"))
        .await;
    for (list, reply) in lists(&client, threads).await {
        assert_eq!(reply.status, 200, "{what}: {list}: {:?}", reply.body);
    }
    queued.finishes().await;
    assert_eq!(queued.status().await, "success", "{what}: a run that waited");
    is_told(server, &queued.id, "delivered").await;
    knows_an_outcome(&parent).await;
    eventually(async || client.get(&short).await.status == 404).await;
    eventually(async || timed.runs().await.iter().any(|run| run["status"] == "success")).await;
    client
        .delete(&format!("/runs/crons/{}", cron["cron_id"].as_str().unwrap()))
        .await
        .ok();
}

/// Cancels the pending runs and deletes the threads.
async fn all_is_deleted(server: &TestServer, what: &str, threads: &[String]) {
    let cancelled = server.client().post("/runs/cancel", json!({"status": "all"})).await;
    assert!(cancelled.status < 300, "{what}: {cancelled:?}");
    for thread in threads {
        let path = format!("/threads/{thread}");
        let mut status = server.client().delete(&path).await.status;
        // A busy server says so, and the client asks again.
        for _ in 0..3 {
            if status == 503 {
                status = server.client().delete(&path).await.status;
            }
        }
        assert_eq!(status, 204, "{what}");
    }
}

/// Breaks each column in turn, then all of them at once. Returns the columns.
async fn breaks_each_column(server: &TestServer, kind: Poison) -> Vec<(String, String)> {
    let receiver = WebhookReceiver::start().await;
    server.sweeps_often();
    let peer = Peer::named_by(server, |base| format!("{}\n{}", chief(base, ""), boss(""))).await;
    let mut threads = seed(server, &receiver).await;
    let mut poisoned = vec![];
    let mut beside = Beside::connect(server).await;
    for column in columns(server).await {
        let rows = poison_with(&mut beside, &column, kind).await;
        if rows == 0 {
            continue;
        }
        let what = format!("{}.{} in {rows} rows", column.table_name, column.column_name);
        let waiting = server.id_in_sql(&threads[2]);
        let is_due = format!("update runs set due_at = 1 where status = 'pending' and thread_id = {waiting}");
        beside.execute(is_due).await;
        others_are_served(server, &receiver, &what, &threads).await;
        all_is_deleted(server, &what, &threads).await;
        threads = seed(server, &receiver).await;
        poisoned.push(column);
    }
    drop(beside);
    // All of them at once, read for the first time by a server that takes over what another one left behind.
    server.moves_into_a_process().await;
    let mut beside = Beside::connect(server).await;
    for column in &poisoned {
        poison_with(&mut beside, column, kind).await;
    }
    drop(beside);
    server.tools.hold("lookup");
    let bob = server.human("agent").await;
    let calls = server.tools.calls_of("lookup").len();
    let left = bob.asks(script().calls(lookup("c9", "x")).says("done")).await;
    server.tools.called("lookup", calls + 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    left.finishes().await;
    assert_eq!(left.status().await, "success");
    others_are_served(server, &receiver, "all", &threads).await;
    all_is_deleted(server, "all", &threads).await;
    peer.finish().await;
    let names = poisoned
        .into_iter()
        .map(|column| (column.table_name, column.column_name));
    names.collect()
}

on_both_engines! {
    an_unreadable_run_fails_and_blocks_no_other,
    unreadable_runs_can_be_cancelled_and_deleted,
    an_unreadable_run_does_not_block_the_takeover_of_others,
    a_run_with_an_unreadable_state_fails,
    a_run_that_is_to_begin_at_an_unreadable_position_fails,
    an_unreadable_history_does_not_stop_the_sweeper,
    unreadable_rows_do_not_block_a_rollback,
    runs_on_an_unreadable_history_can_be_cancelled_and_deleted,
    no_column_with_deeply_nested_json_blocks_other_requests,
    no_column_without_json_blocks_other_requests,
}

async fn an_unreadable_run_fails_and_blocks_no_other(server: TestServer) {
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let client = server.client();
    let poisoned = alice
        .starts(alice.run_body("never", json!({"after_seconds": 3600})))
        .await;
    let of_bob = bob
        .starts(bob.run_body("after it", json!({"after_seconds": 3600})))
        .await;
    let changed = format!(
        "update runs set request = '{}' where run_id = {}",
        unreadable(),
        server.id_in_sql(&poisoned.id)
    );
    assert_eq!(sql(&server, changed).await, 1);
    assert_eq!(
        client.get(&alice.path("/runs")).await.ok().as_array().map(Vec::len),
        Some(1),
        "it is listed"
    );
    sql(
        &server,
        format!(
            "update runs set due_at = 1 where run_id = {}",
            server.id_in_sql(&poisoned.id)
        ),
    )
    .await;
    sql(
        &server,
        format!(
            "update runs set due_at = 2 where run_id = {}",
            server.id_in_sql(&of_bob.id)
        ),
    )
    .await;
    of_bob.finishes().await;
    assert_eq!(of_bob.status().await, "success");
    eventually(async || poisoned.status().await == "error").await;
    let thread = alice.record().await;
    assert_eq!(thread["status"], "error", "{thread}");
    assert!(
        thread.to_string().contains("UnreadableRunError"),
        "it is told why: {thread}"
    );
    assert_eq!(
        transcript(&alice.says("again").await).last().unwrap(),
        "ai: echo: again",
        "the thread is free"
    );
    client.delete(&poisoned.path).await.ok();
    client.get(&poisoned.path).await.refused(404);
    client.delete(&alice.path("")).await.ok();
}

async fn unreadable_runs_can_be_cancelled_and_deleted(server: TestServer) {
    let client = server.client();
    for way in ["cancel", "all", "run", "thread"] {
        let alice = server.human("agent").await;
        let run = alice
            .starts(alice.run_body("never", json!({"after_seconds": 3600})))
            .await;
        for column in ["request", "metadata", "path"] {
            poison(&server, "runs", column).await;
        }
        match way {
            "cancel" => _ = client.post(&format!("{}/cancel", run.path), json!({})).await.ok(),
            "all" => _ = client.post("/runs/cancel", json!({"status": "all"})).await.ok(),
            "run" => _ = client.delete(&run.path).await.ok(),
            _ => _ = client.delete(&alice.path("")).await.ok(),
        }
        match way {
            "run" => client.get(&run.path).await.refused(404).truncate(0),
            "thread" => client.get(&alice.path("")).await.refused(404).truncate(0),
            _ => assert_eq!(run.status().await, "interrupted"),
        }
    }
}

async fn an_unreadable_run_does_not_block_the_takeover_of_others(server: TestServer) {
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let alice = server.human("agent").await;
    let bob = server.human("agent").await;
    let text = || script().calls(lookup("c1", "x")).says("done");
    let poisoned = alice.asks(text()).await;
    let other = bob.asks(text()).await;
    server.tools.called("lookup", 2).await;
    let changed = format!(
        "update runs set request = '{}' where run_id = {}",
        unreadable(),
        server.id_in_sql(&poisoned.id)
    );
    assert_eq!(sql(&server, changed).await, 1);
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    other.finishes().await;
    assert_eq!(other.status().await, "success");
    eventually(async || poisoned.status().await == "error").await;
    assert_eq!(alice.status().await, "error");
}

async fn a_run_with_an_unreadable_state_fails(server: TestServer) {
    let ways = [
        ("position", Poison::TooDeep),
        ("writes", Poison::TooDeep),
        ("position", Poison::NoShortForm),
        ("writes", Poison::NoShortForm),
    ];
    for (column, kind) in ways {
        let alice = server.human("agent").await;
        alice.says("hello").await;
        assert!(poison_column(&server, "checkpoints", column, kind).await > 0);
        // Sums are remembered.
        server.is_stopped_and_started_again().await;
        let run = alice.asks("more").await;
        eventually(async || run.status().await == "error").await;
        let record = alice.record().await;
        assert!(record.to_string().contains("UnreadableRunError"), "{record}");
        assert_eq!(run.record().await["status"], "error");
        assert_eq!(server.client().post("/threads/search", json!({})).await.status, 200);
        server.client().delete(&alice.path("")).await.ok();
    }
}

async fn a_run_that_is_to_begin_at_an_unreadable_position_fails(server: TestServer) {
    let alice = server.human("agent").await;
    alice.says("hello").await;
    assert!(poison(&server, "checkpoints", "position").await > 0);
    // The state is in memory, the position is not.
    let run = alice.asks("more").await;
    eventually(async || run.status().await == "error").await;
    let record = alice.record().await;
    assert!(record.to_string().contains("UnreadableRunError"), "{record}");
}

async fn an_unreadable_history_does_not_stop_the_sweeper(server: TestServer) {
    let alice = server.human("agent").await;
    let client = server.client();
    alice.says("hello").await;
    poison(&server, "checkpoints", "position").await;
    poison(&server, "checkpoints", "writes").await;
    server.is_stopped_and_started_again().await;
    let expired = "update threads set ttl = 60000000, ttl_strategy = 'keep_latest', expires_at = 1";
    sql(&server, expired).await;
    let short = client
        .post("/threads", json!({"ttl": {"ttl": 0.0001, "strategy": "delete"}}))
        .await
        .ok();
    let short = format!("/threads/{}", short["thread_id"].as_str().unwrap());
    eventually(async || client.get(&short).await.status == 404).await;
    let kept = client
        .post(
            "/threads/prune",
            json!({"thread_ids": [alice.thread], "strategy": "keep_latest"}),
        )
        .await;
    assert_eq!(kept.ok()["pruned_count"], 0);
    client.delete(&alice.path("")).await.ok();
}

async fn unreadable_rows_do_not_block_a_rollback(server: TestServer) {
    let alice = server.human("agent").await;
    let client = server.client();
    server.tools.hold("lookup");
    let below = script()
        .calls(mail("m1", "bob"))
        .calls(lookup("l1", "x"))
        .says("sent by child");
    alice
        .says(script().calls(task("t1", "mailer", below)).says("done"))
        .await;
    let run = alice.approves(&alice.question().await).await;
    server.tools.called("lookup", 1).await;
    assert!(poison(&server, "interrupts", "before").await > 0);
    assert!(poison(&server, "checkpoints", "before").await > 0);
    assert_eq!(run.is_cancelled("rollback").await.status, 200);
    client.get(&run.path).await.refused(404);
    server.tools.let_go("lookup");
    let bob = server.human("agent").await;
    let after = alice.asks("again").await;
    assert_eq!(transcript(&bob.says("hello").await).last().unwrap(), "ai: echo: hello");
    after.finishes().await;
    assert!(
        matches!(after.status().await.as_str(), "success" | "error"),
        "it comes to an end"
    );
    client.delete(&alice.path("")).await.ok();
}

async fn runs_on_an_unreadable_history_can_be_cancelled_and_deleted(server: TestServer) {
    let client = server.client();
    let receiver = WebhookReceiver::start().await;
    for way in ["cancel", "all", "run", "thread"] {
        let alice = server.human("agent").await;
        alice.says("hello").await;
        let later = json!({"after_seconds": 3600, "webhook": receiver.base});
        let run = alice.starts(alice.run_body("never", later)).await;
        poison(&server, "checkpoints", "position").await;
        poison(&server, "checkpoints", "writes").await;
        // Sums are remembered.
        server.is_stopped_and_started_again().await;
        match way {
            "cancel" => _ = client.post(&format!("{}/cancel", run.path), json!({})).await.ok(),
            "all" => _ = client.post("/runs/cancel", json!({"status": "all"})).await.ok(),
            "run" => _ = client.delete(&run.path).await.ok(),
            _ => _ = client.delete(&alice.path("")).await.ok(),
        }
        match way {
            "run" => client.get(&run.path).await.refused(404).truncate(0),
            "thread" => client.get(&alice.path("")).await.refused(404).truncate(0),
            _ => assert_eq!(run.status().await, "interrupted"),
        }
    }
}

async fn no_column_with_deeply_nested_json_blocks_other_requests(server: TestServer) {
    let poisoned = breaks_each_column(&server, Poison::TooDeep).await;
    for expected in [
        ("assistants", "config"),
        ("assistants", "metadata"),
        ("background_tasks", "ancestry"),
        ("checkpoints", "before"),
        ("checkpoints", "position"),
        ("checkpoints", "writes"),
        ("crons", "payload"),
        ("crons", "request"),
        ("definitions", "body"),
        ("deliveries", "body"),
        ("events", "body"),
        ("idempotency_keys", "body"),
        ("interrupts", "before"),
        ("interrupts", "interrupt"),
        ("items", "value"),
        ("remote_runs", "seen"),
        ("remote_runs", "used"),
        ("runs", "metadata"),
        ("runs", "path"),
        ("runs", "request"),
        ("threads", "config"),
        ("threads", "metadata"),
    ] {
        assert!(
            poisoned
                .iter()
                .any(|(table, column)| (table.as_str(), column.as_str()) == expected),
            "{expected:?}"
        );
    }
}

async fn no_column_without_json_blocks_other_requests(server: TestServer) {
    let poisoned = breaks_each_column(&server, Poison::NoJson).await;
    assert!(
        poisoned.iter().any(|(table, _)| table == "background_tasks"),
        "{poisoned:?}"
    );
    let of_sqlite = poisoned
        .iter()
        .any(|(table, column)| table == "threads" && column == "metadata");
    assert_eq!(
        of_sqlite,
        server.engine == Engine::Sqlite,
        "Postgres keeps its own columns of JSON whole"
    );
}
