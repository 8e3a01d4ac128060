//! `adjutant vacuum`: the files of the database have nothing of a thread, a user or a tenant that was deleted.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use reqwest::Method;
use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection, query_scalar, raw_sql};

use super::encryption::{converses, encrypts, everything_stored};
use crate::support::client::{Client, reply};
use crate::support::command::{command, refused, said};
use crate::support::webhook_receiver::WebhookReceiver;
use crate::support::{
    Engine, Human, TestServer, call, eventually, lookup, on_both_engines, on_postgres, postgres, script, task,
    without_postgres,
};

on_both_engines! {
    a_deleted_thread_is_in_no_file_after_a_vacuum,
    a_deleted_user_is_in_no_file_after_a_vacuum,
    a_deleted_tenant_is_in_no_file_after_a_vacuum,
    what_is_encrypted_is_in_no_file_at_any_time,
}

on_postgres! {
    runs_go_on_during_a_vacuum,
    a_transaction_that_can_read_deleted_rows_is_named,
    a_session_that_only_vacuums_is_not_waited_for,
    a_table_that_others_hold_is_named,
    a_vacuum_that_meets_a_deadlock_tries_again,
}

without_postgres! {
    a_database_that_does_not_exist_is_not_created_by_a_vacuum,
}

/// The kinds of texts that belong to a thread and are not encrypted.
const PLAIN_OF_THREAD: [&str; 3] = ["key", "metadata", "cron-metadata"];

/// The kinds of texts that belong to a thread and can be encrypted.
const SECRETS_OF_THREAD: [&str; 15] = [
    "message",
    "file",
    "subagent",
    "call",
    "answer",
    "run-metadata",
    "config",
    "context",
    "webhook",
    "decision",
    "image",
    "state",
    "cron",
    "error",
    "reason",
];

/// The kinds of texts that belong to a user and to no thread.
const OF_USER: [&str; 13] = [
    "namespace",
    "item-key",
    "other-key",
    "item",
    "assistant",
    "description",
    "assistant-metadata",
    "assistant-context",
    "version",
    "user-cron",
    "user-cron-metadata",
    "pending-webhook",
    "api-key",
];

fn of_thread() -> BTreeSet<String> {
    let kinds = PLAIN_OF_THREAD.iter().chain(&SECRETS_OF_THREAD);
    kinds.map(|kind| (*kind).to_owned()).collect()
}

fn of_user() -> BTreeSet<String> {
    let mut kinds = of_thread();
    kinds.extend(OF_USER.map(str::to_owned));
    kinds
}

/// Texts that nothing else on the database server has, one of each kind.
struct Texts {
    id: String,
}

impl Texts {
    fn new() -> Self {
        // Of parts, since sixteen hexadecimal digits are stored as a number.
        let digits = uuid::Uuid::new_v4().simple().to_string();
        let parts: Vec<&str> = (0..digits.len()).step_by(4).map(|at| &digits[at..at + 4]).collect();
        Self { id: parts.join("_") }
    }

    /// Returns the text of this kind.
    fn of(&self, kind: &str) -> String {
        format!("xyzzy-{kind}-{}", self.id)
    }

    /// Returns the kinds whose texts are in the files below a folder.
    fn in_folder(&self, folder: &Path) -> BTreeSet<String> {
        let mut grep = Command::new("grep");
        grep.env("LC_ALL", "C").arg("-rhoaE");
        // Files come and go meanwhile, of which it complains.
        let output = grep.arg(self.of("[a-z-]+")).arg(folder).output().expect("grep");
        let found = String::from_utf8(output.stdout).expect("text");
        let end = format!("-{}", self.id);
        let kinds = found
            .lines()
            .filter_map(|text| text.strip_prefix("xyzzy-")?.strip_suffix(&end));
        kinds.map(str::to_owned).collect()
    }

    /// Returns the kinds among these whose texts are stored: in the files of the database, or in its rows if its files cannot
    /// be read.
    async fn stored(&self, server: &TestServer, kinds: &BTreeSet<String>) -> BTreeSet<String> {
        if let Some(folders) = server.postgres_folders().await {
            return self.in_folder(&folders.database);
        }
        let all = everything_stored(server).await;
        // A row shows bytes as hexadecimal digits.
        let is_there = |text: String| all.contains(&text) || all.contains(&hex::encode(text));
        kinds.iter().filter(|kind| is_there(self.of(kind))).cloned().collect()
    }
}

