//! The cost of access control for requests: the entry of the audit, in the transaction of the change, and nothing else.

use serde_json::{Value, json};

use crate::support::client::{Client, reply};
use crate::support::{Engine, Human, Keys, TestServer, lookup, mail, on_both_engines, on_postgres, script, task};

on_both_engines! {
    a_request_with_a_key_adds_one_statement_and_no_transaction,
}

on_postgres! {
    a_change_and_its_entry_are_one_transaction,
}

/// The tables of statements that only access control and quotas make.
const TABLES: [&str; 4] = ["api_keys", "auth_tickets", "daily_usage", "thread_bytes"];

/// The statements that a request has made.
struct Statements {
    all: Vec<String>,
    /// The lines of the log, each with the statements that were sent together.
    lines: Vec<String>,
}

impl Statements {
    /// Returns the number of stored entries of the audit.
    fn entries(&self) -> usize {
        self.count(|text| text.starts_with("insert into audit"))
    }

    /// Returns how often the ownership of a resource was read to decide about a request.
    fn decisions(&self) -> usize {
        self.count(|line| line.contains("select tenant, owner,") && line.contains(" as metadata"))
    }

    /// Returns the number of further statements of access control, besides the deletion of what is old.
    fn others(&self) -> usize {
        self.count(|line| TABLES.iter().any(|table| line.contains(table)) && !line.contains("delete from"))
    }

    /// Returns the number of transactions of SQLite that have stored nothing but entries of the audit.
    fn transactions_of_entries(&self) -> usize {
        let mut changes: Vec<&str> = vec![];
        let mut found = 0;
        for text in &self.all {
            if text.starts_with("begin immediate") {
                changes.clear();
            } else if ["insert", "update", "delete"].iter().any(|word| text.starts_with(word)) {
                changes.push(text);
            } else if text == "commit" {
                let is_of_entries = !changes.is_empty() && changes.iter().all(|text| text.contains("into audit"));
                found += usize::from(is_of_entries);
            }
        }
        found
    }

    fn count(&self, is_meant: impl Fn(&str) -> bool) -> usize {
        self.all.iter().filter(|text| is_meant(text)).count()
    }
}

/// Returns the statements in a line of the log. A short one is in its summary only.
fn statements_in(line: &str) -> Vec<String> {
    let line: Value = serde_json::from_str(line).expect("a line of JSON");
    let field = |name: &str| line["fields"][name].as_str().filter(|text| !text.is_empty());
    let text = field("db.statement").or_else(|| field("summary")).expect("a statement");
    text.split("; ").map(|text| text.trim().to_owned()).collect()
}

/// Waits for the lines of all requests that have been answered. Lines are logged in their order, so they are there when
/// the line of a later request is.
async fn logs_all_lines(server: &TestServer, root: &Client) {
    root.get("/audit?limit=1").await.ok();
    server.log().gets_one_of(&["detail, created_at from audit"]).await;
}

/// Returns the statements that a server makes for this work.
async fn statements_of(server: &TestServer, root: &Client, work: impl Future) -> Statements {
    // Lines of earlier requests may still be on their way.
    server.log().clear();
    logs_all_lines(server, root).await;
    server.log().clear();
    work.await;
    logs_all_lines(server, root).await;
    let text = server.log().text();
    let lines = text.lines().filter(|line| line.contains("sqlx::query"));
    let lines: Vec<String> = lines.map(str::to_owned).collect();
    Statements {
        all: lines.iter().flat_map(|line| statements_in(line)).collect(),
        lines,
    }
}

/// A server that logs its statements, with the keys of its callers.
async fn logs_statements(server: &TestServer) -> Keys {
    let keys = server.is_protected().await;
    server.moves_into_a_process_that_logs("info,sqlx::query=debug").await;
    keys
}

