//! A thread that goes on for thousands of turns, with tools, files, compactions and kills; and the bytes of a run.
//!
//! `ADJUTANT_SOAK_TURNS` sets the number of turns; with 2000 there is a kill every 100 turns.

use serde_json::{Value, json};

use super::random::{Random, number};
use crate::support::actors::Human;
use crate::support::script::Script;
use crate::support::{Engine, TestServer, call, eventually, lookup, on_both_engines, on_postgres, script};

/// The number of turns unless the environment sets another one.
const TURNS: u64 = 300;
/// The number of times that the server is killed.
const KILLS: u64 = 20;
/// The parts of the thread whose growth is compared.
const PARTS: u64 = 5;

/// The number of turns from which the memory is compared without an allowance.
const LONG: u64 = 2_000;
/// The memory by which two processes with the same work differ, in KiB: a part of a short thread has few processes.
const MEMORY_NOISE_KB: i64 = 3 * 1024;

/// The agent. Its window is small, so that it summarises all the time.
const AGENT: &str = r#"
[providers.small]
kind = "scripted"
max_input_tokens = 6000

[agents.worker]
model = "small:lab"
system_prompt = "You work."
tools = ["lookup"]
general_purpose_subagent = { enabled = false }
middleware = [{ name = "ContextEditingMiddleware" }]

[agents.worker.summarization]
summary_prompt = '{"script": [{"text": "SUMMARY"}]}'
"#;

/// The space and memory of the server after a part of the thread.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// The size of the database, in bytes.
    stored: i64,
    /// The memory of the process, in KiB.
    memory: i64,
}

/// One turn: a call of a tool behind HTTP, a change of a file, and an answer.
fn turn(number: u64) -> String {
    let text = format!("turn {number}: {}", "so it goes ".repeat(20));
    let edit = json!({"file_path": "/progress.md", "content": text});
    script()
        .calls(lookup(&format!("l{number}"), &format!("question {number}")))
        .calls(call(&format!("w{number}"), "write_file", edit))
        .says(&format!("done {number}"))
        .to_string()
}

/// The statement that reads the size of a SQLite database.
const SQLITE_SIZE: &str = "select (page_count - freelist_count) * page_size \
    from pragma_page_count(), pragma_freelist_count(), pragma_page_size()";

impl TestServer {
    async fn usage(&self) -> Usage {
        let sql = match self.engine {
            Engine::Sqlite => SQLITE_SIZE,
            Engine::Postgres => "select pg_database_size(current_database())",
        };
        Usage {
            stored: self.number_in_database(sql).await,
            memory: i64::try_from(self.own_memory().await).expect("a size"),
        }
    }
}

/// Says one turn, and has the server killed at some instant of it.
async fn is_killed_during(server: &TestServer, alice: &Human, number: u64, random: &mut Random) {
    let pieces = random.below(12);
    let more = json!({"stream_mode": ["updates"], "stream_resumable": true});
    let mut stream = alice.streams(turn(number), more).await;
    let run = alice.run_of_id(&stream.run_id());
    for _ in 0..pieces {
        if stream.next().await.is_none() {
            break;
        }
    }
    server.is_killed_and_started_again().await;
    // Not by a request that returns the whole state.
    eventually(async || !["pending", "running"].contains(&run.status().await.as_str())).await;
    assert_eq!(run.status().await, "success", "turn {number}");
}

on_both_engines! {
    a_thread_of_any_length_costs_the_same_per_turn_and_loses_nothing,
    a_run_of_one_step_takes_few_bytes,
}

on_postgres! {
    a_run_and_its_steps_add_the_rows_that_the_documents_name,
}

/// An agent without anything but a model.
const PLAIN_AGENT: &str = r#"
[agents.terse]
model = "scripted:lab"
system_prompt = "You answer."
general_purpose_subagent = { enabled = false }
"#;

/// The turns between which the bytes of a run of one step are measured.
const MEASURED: [u64; 2] = [20, 140];

/// Counts the bytes of the whole database on SQLite, and on Postgres those of the rows, since its files also have rows
/// that are to be vacuumed. A message of a human takes about 110 bytes here and an answer 90.
async fn a_run_of_one_step_takes_few_bytes(server: TestServer) {
    const ROWS: &str = "select cast((select sum(pg_column_size(r.*)) from runs r) \
        + (select sum(pg_column_size(c.*)) from checkpoints c) \
        + (select coalesce(sum(pg_column_size(e.*)), 0) from events e) as bigint)";
    let sql = match server.engine {
        Engine::Sqlite => SQLITE_SIZE,
        Engine::Postgres => ROWS,
    };
    let most = match server.engine {
        Engine::Sqlite => 1_350,
        Engine::Postgres => 1_500,
    };
    server.is_configured_with(PLAIN_AGENT).await;
    let alice = server.human("terse").await;
    let mut sizes = vec![];
    for number in 1..=MEASURED[1] {
        let text = format!("answer number {number}, of a length that one sentence of an assistant has, more or less.");
        alice.says(script().says(&text)).await;
        if MEASURED.contains(&number) {
            sizes.push(server.number_in_database(sql).await);
        }
    }
    let runs = i64::try_from(MEASURED[1] - MEASURED[0]).expect("a number");
    let each = (sizes[1] - sizes[0]) / runs;
    println!("{each} bytes for a run of one step");
    assert!(each <= most, "{each} bytes for a run of one step");
}