/// Stores values as they are, and long ones with their rows: a text would not be found in a compressed value, nor between two
/// parts of one. Each change is a transaction, since the server works meanwhile and locks several tables at once.
async fn compresses_nothing(server: &TestServer) {
    const SQL: &str = "do $$ declare found record; begin \
        for found in select a.attrelid::regclass as name, a.attname as part from pg_attribute a \
            join pg_class c on c.oid = a.attrelid where c.relkind = 'r' and c.relnamespace = 'public'::regnamespace \
            and a.attnum > 0 and a.attstorage = 'x' loop \
        execute format('alter table %s alter column %I set storage external, set (toast_tuple_target = 8160)', \
            found.name, found.part); \
        commit; end loop; end $$";
    if server.engine == Engine::Postgres {
        server.executes_sql(SQL).await;
    }
}

/// Fills a new thread with a text of each kind that belongs to a thread.
async fn fills_a_thread(server: &TestServer, client: Client, texts: &Texts) -> Human {
    let receiver = WebhookReceiver::start().await;
    let created = client
        .request(Method::POST, "/threads")
        .header("Idempotency-Key", texts.of("key"))
        .json(&json!({"metadata": {"note": texts.of("metadata")}}));
    let created = reply(created).await.ok();
    let human = Human::at(client, "agent", created["thread_id"].as_str().expect("an id"));

    let write = json!({"file_path": "/note.txt", "content": texts.of("file")});
    let work = script().says(&texts.of("subagent"));
    let calls = [call("w1", "write_file", write), task("t1", "researcher", work)];
    let send = json!({"to": "ann@example.org", "body": texts.of("call")});
    let asks = script()
        .calls_all(calls)
        .calls(call("m1", "send_email", send))
        .says(&texts.of("answer"));
    let messages = json!([
        {"role": "user", "content": texts.of("message")},
        {"role": "user", "content": asks.to_string()},
    ]);
    let body = json!({
        "input": {"messages": messages},
        "metadata": {"note": texts.of("run-metadata")},
        "config": {"tags": [texts.of("config")]},
        "context": {"note": texts.of("context")},
        "webhook": format!("{}/{}", receiver.base, texts.of("webhook")),
    });
    human.starts(body).await.finishes().await;
    // The decision is remembered, too.
    let decision = json!([{"type": "reject", "message": texts.of("decision"), "scope": "thread"}]);
    let question = human.question().await;
    human.decides(&question, decision).await.finishes().await;

    let image = STANDARD.encode(texts.of("image").repeat(1000));
    let content = json!([
        {"type": "text", "text": script().says("seen").to_string()},
        {"type": "image", "base64": image, "mime_type": "image/png"},
    ]);
    let input = json!({"input": {"messages": [{"role": "user", "content": content}]}});
    human.starts(input).await.finishes().await;
    let update = json!({"values": {"topic": texts.of("state")}});
    human.client().post(&human.path("/state"), update).await.ok();
    let cron = cron(&texts.of("cron"), &texts.of("cron-metadata"));
    human.client().post(&human.path("/runs/crons"), cron).await.ok();
    fails(&human, texts).await;

    receiver.receives(1).await;
    let id = server.id_in_sql(&human.thread);
    let under_way = format!("select count(*) from deliveries where thread_id = {id} and finished_at is null");
    eventually(async || server.number_in_database(&under_way).await == 0).await;
    human
}

/// Lets a run fail, with a text in its error.
async fn fails(human: &Human, texts: &Texts) {
    let plain = Human::at(human.client().clone(), "plain", &human.thread);
    let why = json!({"why": texts.of("error")});
    let run = plain
        .asks(script().calls(call("f1", "fail_hard", why)).says(&texts.of("reason")))
        .await;
    eventually(async || run.status().await == "error").await;
}

/// Returns the body of a cron that is never due in a test.
fn cron(text: &str, metadata: &str) -> Value {
    json!({
        "assistant_id": "agent",
        "schedule": "0 0 1 1 *",
        "input": {"messages": [{"role": "user", "content": text}]},
        "metadata": {"note": metadata},
    })
}

