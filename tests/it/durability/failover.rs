//! A Postgres that fails over to its standby, and one that is out of reach for longer than a lease.

use std::collections::BTreeMap;
use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::rented_postgres::{refusal, runs_command};
use crate::support::actors::{Human, Question};
use crate::support::client::{Client, reply};
use crate::support::postgres_proxy::PostgresProxy;
use crate::support::provider::Turn;
use crate::support::replicated_postgres::ReplicatedPostgres;
use crate::support::sse::{Frame, Sse, put_together};
use crate::support::{Engine, TestServer, call, eventually, lookup, play, script, task};

/// The number of clients that start one run after the other.
const CLIENTS: usize = 12;

/// The leases of the harness, and ones that are longer than the test.
const LEASES: [&str; 2] = ["lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 600.0\nheartbeat_s = 0.5"];

/// Sends a request under an idempotency key until it is accepted, and returns the response. Unavailable is the only excuse.
async fn insists(client: &Client, method: Method, path: &str, body: &Value, key: &str) -> Value {
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    loop {
        let request = client.request(method.clone(), path).header("Idempotency-Key", key);
        let reply = reply(request.json(body)).await;
        // A request under the same key may still be at work.
        if reply.status != 503 && reply.body["code"] != "idempotency_in_progress" {
            return reply.ok();
        }
        pause.tick().await;
    }
}

/// Reads something until it is there.
async fn reads(client: &Client, path: &str) -> Value {
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    loop {
        let reply = client.get(path).await;
        if reply.status != 503 {
            return reply.ok();
        }
        pause.tick().await;
    }
}

/// A client, the runs that the server has acknowledged to it, and the calls that they make.
struct Patron {
    client: Client,
    thread: String,
    acknowledged: Vec<String>,
}

impl Patron {
    fn of(client: Client) -> Self {
        Self {
            client,
            thread: uuid::Uuid::new_v4().to_string(),
            acknowledged: vec![],
        }
    }

    fn path(&self, rest: &str) -> String {
        format!("/threads/{}{rest}", self.thread)
    }

    /// Starts run after run, each of several steps, until the test is over.
    async fn works(mut self, mut rounds: watch::Receiver<Rounds>, done: watch::Sender<usize>) -> Self {
        let thread = json!({"thread_id": self.thread, "if_exists": "do_nothing"});
        insists(&self.client, Method::POST, "/threads", &thread, &self.path("")).await;
        while *rounds.borrow_and_update() == Rounds::GoOn {
            let mark = format!("{}_{}", self.thread, self.acknowledged.len());
            let body = json!({
                "assistant_id": "treasurer",
                "input": {"messages": [{"role": "user", "content": run_message(&mark)}]},
            });
            let run = insists(&self.client, Method::POST, &self.path("/runs"), &body, &mark).await;
            let id = run["run_id"].as_str().expect("an id").to_owned();
            reads(&self.client, &self.path(&format!("/runs/{id}/join"))).await;
            self.acknowledged.push(id);
            done.send_modify(|done| *done += 1);
        }
        self
    }

    /// Checks that exactly the acknowledged runs have ended, and that their messages are there once.
    async fn has_lost_nothing(&self) {
        let human = Human::at(self.client.clone(), "treasurer", &self.thread);
        let mut runs = human.runs().await;
        runs.reverse();
        let ids: Vec<&str> = runs.iter().filter_map(|run| run["run_id"].as_str()).collect();
        assert_eq!(ids, self.acknowledged, "{runs:#?}");
        assert!(runs.iter().all(|run| run["status"] == "success"), "{runs:#?}");
        let round = [
            "human: …",
            "ai calls record, task",
            "record: record: open",
            "task: noted",
            "ai calls record",
            "record: record: close",
            "ai: done",
        ];
        assert_eq!(human.transcript().await, round.repeat(self.acknowledged.len()));
    }

    /// Returns the keys of the calls of its runs.
    fn keys(&self) -> Vec<String> {
        let marks = (0..self.acknowledged.len()).map(|round| format!("{}_{round}", self.thread));
        marks
            .flat_map(|mark| ["open", "charge", "notify", "close"].map(|name| format!("{mark}_{name}")))
            .collect()
    }
}

/// The work of the clients: they start more runs, or stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rounds {
    GoOn,
    Stop,
}