async fn a_request_with_a_key_adds_one_statement_and_no_transaction(server: TestServer) {
    let keys = logs_statements(&server).await;
    let root = keys.client("root");
    let ann = keys.client("ann");
    let assert_cost = |name: &str, entries: usize, decisions: usize, statements: Statements| {
        let all = &statements.lines;
        assert!(!all.is_empty(), "{name}: the statements are not in the log");
        assert_eq!(statements.entries(), entries, "{name}: {all:#?}");
        assert_eq!(statements.decisions(), decisions, "{name}: {all:#?}");
        assert_eq!(statements.others(), 0, "{name}: {all:#?}");
        if server.engine == Engine::Sqlite {
            assert_eq!(statements.transactions_of_entries(), 0, "{name}: {all:#?}");
        }
    };

    let creates = ann.post("/threads", json!({}));
    let statements = statements_of(&server, &root, creates).await;
    assert_cost("a thread", 1, 0, statements);

    let human = Human::on_new_thread(ann.clone(), "agent").await;
    let statements = statements_of(&server, &root, human.record()).await;
    assert_cost("a read of a thread", 0, 1, statements);

    let statements = statements_of(&server, &root, human.says(script().says("hi"))).await;
    assert_cost("a run of one model call", 1, 0, statements);

    let calls = (0..10).fold(script(), |script, number| {
        script.calls(lookup(&format!("l{number}"), "rust"))
    });
    let statements = statements_of(&server, &root, human.says(calls.says("done"))).await;
    assert_cost("ten tool calls", 1, 0, statements);

    let work = script().calls(lookup("l", "rust")).says("found");
    let tasks = (0..4).map(|number| task(&format!("t{number}"), "researcher", &work));
    let delegation = script().calls_all(tasks).says("done");
    let statements = statements_of(&server, &root, human.says(delegation)).await;
    assert_cost("four subagents", 1, 0, statements);

    let streams = async { human.streams(script().says("hi"), json!({})).await.rest().await };
    let statements = statements_of(&server, &root, streams).await;
    assert_cost("a stream", 1, 0, statements);

    human.says(script().calls(mail("m", "bob")).says("sent")).await;
    let question = human.question().await;
    // The decision has an entry of its own.
    let approves = async { human.approves(&question).await };
    let statements = statements_of(&server, &root, approves).await;
    assert_cost("an approval", 2, 0, statements);
    human.run(&human.runs().await[0]).finishes().await;
}

/// Sends a request with an idempotency key of its own, which is stored in the transaction of the change.
async fn posts_once(client: &Client, path: &str, body: Value) -> Value {
    let key = uuid::Uuid::new_v4().to_string();
    let request = client.request(reqwest::Method::POST, path);
    reply(request.header("Idempotency-Key", key).json(&body)).await.ok()
}

async fn a_change_and_its_entry_are_one_transaction(server: TestServer) {
    let keys = server.is_protected().await;
    let ann = keys.client("ann");
    let thread = posts_once(&ann, "/threads", json!({})).await;
    let thread = thread["thread_id"].as_str().expect("an id");
    let human = Human::at(ann.clone(), "agent", thread);
    let runs = human.path("/runs");
    let run = posts_once(&ann, &runs, human.run_body(script().says("hi"), json!({}))).await;
    human.run(&run).finishes().await;
    posts_once(&ann, "/runs", human.run_body(script().says("hi"), json!({}))).await;
    posts_once(&ann, "/assistants", json!({"graph_id": "agent"})).await;
    let item = json!({"namespace": ["a"], "key": "k", "value": {"n": 1}});
    ann.put("/store/items", item).await.ok();
    assert_eq!(
        server
            .number_in_database("select count(*) from audit where user_id = 'ann'")
            .await,
        5
    );
    // Postgres marks each row with the transaction that has written it.
    let apart = "select count(*) from audit where user_id = 'ann' \
        and not exists (select 1 from idempotency_keys k where k.xmin = audit.xmin) \
        and not exists (select 1 from items i where i.xmin = audit.xmin)";
    assert_eq!(server.number_in_database(apart).await, 0);
    human.says(script().calls(mail("m", "bob")).says("sent")).await;
    let question = human.question().await;
    human.approves(&question).await.finishes().await;
    let decision = "select count(*) from audit gate join audit decision on gate.xmin = decision.xmin \
        where gate.action = 'threads:create_run' and decision.action = 'interrupts:resolve'";
    assert_eq!(server.number_in_database(decision).await, 1);
}