/// Stores a text of each kind that belongs to a user and to no thread, but for the API key.
async fn fills_an_account(client: &Client, texts: &Texts) {
    for key in ["item-key", "other-key"] {
        let item = json!({
            "namespace": ["notes", texts.of("namespace")],
            "key": texts.of(key),
            "value": {"note": texts.of("item")},
        });
        client.put("/store/items", item).await.ok();
    }
    let assistant = json!({
        "graph_id": "agent",
        "name": texts.of("assistant"),
        "description": texts.of("description"),
        "metadata": {"note": texts.of("assistant-metadata")},
        "context": {"note": texts.of("assistant-context")},
    });
    let assistant = client.post("/assistants", assistant).await.ok();
    let path = format!("/assistants/{}", assistant["assistant_id"].as_str().expect("an id"));
    client.patch(&path, json!({"name": texts.of("version")})).await.ok();
    let cron = cron(&texts.of("user-cron"), &texts.of("user-cron-metadata"));
    client.post("/runs/crons", cron).await.ok();
    // No server listens there.
    let webhook = format!("http://127.0.0.1:9/{}", texts.of("pending-webhook"));
    let input = json!({"messages": [{"role": "user", "content": "hi"}]});
    let body = json!({"assistant_id": "agent", "input": input, "webhook": webhook});
    client.post("/runs/wait", body).await.ok();
}

/// Gives the user `ann` an API key whose name is a text, fills her account and a thread of hers, and returns the thread.
async fn fills_everything_of_ann(server: &TestServer, root: &Client, ann: Client, texts: &Texts) -> Human {
    let key = json!({"name": texts.of("api-key"), "user": "ann", "roles": ["user"]});
    root.post("/auth/keys", key).await.ok();
    fills_an_account(&ann, texts).await;
    fills_a_thread(server, ann, texts).await
}

/// Checks that the text of each kind is stored. On Postgres the planner has samples of them, too.
async fn are_stored(server: &TestServer, texts: &Texts, kinds: &BTreeSet<String>) {
    if server.engine == Engine::Postgres {
        server.executes_sql("analyze").await;
    }
    assert_eq!(&texts.stored(server, kinds).await, kinds);
    if let Some(admin) = server.admin_url() {
        const SAMPLES: &str = "select count(*) from pg_stats where schemaname = 'public' \
            and position($1 in concat(most_common_vals::text, histogram_bounds::text)) > 0";
        let mut conn = PgConnection::connect(&admin).await.expect("a superuser");
        let sampled: i64 = query_scalar(SAMPLES)
            .bind(&texts.id)
            .fetch_one(&mut conn)
            .await
            .expect("the statistics");
        assert!(sampled > 0, "the planner has no samples of the texts");
        conn.close().await.expect("a clean close");
    }
}

/// Checks that none of these kinds is stored any more after a vacuum, and that a Postgres that shows its files has some until
/// then.
async fn are_gone_after_a_vacuum(server: &TestServer, texts: &Texts, kinds: &BTreeSet<String>) {
    server.is_stopped().await;
    if server.postgres_folders().await.is_some() {
        let left = texts.stored(server, kinds).await;
        assert!(!left.is_empty(), "Postgres leaves deleted rows in its files");
    }
    let printed = said(&command(server, &["vacuum"]));
    assert!(printed.contains(" tables were rewritten: "), "{printed}");
    assert!(printed.contains("\nNot reached: "), "{printed}");
    assert_eq!(texts.stored(server, kinds).await, BTreeSet::new());
    server.is_stopped_and_started_again().await;
}

async fn a_deleted_thread_is_in_no_file_after_a_vacuum(server: TestServer) {
    compresses_nothing(&server).await;
    let texts = Texts::new();
    let human = fills_a_thread(&server, server.client(), &texts).await;
    are_stored(&server, &texts, &of_thread()).await;
    human.client().delete(&human.path("")).await.ok();
    are_gone_after_a_vacuum(&server, &texts, &of_thread()).await;
    let human = server.human("agent").await;
    human.says(script().says("hello")).await;
}

async fn a_deleted_user_is_in_no_file_after_a_vacuum(server: TestServer) {
    let keys = server.is_protected().await;
    compresses_nothing(&server).await;
    let root = keys.client("root");
    let texts = Texts::new();
    fills_everything_of_ann(&server, &root, keys.client("ann"), &texts).await;
    let bob = converses(keys.client("bob"), "said-by-bob").await;
    are_stored(&server, &texts, &of_user()).await;
    root.delete("/users/ann?audit=true").await.ok();
    are_gone_after_a_vacuum(&server, &texts, &of_user()).await;
    assert!(bob.state().await.to_string().contains("said-by-bob"));
}

