//! The limits of a tree, which apply to a conversation together with its background tasks.

use serde_json::{Value, json};

use crate::agents::background_tasks::{boss, start, the_task, worker};
use crate::support::actors::Run;
use crate::support::{Human, TestServer, eventually, lookup, mail, on_both_engines, on_postgres, script, task};

/// Starts an agent with these limits of its tree, and a task that executes this script.
async fn begins(server: &TestServer, tree: &str, work: impl ToString) -> (Human, Run, Human) {
    begins_with(server, tree, "", work).await
}

/// Starts an agent with these limits of its tree, these further lines of the configuration, and a task that executes
/// this script.
async fn begins_with(server: &TestServer, tree: &str, lines: &str, work: impl ToString) -> (Human, Run, Human) {
    let agents = boss(&format!("limits = {{ tree = {{ {tree} }} }}"));
    server.is_configured_with(&format!("{agents}\n{lines}")).await;
    let alice = server.human("boss").await;
    let run = alice
        .asks(script().calls(start("a1", "courier", work)).says("it is under way"))
        .await;
    run.finishes().await;
    let courier = worker(&alice, &the_task(&alice).await);
    (alice, run, courier)
}

async fn is_over(human: &Human) -> Value {
    eventually(async || !["busy", "interrupted"].contains(&human.status().await.as_str())).await;
    human.runs().await[0].clone()
}

const TOGETHER: &str = "of this run and its subagents together is reached.";

on_both_engines! {
    tool_calls_of_all_agents_count_in_the_tree,
    model_calls_of_all_agents_count_in_the_tree,
    tokens_of_all_agents_count_in_the_tree,
    the_cost_of_all_agents_counts_in_the_tree,
    the_time_limit_of_a_tree_aborts_running_calls,
    subagents_of_a_task_count_among_those_of_the_tree,
    a_subagent_of_a_task_counts_beside_the_task,
    usage_of_the_tree_is_exact_after_a_kill,
    a_resumed_task_keeps_its_usage,
    the_step_limit_applies_to_background_tasks,
}

on_postgres! {
    servers_on_one_database_share_the_usage_of_a_tree,
}

async fn tool_calls_of_all_agents_count_in_the_tree(server: TestServer) {
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(lookup("l2", "y"))
        .says("written");
    let (_, _, courier) = begins(&server, "tool_calls = 2", work).await;
    is_over(&courier).await;
    let said = courier.transcript().await;
    assert!(said[2].starts_with("lookup: found"), "{said:#?}");
    assert!(
        said[4].starts_with(&format!("lookup failed: The limit `tool_calls` = 2 {TOGETHER}")),
        "{said:#?}"
    );
    assert_eq!(said.last().unwrap().as_str(), "ai: written");
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
}

async fn model_calls_of_all_agents_count_in_the_tree(server: TestServer) {
    server
        .is_configured_with(&boss("limits = { tree = { model_calls = 4 } }"))
        .await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("written");
    let text = script()
        .calls(start("a1", "courier", work))
        .calls(lookup("c1", "x"))
        .says("done");
    let run = alice.asks(text).await;
    server.tools.called("lookup", 2).await;
    // Two questions of the boss, one of the courier; there is one left.
    server.tools.let_go("lookup");
    run.finishes().await;
    let courier = worker(&alice, &the_task(&alice).await);
    let end = is_over(&courier).await;
    let ended = [run.status().await, end["status"].as_str().unwrap().to_owned()];
    assert_eq!(ended.iter().filter(|status| *status == "error").count(), 1, "{ended:?}");
    // If the boss has failed, the courier's result starts it again meanwhile, and it fails again.
    eventually(async || {
        let failed = if ended[0] == "error" {
            alice.record().await
        } else {
            courier.record().await
        };
        failed["error"].to_string().contains("LimitExceededError")
    })
    .await;
    assert_eq!(run.record().await["tree_usage"]["model_calls"], 4);
}

async fn tokens_of_all_agents_count_in_the_tree(server: TestServer) {
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(lookup("l2", "y"))
        .says("written");
    let (_, run, courier) = begins(&server, "tokens = 160", work).await;
    let end = is_over(&courier).await;
    let used = run.record().await["tree_usage"].clone();
    assert_eq!(end["status"], "error", "{used}");
    let error = courier.record().await["error"].clone();
    assert!(
        error
            .to_string()
            .contains(&format!("The limit `tokens` = 160 {TOGETHER}")),
        "{error}"
    );
}

async fn the_cost_of_all_agents_counts_in_the_tree(server: TestServer) {
    // Each token costs a millionth.
    let prices = "[prices.\"scripted:*\"]\ninput = 1.0\noutput = 1.0\n";
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(lookup("l2", "y"))
        .says("written");
    let (_, run, courier) = begins_with(&server, "cost = 0.00016", prices, work).await;
    let end = is_over(&courier).await;
    let used = run.record().await["tree_usage"].clone();
    assert_eq!(end["status"], "error", "{used}");
    let sum = |names: [&str; 2]| {
        names
            .map(|name| used[name].as_u64().expect("a number"))
            .iter()
            .sum::<u64>()
    };
    assert!(used["cost_micros"].as_u64() >= Some(160), "{used}");
    assert_eq!(used["cost_micros"], sum(["input_tokens", "output_tokens"]));
    let error = courier.record().await["error"].clone();
    let told = format!("The limit `cost` = 0.00016 {TOGETHER}");
    assert!(error.to_string().contains(&told), "{error}");
}