/// Returns the message of a run with several steps, a subagent, and calls that must not be repeated.
fn run_message(mark: &str) -> String {
    let act = |name: &str, tool: &str| call(&format!("{mark}_{name}"), tool, json!({"note": name, "ms": 20}));
    let clerk = script()
        .calls_all([act("charge", "charge"), act("notify", "notify")])
        .says("noted");
    let work = script()
        .calls_all([act("open", "record"), task(&format!("{mark}_clerk"), "clerk", clerk)])
        .calls(act("close", "record"))
        .says("done");
    work.to_string()
}

/// Reads a run to its end. Whenever the stream breaks, it reads on behind the last event.
pub(super) async fn reads_on(human: Human, run: String, breaks: watch::Sender<usize>) -> Vec<Frame> {
    let mut frames: Vec<Frame> = vec![];
    let mut pause = tokio::time::interval(Duration::from_millis(50));
    loop {
        let last = frames.iter().rev().find_map(|frame| frame.id.clone());
        let last = last.unwrap_or_else(|| "-1".to_owned());
        let path = human.path(&format!("/runs/{run}/stream"));
        let request = human.client().request(Method::GET, &path).header("Last-Event-ID", last);
        let response = request.send().await.expect("the server runs");
        if response.status() == 503 {
            pause.tick().await;
            continue;
        }
        let mut stream = Sse::open(response).await;
        loop {
            match stream.try_next().await {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => return frames,
                Err(_) => break,
            }
        }
        breaks.send_modify(|breaks| *breaks += 1);
        pause.tick().await;
    }
}

/// Has both servers use the database at a URL, as processes with these leases.
async fn share_database(server: &TestServer, url: &str, leases: [&str; 2]) -> TestServer {
    let agents = include_str!("crash/agents.toml").replace("TOOLS", &server.tools.base);
    server.is_configured_with(&agents).await;
    server.configuration_changes(leases[0], leases[1]);
    server.configuration_changes(&server.database_url(), url);
    server.moves_into_a_process().await;
    server.starts_second_process().await
}

/// Waits until both servers say whether they are ready.
async fn are_ready(servers: [&TestServer; 2], status: u16) {
    for server in servers {
        eventually(async || server.client().get("/ready").await.status == status).await;
    }
}

/// Checks that the log has one line about the outage, and no line about each run, except with these words.
async fn has_logged_the_outage_once(server: &TestServer, about_runs: Option<&str>) {
    server.log().gets_one_of(&["the database is in reach again"]).await;
    let text = server.log().text();
    let count = |words: &str| text.lines().filter(|line| line.contains(words)).count();
    assert_eq!(count("the database is out of reach"), 1, "{text}");
    assert_eq!(count("the database is in reach again"), 1, "{text}");
    assert_eq!(count("panicked"), 0, "{text}");
    let is_complaint = |line: &&str| line.contains("\"WARN\"") || line.contains("\"ERROR\"");
    let complaints = text.lines().filter(is_complaint);
    let complaints: Vec<&str> = complaints
        .filter(|line| !line.contains("configuration warning"))
        .filter(|line| about_runs.is_none_or(|words| !line.contains(words)))
        .collect();
    // The line about the outage, and perhaps one about what was under way.
    assert!(complaints.len() <= 2, "{}", complaints.join("\n"));
}