async fn a_deleted_tenant_is_in_no_file_after_a_vacuum(server: TestServer) {
    let keys = server.is_protected().await;
    compresses_nothing(&server).await;
    let texts = Texts::new();
    let human = fills_everything_of_ann(&server, &keys.client("root"), keys.client("ann"), &texts).await;
    let other = Human::on_new_thread(keys.client("root-of-other"), "agent").await;
    other.says(script().says("said-by-others")).await;
    are_stored(&server, &texts, &of_user()).await;
    server.is_stopped().await;
    said(&command(&server, &["delete-tenant", "acme", "--audit"]));
    are_gone_after_a_vacuum(&server, &texts, &of_user()).await;
    assert_eq!(keys.client("root").get(&human.path("")).await.status, 404);
    assert!(other.state().await.to_string().contains("said-by-others"));
}

/// Returns the kinds of a thread whose texts are in any file of the database: on Postgres in all files of its server, among
/// them the write-ahead log.
async fn in_any_file(server: &TestServer, texts: &Texts) -> BTreeSet<String> {
    match server.postgres_folders().await {
        Some(folders) => texts.in_folder(&folders.server),
        None => texts.stored(server, &of_thread()).await,
    }
}

async fn what_is_encrypted_is_in_no_file_at_any_time(server: TestServer) {
    encrypts(&server).await;
    compresses_nothing(&server).await;
    let texts = Texts::new();
    let human = fills_a_thread(&server, server.client(), &texts).await;
    let plain = BTreeSet::from(PLAIN_OF_THREAD.map(str::to_owned));
    assert_eq!(in_any_file(&server, &texts).await, plain, "what is plain is found");
    human.client().delete(&human.path("")).await.ok();
    server.is_stopped().await;
    said(&command(&server, &["vacuum"]));
    let left = in_any_file(&server, &texts).await;
    assert!(left.is_subset(&plain), "{left:?}");
}

async fn runs_go_on_during_a_vacuum(server: TestServer) {
    let texts = Texts::new();
    let gone = server.human("agent").await;
    gone.says(script().says(&texts.of("answer"))).await;
    gone.client().delete(&gone.path("")).await.ok();
    server.tools.hold("lookup");
    let human = server.human("agent").await;
    let run = human
        .asks(script().calls(lookup("l1", "x")).calls(lookup("l2", "y")).says("done"))
        .await;
    server.tools.called("lookup", 1).await;
    said(&command(&server, &["vacuum"]));
    server.tools.let_go("lookup");
    run.finishes().await;
    assert_eq!(run.status().await, "success");
    assert_eq!(texts.stored(&server, &of_thread()).await, BTreeSet::new());
}

/// Restarts the server, whose statements and commands then wait a second for a table.
async fn is_impatient(server: &TestServer) {
    server
        .is_reconfigured("[storage]\n", "[storage]\nstatement_timeout_s = 1\n")
        .await;
}

async fn a_transaction_that_can_read_deleted_rows_is_named(server: TestServer) {
    is_impatient(&server).await;
    let texts = Texts::new();
    let human = server.human("agent").await;
    human.says(script().says(&texts.of("answer"))).await;
    let mut reader = postgres::connect(&server.database_url()).await;
    raw_sql("begin isolation level repeatable read; select count(*) from threads")
        .execute(&mut reader)
        .await
        .expect("a snapshot");
    let session: i32 = query_scalar("select pg_backend_pid()")
        .fetch_one(&mut reader)
        .await
        .expect("its number");
    human.client().delete(&human.path("")).await.ok();
    let reason = refused(&command(&server, &["vacuum"]));
    assert!(reason.contains("what was deleted may still be read by: "), "{reason}");
    assert!(reason.contains(&format!("session {session} (")), "{reason}");
    reader.close().await.expect("a clean close");
    // Transactions in other databases of the server can be in the way for a moment, too.
    eventually(async || command(&server, &["vacuum"]).status.success()).await;
    assert_eq!(texts.stored(&server, &of_thread()).await, BTreeSet::new());
}