async fn the_time_limit_of_a_tree_aborts_running_calls(server: TestServer) {
    server.tools.hold("lookup");
    let work = script().calls(lookup("l1", "x")).says("written");
    let (_, _, courier) = begins(&server, "wall_s = 6.5", work).await;
    let end = is_over(&courier).await;
    server.tools.let_go("lookup");
    assert_eq!(end["status"], "error");
    let said = courier.transcript().await;
    assert!(said[2].contains("`wall_s` = 6.5"), "{said:#?}");
    assert!(said[2].contains("was cut off"), "{said:#?}");
    let record = courier.run(&end).record().await;
    assert!(record["usage"]["seconds"].as_f64().unwrap() < 30.0, "{record:#}");
}

async fn subagents_of_a_task_count_among_those_of_the_tree(server: TestServer) {
    let helps = |id: &str| task(id, "general-purpose", "help");
    let work = script().calls(helps("t1")).calls(helps("t2")).says("written");
    let (_, run, courier) = begins(&server, "children_total = 2", work).await;
    is_over(&courier).await;
    let said = courier.transcript().await;
    assert!(!said[2].contains("failed"), "{said:#?}");
    assert!(
        said[4].contains(&format!("`children_total` = 2 {TOGETHER}")),
        "{said:#?}"
    );
    assert_eq!(run.record().await["tree_usage"]["children"], 2);
}

async fn a_subagent_of_a_task_counts_beside_the_task(server: TestServer) {
    let helps = |id: &str| task(id, "general-purpose", "help");
    let work = script().calls_all([helps("t1"), helps("t2")]).says("written");
    let (_, _, courier) = begins(&server, "children_at_once = 2", work).await;
    is_over(&courier).await;
    let said = courier.transcript().await;
    let refused = said
        .iter()
        .filter(|line| line.contains(&format!("`children_at_once` = 2 {TOGETHER}")))
        .count();
    assert_eq!(refused, 1, "the task is one, one of its subagents the other: {said:#?}");
}

async fn usage_of_the_tree_is_exact_after_a_kill(server: TestServer) {
    server
        .is_configured_with(&boss("limits = { tree = { tool_calls = 3 } }"))
        .await;
    server.moves_into_a_process().await;
    let alice = server.human("boss").await;
    server.tools.hold("lookup");
    let work = script()
        .calls(lookup("l1", "x"))
        .calls(lookup("l2", "y"))
        .calls(lookup("l3", "z"))
        .says("written");
    let run = alice
        .asks(script().calls(start("a1", "courier", work)).says("it is under way"))
        .await;
    run.finishes().await;
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    let courier = worker(&alice, &the_task(&alice).await);
    is_over(&courier).await;
    let said = courier.transcript().await;
    assert!(said[2].starts_with("lookup: found"), "{said:#?}");
    assert!(said[4].starts_with("lookup: found"), "{said:#?}");
    assert!(
        said[6].starts_with(&format!("lookup failed: The limit `tool_calls` = 3 {TOGETHER}")),
        "{said:#?}"
    );
    assert_eq!(run.record().await["tree_usage"]["tool_calls"], 3);
}

async fn a_resumed_task_keeps_its_usage(server: TestServer) {
    let work = script()
        .calls(mail("m1", "bob"))
        .calls(lookup("l1", "x"))
        .says("written");
    let (_, _, courier) = begins(&server, "tool_calls = 2", work).await;
    eventually(async || courier.status().await == "interrupted").await;
    server.is_stopped_and_started_again().await;
    let approval = json!({"decisions": [{"type": "approve"}]});
    assert_eq!(courier.resolves(&courier.question().await, approval).await.status, 202);
    is_over(&courier).await;
    let said = courier.transcript().await;
    assert!(said[2].starts_with("send_email: sent"), "{said:#?}");
    assert!(
        said[4].starts_with(&format!("lookup failed: The limit `tool_calls` = 2 {TOGETHER}")),
        "{said:#?}"
    );
}

async fn servers_on_one_database_share_the_usage_of_a_tree(server: TestServer) {
    server
        .is_configured_with(&boss("limits = { tree = { tool_calls = 5 } }"))
        .await;
    let other = server.starts_twin().await;
    let alice = server.human("boss").await;
    let looks = || {
        (0..4)
            .fold(script(), |script, n| script.calls(lookup(&format!("l{n}"), "x")))
            .says("written")
    };
    let begun = script()
        .calls_all([start("a1", "courier", looks()), start("a2", "courier", looks())])
        .says("under way");
    let run = alice.asks(begun).await;
    run.finishes().await;
    let quiet = json!({"status": "busy", "limit": 1});
    eventually(async || other.client.post("/threads/search", quiet.clone()).await.ok() == json!([])).await;
    assert_eq!(server.tools.calls_of("lookup").len(), 3);
    assert_eq!(run.record().await["tree_usage"]["tool_calls"], 5);
    other.stops().await;
}

async fn the_step_limit_applies_to_background_tasks(server: TestServer) {
    server.is_configured_with(&boss("")).await;
    let alice = server.human("boss").await;
    let long = (0..10)
        .fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x")))
        .says("written");
    let text = script().calls(start("a1", "courier", long)).says("it is under way");
    alice
        .starts(alice.run_body(text, json!({"config": {"recursion_limit": 9}})))
        .await
        .finishes()
        .await;
    let courier = worker(&alice, &the_task(&alice).await);
    assert_eq!(is_over(&courier).await["status"], "error");
    assert_eq!(courier.record().await["error"]["error"], "GraphRecursionError");
}