/// Has clients work at both servers while the primary is killed and the standby is promoted, and checks that nothing is lost
/// and nothing happens twice. In between, the address of the database moves, if it does.
async fn nothing_is_lost(
    first: &TestServer,
    second: &TestServer,
    postgres: &mut ReplicatedPostgres,
    address_moves: impl FnOnce(&ReplicatedPostgres),
) {
    first.tools.hold("slow");
    let bob = first.human("plain").await;
    let long = script()
        .calls(lookup("l1", "x"))
        .calls(call("s1", "slow", json!({})))
        .calls(lookup("l2", "y"))
        .says("done");
    let body = bob.run_body(long, json!({"stream_mode": ["updates"], "stream_resumable": true}));
    let run = bob.starts(body).await;
    let breaks = watch::Sender::new(0);
    // At the other server, which reads the events from the database.
    let reader = Human::at(second.client(), "plain", &bob.thread);
    let reading = tokio::spawn(reads_on(reader, run.id.clone(), breaks.clone()));
    first.tools.called("slow", 1).await;
    let carol = first.human("treasurer").await;
    let asked = carol
        .asks(script().calls(call("p1", "pay", json!({"note": "rent"}))).says("paid"))
        .await;
    asked.finishes().await;
    let question: Question = carol.question().await;

    let rounds = watch::Sender::new(Rounds::GoOn);
    let done = watch::Sender::new(0);
    let mut patrons = JoinSet::new();
    for number in 0..CLIENTS {
        let server = if number % 2 == 0 { first } else { second };
        patrons.spawn(Patron::of(server.client()).works(rounds.subscribe(), done.clone()));
    }
    let mut finished = done.subscribe();
    finished.wait_for(|done| *done >= CLIENTS).await.expect("they work");
    postgres.primary_is_killed();
    address_moves(postgres);
    are_ready([first, second], 503).await;
    breaks
        .subscribe()
        .wait_for(|breaks| *breaks >= 1)
        .await
        .expect("the reader reads");
    postgres.standby_is_promoted();
    are_ready([first, second], 200).await;
    let before = *done.borrow();
    finished
        .wait_for(|done| *done >= before + CLIENTS)
        .await
        .expect("they work");
    rounds.send_replace(Rounds::Stop);

    let paid = carol.approves(&question).await;
    paid.finishes().await;
    assert_eq!(paid.status().await, "success");
    first.tools.let_go("slow");
    let heard = reading.await.expect("the reader does not panic");
    let replayed = run.is_joined(Some("-1")).await.rest().await;
    assert_eq!(put_together(&heard), put_together(&replayed));
    assert_eq!(run.status().await, "success");

    let mut keys = vec!["l1", "s1", "p1", "l2"]
        .into_iter()
        .map(str::to_owned)
        .collect::<Vec<_>>();
    while let Some(patron) = patrons.join_next().await {
        let patron = patron.expect("the client is answered");
        patron.has_lost_nothing().await;
        keys.extend(patron.keys());
    }
    let mut called: BTreeMap<String, usize> = BTreeMap::new();
    for call in first.tools.calls() {
        *called
            .entry(call["key"].as_str().unwrap_or_default().to_owned())
            .or_default() += 1;
    }
    let once: BTreeMap<String, usize> = keys.into_iter().map(|key| (key, 1)).collect();
    assert_eq!(called, once, "each call was made once");
    for server in [first, second] {
        has_logged_the_outage_once(server, None).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_when_the_database_fails_over_under_load() {
    // It outlives the server, which is asked about its work at the end.
    let Some(mut postgres) = ReplicatedPostgres::start().await else {
        return;
    };
    let door = PostgresProxy::before(&postgres.primary(), "nothing").expect("a Unix socket");
    play(Engine::Postgres, async |first: TestServer| {
        let second = share_database(&first, &door.url, LEASES).await;
        // The address leads to the standby before that takes writes.
        let moves = |postgres: &ReplicatedPostgres| door.leads_to(&postgres.standby());
        Box::pin(nothing_is_lost(&first, &second, &mut postgres, moves)).await;
        second.is_stopped().await;
    })
    .await;
    drop(door);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_know_both_hosts_follow_a_failover_without_a_proxy_and_lose_nothing() {
    let Some(mut postgres) = ReplicatedPostgres::start().await else {
        return;
    };
    let url = postgres.both("");
    play(Engine::Postgres, async |first: TestServer| {
        let second = share_database(&first, &url, LEASES).await;
        Box::pin(nothing_is_lost(&first, &second, &mut postgres, |_| {})).await;
        let text = first.log().text();
        assert!(
            text.contains("connections to the database lead to another host"),
            "{text}"
        );
        second.is_stopped().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_without_a_host_that_takes_writes_names_each_host_and_the_reason() {
    let Some(mut postgres) = ReplicatedPostgres::start().await else {
        return;
    };
    let url = postgres.both(":s3cret");
    // The standby, which is the first of the two, is passed over.
    let (is_done, said) = runs_command("migrate", &url);
    assert!(is_done && said.contains("the tables were created"), "{said}");
    let (_, said) = runs_command("doctor", &url);
    assert!(said.contains("can be written, and the tables are current"), "{said}");
    postgres.primary_is_killed();
    let (is_done, doctor_said) = runs_command("doctor", &url);
    assert!(!is_done, "{doctor_said}");
    let error = refusal(&url).await;
    for said in [error, doctor_said] {
        for part in [
            "/standby:5432: this Postgres is a standby",
            "/primary:5432: Connection refused",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert!(!said.contains("s3cret"), "{said}");
    }
    let standby = format!("{url}&target_session_attrs=standby");
    let error = refusal(&standby).await;
    assert!(error.contains("must not ask for a standby"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_turns_read_only_is_left_until_it_takes_writes_again() {
    let Some(postgres) = ReplicatedPostgres::start().await else {
        return;
    };
    let read_only = async |value: &str| {
        let sql = format!("alter system set default_transaction_read_only = {value}");
        postgres.primary_executes(&sql).await;
        postgres.primary_executes("select pg_reload_conf()").await;
    };
    let url = postgres.both("");
    play(Engine::Postgres, async |server: TestServer| {
        server.configuration_changes(&server.database_url(), &url);
        server.moves_into_a_process().await;
        let alice = server.human("plain").await;
        alice.says(script().says("hello")).await;
        // No connection breaks: the next write finds out.
        read_only("on").await;
        eventually(async || server.client().get("/ready").await.status == 503).await;
        server.log().gets_one_of(&["the database is out of reach"]).await;
        let text = server.log().text();
        for part in [
            "/primary:5432: the sessions of this Postgres are read-only",
            "this Postgres is a standby",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        read_only("off").await;
        eventually(async || server.client().get("/ready").await.status == 200).await;
        alice.says(script().says("hello again")).await;
        has_logged_the_outage_once(&server, None).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn runs_go_on_after_an_outage_that_was_longer_than_their_leases() {
    let Some(mut postgres) = ReplicatedPostgres::start().await else {
        return;
    };
    let door = PostgresProxy::before(&postgres.primary(), "nothing").expect("a Unix socket");
    play(Engine::Postgres, async |first: TestServer| {
        let second = share_database(&first, &door.url, [LEASES[0]; 2]).await;
        first.tools.hold("lookup");
        let mut runs = vec![];
        for number in 0..6 {
            let server = if number % 2 == 0 { &first } else { &second };
            let human = server.human("plain").await;
            let run = human
                .asks(script().calls(lookup(&format!("l{number}"), "x")).says("done"))
                .await;
            runs.push((human, run));
        }
        first.tools.called("lookup", 6).await;
        postgres.primary_is_killed();
        door.leads_to(&postgres.standby());
        // The servers cannot know whether others have taken their runs over.
        eventually(async || first.tools.hung_up("lookup") == 6).await;
        first.tools.let_go("lookup");
        postgres.standby_is_promoted();
        for (human, run) in &runs {
            eventually(async || first.client().get(&run.path).await.body["status"] == "success").await;
            assert_eq!(
                human.transcript().await,
                ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]
            );
        }
        let mut keys = first.tools.keys_of("lookup");
        keys.sort();
        assert_eq!(keys.len(), 12);
        keys.dedup();
        assert_eq!(keys, ["l0", "l1", "l2", "l3", "l4", "l5"]);
        // The server that is back first takes the runs of the other, whose leases are over.
        let taken = Some("another process has taken the run over");
        has_logged_the_outage_once(&first, taken).await;
        has_logged_the_outage_once(&second, taken).await;
        second.is_stopped().await;
    })
    .await;
    drop(door);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_database_is_silent_hangs_up_when_its_lease_is_over() {
    play(Engine::Postgres, async |first: TestServer| {
        let straight = first.database_url();
        let Some(door) = PostgresProxy::before(&straight, "nothing") else {
            return;
        };
        first.configuration_changes(&straight, &door.url);
        first.moves_into_a_process().await;
        first.tools.hold("lookup");
        let dictation = first.models.will_be_dictated();
        let alice = first.human("plain").await;
        alice.asks(script().calls(lookup("l1", "x")).says("done")).await;
        let bob = first.human("openai").await;
        bob.asks("hello").await;
        first.tools.called("lookup", 1).await;
        eventually(async || first.models.asked().len() == 1).await;
        first.models.will([Turn::Says("again")]);
        first.configuration_changes(&door.url, &straight);
        let second = first.starts_second_process().await;
        door.stops_forwarding();
        // Nobody tells it: its connections stay open.
        eventually(async || first.tools.hung_up("lookup") == 1).await;
        eventually(async || dictation.is_hung_up()).await;
        first.tools.called("lookup", 2).await;
        eventually(async || first.models.asked().len() == 2).await;
        first.tools.let_go("lookup");
        for human in [&alice, &bob] {
            let human = Human::at(second.client(), "plain", &human.thread);
            let run = human.run(&human.runs().await[0]);
            run.finishes().await;
            assert_eq!(run.status().await, "success");
        }
        assert_eq!(first.tools.calls_of("lookup").len(), 2);
        assert_eq!(first.models.asked().len(), 2);
        // It has to be told about its end by others: its database is silent.
        first.is_killed().await;
        second.is_stopped().await;
    })
    .await;
}