async fn a_session_that_only_vacuums_is_not_waited_for(server: TestServer) {
    const FILL: &str =
        "create table slow_to_vacuum as select repeat('x', 1500) as filler from generate_series(1, 5000)";
    // The vacuum of the table takes minutes.
    const SLOW: &str = "set vacuum_cost_delay = '100ms'; set vacuum_cost_limit = 1";
    let texts = Texts::new();
    let human = server.human("agent").await;
    human.says(script().says(&texts.of("answer"))).await;
    server.executes_sql(FILL).await;
    let mut other = postgres::connect(&server.database_url()).await;
    let session: i32 = query_scalar("select pg_backend_pid()")
        .fetch_one(&mut other)
        .await
        .expect("its number");
    raw_sql(SLOW).execute(&mut other).await.expect("the settings");
    let vacuuming = tokio::spawn(async move { raw_sql("vacuum slow_to_vacuum").execute(&mut other).await.is_ok() });
    let under_way = format!("select count(*) from pg_stat_progress_vacuum where pid = {session}");
    eventually(async || server.number_in_database(&under_way).await == 1).await;
    human.client().delete(&human.path("")).await.ok();
    said(&command(&server, &["vacuum"]));
    assert_eq!(texts.stored(&server, &of_thread()).await, BTreeSet::new());
    assert_eq!(server.number_in_database(&under_way).await, 1);
    server
        .executes_sql(&format!("select pg_terminate_backend({session})"))
        .await;
    assert!(!vacuuming.await.expect("the end of the other session"));
}

async fn a_table_that_others_hold_is_named(server: TestServer) {
    const OTHERS: &str = "select count(*) - 1 from pg_class where relkind = 'r' \
        and relnamespace = 'public'::regnamespace and left(relname, 1) <> '_'";
    is_impatient(&server).await;
    let others = format!(": {} tables were rewritten", server.number_in_database(OTHERS).await);
    let mut reader = postgres::connect(&server.database_url()).await;
    raw_sql("begin; lock table items in access share mode")
        .execute(&mut reader)
        .await
        .expect("the lock");
    eventually(async || {
        let output = command(&server, &["vacuum"]);
        let printed = String::from_utf8_lossy(&output.stdout).into_owned();
        printed.contains(&others) && refused(&output).contains("public.items: others held it")
    })
    .await;
    reader.close().await.expect("a clean close");
    eventually(async || command(&server, &["vacuum"]).status.success()).await;
}

async fn a_vacuum_that_meets_a_deadlock_tries_again(server: TestServer) {
    // A session that waits looks for a deadlock once, after this time.
    const LOOKS_LATE: &str = "do $$ begin \
        execute format('alter database %I set deadlock_timeout = ''4s''', current_database()); end $$";
    const NEVER_LOOKS: &str = "set deadlock_timeout = '1h'; begin; lock table pg_statistic in share mode";
    const HELD: &str = "select distinct c.relname::text as name from pg_locks l join pg_stat_activity a using (pid) \
        join pg_class c on c.oid = l.relation where a.application_name = 'adjutant vacuum' \
        and a.datname = current_database() and c.relkind = 'r' and c.relnamespace = 'public'::regnamespace and l.granted \
        and exists (select from pg_locks w where w.pid = l.pid and w.relation = 'pg_statistic'::regclass and not w.granted)";
    const DEADLOCKS: &str = "select deadlocks from pg_stat_database where datname = current_database()";
    let Some(admin) = server.admin_url() else { return };
    // The server has started before: it would wait for the vacuum.
    server.client().get("/ok").await.ok();
    let mut other = PgConnection::connect(&admin).await.expect("a superuser");
    raw_sql(LOOKS_LATE).execute(&mut other).await.expect("the setting");
    raw_sql(NEVER_LOOKS).execute(&mut other).await.expect("the lock");
    let vacuumed = server.clone();
    let vacuum = tokio::task::spawn_blocking(move || command(&vacuumed, &["vacuum"]));
    let waits = format!("select count(*) from ({HELD}) held");
    eventually(async || server.number_in_database(&waits).await == 1).await;
    let held: String = query_scalar(HELD).fetch_one(&mut other).await.expect("a table");
    let meets = format!("lock table public.{held} in share update exclusive mode; rollback");
    raw_sql(AssertSqlSafe(meets))
        .execute(&mut other)
        .await
        .expect("the vacuum gives way");
    said(&vacuum.await.expect("its output"));
    eventually(async || server.number_in_database(DEADLOCKS).await > 0).await;
    other.close().await.expect("a clean close");
}

async fn a_database_that_does_not_exist_is_not_created_by_a_vacuum(server: TestServer) {
    server.is_stopped().await;
    let file = server.path_of("nothing.db");
    let url = format!("sqlite://{}", file.display());
    let reason = refused(&command(&server, &["vacuum", "--database-url", &url]));
    assert!(reason.contains("there is no database"), "{reason}");
    assert!(!file.exists());
    let reason = refused(&command(&server, &["vacuum", "--database-url", "sqlite::memory:"]));
    assert!(reason.contains("a database in memory has no files"), "{reason}");
}