/// Compares the rows with those of "How far one database goes" in `docs/scaling.md`.
async fn a_run_and_its_steps_add_the_rows_that_the_documents_name(server: TestServer) {
    const ROWS: &str = "select (select count(*) from threads) + (select count(*) from thread_terms) \
        + (select count(*) from runs) + (select count(*) from checkpoints) + (select count(*) from events)";
    server.human("plain").await.says("hello").await;
    let added = async |steps: usize| {
        let before = server.number_in_database(ROWS).await;
        let calls = (0..steps).map(|step| lookup(&format!("l{step}"), "x"));
        let text = calls.fold(script(), Script::calls).says("done");
        server.human("plain").await.says(text).await;
        server.number_in_database(ROWS).await - before
    };
    assert_eq!(added(0).await, 7, "a run with its thread");
    assert_eq!(added(10).await, 7 + 10 * 2, "a run with ten steps");
}

async fn a_thread_of_any_length_costs_the_same_per_turn_and_loses_nothing(server: TestServer) {
    let turns = number("ADJUTANT_SOAK_TURNS").unwrap_or(TURNS);
    server.is_configured_with(AGENT).await;
    // On a shared database a dead process keeps its runs for the time of a lease.
    server
        .is_reconfigured("lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 1.0\nheartbeat_s = 0.2")
        .await;
    server.moves_into_a_process().await;
    let alice = server.human("worker").await;
    let mut random = Random::seeded();
    let mut usages = vec![server.usage().await];
    let mut usages_of_part = Vec::new();
    for number in 1..=turns {
        if number % (turns / KILLS) == 0 {
            // Before the kill, when the process has served a whole stretch of turns.
            usages_of_part.push(server.usage().await);
            if number % (turns / PARTS) == 0 {
                usages.push(usage_of_part(&usages_of_part));
                usages_of_part.clear();
            }
            is_killed_during(&server, &alice, number, &mut random).await;
        } else {
            let stream = alice.streams(turn(number), json!({"stream_mode": ["updates"]})).await;
            stream.rest().await;
        }
    }
    nothing_is_lost_or_done_twice(&server, &alice, turns).await;
    growth_is_flat(&usages, turns);
}

/// Returns the usage of a part of the thread: the database after the part, and the memory of the process that took the least. Two
/// processes with the same work differ by what their allocators keep, so that one process says little.
fn usage_of_part(usages: &[Usage]) -> Usage {
    Usage {
        stored: usages.iter().map(|usage| usage.stored).max().expect("a usage"),
        memory: usages.iter().map(|usage| usage.memory).min().expect("a usage"),
    }
}

async fn nothing_is_lost_or_done_twice(server: &TestServer, alice: &Human, turns: u64) {
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().expect("a list");
    let texts = |kind: &str| -> Vec<String> {
        let of_kind = messages.iter().filter(|message| message["type"] == kind);
        of_kind
            .filter_map(|message| message["content"].as_str().map(str::to_owned))
            .collect()
    };
    let said: Vec<String> = texts("ai")
        .into_iter()
        .filter(|text| text.starts_with("done"))
        .collect();
    let expected: Vec<String> = (1..=turns).map(|number| format!("done {number}")).collect();
    assert_eq!(said, expected);
    let results = texts("tool").len();
    assert_eq!(
        results,
        usize::try_from(2 * turns).expect("a length"),
        "a lookup and a file in each turn"
    );
    let mut asked: Vec<Value> = server
        .tools
        .calls_of("lookup")
        .iter()
        .map(|call| call["args"]["query"].clone())
        .collect();
    // A call that was under way at a kill may be made again, with the same key.
    asked.dedup();
    let questions: Vec<Value> = (1..=turns).map(|number| json!(format!("question {number}"))).collect();
    assert_eq!(asked, questions);
    let file = state["values"]["files"]["/progress.md"]["content"]
        .as_str()
        .expect("the file");
    assert!(file.starts_with(&format!("turn {turns}:")), "{file}");
    let compactions = state["values"]["summarization"]["count"].as_u64().expect("a count");
    assert!(compactions >= turns / 100, "{compactions} compactions");
}

/// Checks that a later turn takes no more bytes than an early one, and that the memory stays within a tenth. The first part has
/// the tables' own first pages, and no summary yet.
fn growth_is_flat(usages: &[Usage], turns: u64) {
    println!("{usages:?}");
    let stored: Vec<i64> = usages.windows(2).map(|pair| pair[1].stored - pair[0].stored).collect();
    let second = stored[1].max(0);
    let last = stored[stored.len() - 1];
    assert!(last * 2 <= second * 3, "bytes in the parts of the thread: {stored:?}");
    let memory: Vec<i64> = usages.iter().map(|usage| usage.memory).collect();
    let second = memory[2];
    let last = memory[memory.len() - 1];
    let noise = if turns < LONG { MEMORY_NOISE_KB } else { 0 };
    assert!(
        last * 10 <= second * 11 + noise * 10,
        "memory after the parts of the thread: {memory:?}"
    );
}
