//! Long conversations: summaries in requests, windows of providers, and compactions on request.

use serde_json::{Value, json};

use crate::support::actors::{Human, transcript};
use crate::support::client::reply;
use crate::support::provider::Turn;
use crate::support::{TestServer, call, lookup, mail, on_both_engines, script, task};

/// An agent `talker` on a provider with this context window, with these lines in its summarisation. Its summaries are
/// `SUMMARY`.
fn talker(window: u64, lines: &str) -> String {
    format!(
        r#"
        [providers.small]
        kind = "scripted"
        max_input_tokens = {window}

        [agents.talker]
        model = "small:lab"
        system_prompt = "You talk."
        tools = ["lookup", "send_email", "slow"]
        interrupt_on = {{ send_email = true }}

        [agents.talker.summarization]
        summary_prompt = '{{"script": [{{"text": "SUMMARY"}}]}}'
        {lines}

        [[agents.talker.subagents]]
        name = "researcher"
        description = "Researches one question in depth."
        system_prompt = "You are the researcher."
        tools = ["lookup"]

        [[agents.talker.subagents]]
        name = "twin"
        description = "Goes on as the talker."
        mode = "fork"
        "#
    )
}

/// Returns the number of tokens of the request for an answer, as the provider has counted them.
fn request_tokens(message: &Value) -> u64 {
    message["usage_metadata"]["input_tokens"].as_u64().expect("a count")
}

/// Puts `turns` turns into the thread of a user.
async fn has_talked(user: &Human, turns: usize) {
    user.says("hello").await;
    let said = (0..turns).flat_map(|turn| {
        let text = format!("turn {turn}: {}", "so it goes ".repeat(8));
        [
            json!({"role": "user", "content": text}),
            json!({"role": "assistant", "content": text}),
        ]
    });
    let values = json!({"messages": said.collect::<Vec<_>>()});
    let body = json!({"values": values, "as_node": "model"});
    user.client().post(&user.path("/state"), body).await.ok();
}

on_both_engines! {
    a_thread_of_two_thousand_turns_stays_within_the_window_at_a_flat_cost,
    a_window_that_the_provider_enforces_is_met_by_compacting_once,
    an_overflow_that_no_summary_cures_is_a_clear_error,
    a_conversation_that_the_model_does_not_summarise_goes_on_without_its_older_part,
    an_overflow_is_recognised_at_every_provider,
    a_compaction_is_visible_in_the_stream_and_in_the_state,
    old_turns_are_in_a_file_that_the_agent_can_read,
    a_subagent_has_a_context_of_its_own,
    a_fork_reads_the_summary_of_its_caller,
    the_agent_compacts_its_own_conversation_with_a_tool,
    the_summary_counts_in_the_usage_and_in_the_limits,
    a_client_compacts_a_thread,
    a_compaction_leaves_an_open_approval_as_it_is,
    a_thread_at_work_is_not_compacted,
    a_compaction_whose_summary_fails_is_reported,
    another_model_writes_the_summary,
    the_next_summary_is_made_of_the_whole_last_one,
    a_summary_of_too_much_is_asked_for_again_with_half_of_it,
    an_agent_without_summarisation_sends_everything,
}

async fn a_thread_of_two_thousand_turns_stays_within_the_window_at_a_flat_cost(server: TestServer) {
    server.is_configured_with(&talker(4_000, "")).await;
    let alice = server.human("talker").await;
    has_talked(&alice, 2_000).await;
    let mut costs = vec![];
    for turn in 0..60 {
        let run = alice.asks(format!("and {turn}? {}", "tell me more ".repeat(10))).await;
        run.finishes().await;
        assert_eq!(run.status().await, "success");
    }
    let state = alice.state().await;
    let messages = state["values"]["messages"].as_array().expect("a list");
    assert_eq!(messages.len(), 2 + 4_000 + 120, "the history is whole");
    for message in messages[4_002..].iter().filter(|message| message["type"] == "ai") {
        costs.push(request_tokens(message));
    }
    // The provider refuses longer requests, so all of them were within the window.
    let longest = |part: &[u64]| *part.iter().max().expect("some");
    let (first, second) = costs.split_at(30);
    assert!(longest(second) <= longest(first) * 3 / 2, "{costs:?}");
    assert!(longest(&costs) <= 4_000, "{costs:?}");
    let count = state["values"]["summarization"]["count"].as_u64().expect("a count");
    assert!((2..=20).contains(&count), "{count} compactions for 60 turns");
}

async fn a_window_that_the_provider_enforces_is_met_by_compacting_once(server: TestServer) {
    // The agent takes the window for larger than it is.
    server
        .is_configured_with(&talker(2_000, "max_input_tokens = 1000000"))
        .await;
    let alice = server.human("talker").await;
    has_talked(&alice, 60).await;
    let values = alice.says("and now?").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: echo: and now?");
    assert_eq!(values["summarization"]["count"], 1, "{:#}", values["summarization"]);
    let again = alice.says("and then?").await;
    assert_eq!(transcript(&again).pop().unwrap(), "ai: echo: and then?");
    assert_eq!(again["summarization"]["count"], 1, "the summary is kept");
}

async fn a_conversation_that_the_model_does_not_summarise_goes_on_without_its_older_part(server: TestServer) {
    let agent = talker(2_000, "max_input_tokens = 1000000").replace(r#"{"text": "SUMMARY"}"#, r#"{"error": 400}"#);
    server.is_configured_with(&agent).await;
    let alice = server.human("talker").await;
    has_talked(&alice, 60).await;
    let values = alice.says("and now?").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: echo: and now?");
    assert_eq!(values["summarization"]["count"], 1, "{:#}", values["summarization"]);
    let path = values["summarization"]["file_path"].as_str().expect("a file");
    let file = values["files"][path]["content"].as_str().expect("a text");
    assert!(file.contains("turn 0: "), "{file:.300}");
}

async fn an_overflow_that_no_summary_cures_is_a_clear_error(server: TestServer) {
    let agent = talker(500, "max_input_tokens = 1000000").replace("You talk.", &"You talk. ".repeat(300));
    server.is_configured_with(&agent).await;
    let alice = server.human("talker").await;
    let values = alice.says("hello").await;
    assert_eq!(values["__error__"]["error"], "ContextOverflowError", "{values}");
    let message = values["__error__"]["message"].as_str().unwrap();
    assert!(message.contains("nothing in it that could be summarised"), "{message}");
}

async fn an_overflow_is_recognised_at_every_provider(server: TestServer) {
    for agent in ["openai", "anthropic", "google_genai"] {
        let alice = server.human(agent).await;
        server.models.will([Turn::Says("one")]);
        alice.says("first").await;
        server
            .models
            .will([Turn::Refuses(413, None), Turn::Says("the summary"), Turn::Says("two")]);
        let values = alice.says("second").await;
        assert_eq!(transcript(&values).pop().unwrap(), "ai: two", "{agent}: {values}");
        let asked = server.models.asked();
        let [.., transcript, last] = &asked[..] else {
            panic!("{agent}")
        };
        assert!(transcript.body.contains("one message a line"), "{agent}");
        assert!(
            last.body.contains("the summary") && last.body.contains("second"),
            "{agent}: {}",
            last.body
        );
    }
}

async fn a_compaction_is_visible_in_the_stream_and_in_the_state(server: TestServer) {
    server
        .is_configured_with(&talker(4_000, "trigger = { messages = 4 }\nkeep = { messages = 1 }"))
        .await;
    let alice = server.human("talker").await;
    alice.says("one").await;
    let more = json!({"stream_mode": ["custom", "updates", "messages"]});
    let frames = alice.streams("two", more.clone()).await.rest().await;
    assert!(!frames.is_empty(), "the stream has begun");
    assert!(frames.iter().all(|frame| frame.mode() != "custom"), "{frames:#?}");
    let frames = alice.streams("three", more).await.rest().await;
    let news: Vec<&Value> = frames
        .iter()
        .filter(|frame| frame.mode() == "custom")
        .map(|frame| &frame.data)
        .collect();
    let [begun, finished] = news[..] else {
        panic!("{news:#?}")
    };
    for (event, status) in [(begun, "started"), (finished, "finished")] {
        assert_eq!(event["type"], "summarization");
        assert_eq!(event["status"], status);
        assert_eq!(event["cause"], "length");
        assert_eq!(event["lc_agent_name"], "talker");
        assert_eq!(event["node"], "SummarizationMiddleware");
    }
    assert_eq!(finished["summarized_messages"], 4);
    let update = frames
        .iter()
        .find(|frame| frame.mode() == "updates" && frame.data["model"]["summarization"].is_object())
        .expect("the update of the model's node");
    assert!(update.data["model"].get("_summarization_event").is_none());
    let streamed: String = frames
        .iter()
        .filter(|frame| frame.mode().starts_with("messages"))
        .map(|frame| frame.data.to_string())
        .collect();
    assert!(streamed.contains("echo: three"), "{streamed}");
    assert!(
        !streamed.contains("SUMMARY"),
        "no client sees the summary as an answer: {streamed}"
    );
    let state = alice.state().await;
    assert_eq!(state["values"]["summarization"]["summarized_messages"], 4);
    assert_eq!(state["values"]["messages"].as_array().unwrap().len(), 6);
    assert!(state["values"].get("_summarization_event").is_none());
}

async fn old_turns_are_in_a_file_that_the_agent_can_read(server: TestServer) {
    server
        .is_configured_with(&talker(4_000, "trigger = { messages = 4 }\nkeep = { messages = 1 }"))
        .await;
    let alice = server.human("talker").await;
    for text in ["the code is 4711", "two", "three"] {
        alice.says(text).await;
    }
    let path = alice.state().await["values"]["summarization"]["file_path"].clone();
    assert!(
        path.as_str().unwrap().starts_with("/conversation_history/session_"),
        "{path}"
    );
    let text = script()
        .calls(call("g1", "grep", json!({"pattern": "4711", "output_mode": "content"})))
        .calls(call("r1", "read_file", json!({"file_path": path})))
        .says("found");
    let said = transcript(&alice.says(text).await);
    let found = said.iter().filter(|line| line.contains("the code is 4711")).count();
    assert_eq!(found, 4, "the message, its echo, and both results: {said:#?}");
}

async fn a_subagent_has_a_context_of_its_own(server: TestServer) {
    server
        .is_configured_with(&talker(8_000, "trigger = { messages = 6 }\nkeep = { messages = 2 }"))
        .await;
    let alice = server.human("talker").await;
    let research = (0..4)
        .fold(script(), |script, n| script.calls(lookup(&format!("c{n}"), "x")))
        .says("found");
    let values = alice
        .says(script().calls(task("t1", "researcher", research)).says("done"))
        .await;
    assert_eq!(values.get("summarization"), None, "{values:#}");
    assert_eq!(transcript(&values)[2], "task: found", "{values:#}");
    assert_eq!(server.tools.calls_of("lookup").len(), 4, "no call is lost or repeated");
    let files: Vec<&String> = values["files"].as_object().expect("files").keys().collect();
    let history = files.iter().filter(|path| path.starts_with("/conversation_history/"));
    let history: Vec<_> = history.collect();
    assert!(!history.is_empty(), "{files:?}");
    assert!(
        history
            .iter()
            .all(|path| !path.contains(&alice.thread.replace('-', ""))),
        "{files:?}"
    );
    let child = &alice.run(&alice.runs().await[0]).children().await[0];
    assert_eq!(child["status"], "success", "{child:#}");
}

async fn a_fork_reads_the_summary_of_its_caller(server: TestServer) {
    server
        .is_configured_with(&talker(8_000, "trigger = { messages = 6 }\nkeep = { messages = 1 }"))
        .await;
    let alice = server.human("talker").await;
    for text in ["one", "two", "three"] {
        alice.says(text).await;
    }
    let echo = script().turn(json!({"echo_messages": true}));
    let said = transcript(&alice.says(script().calls(task("t1", "twin", echo)).says("done")).await);
    let roles = said.iter().find(|line| line.starts_with("task: ")).expect("a result");
    // The summary, the last turn and the order.
    assert_eq!(roles, "task: ROLES<<user,user,user>>", "{said:#?}");
}

async fn the_agent_compacts_its_own_conversation_with_a_tool(server: TestServer) {
    server
        .is_configured_with(&talker(
            8_000,
            "trigger = { messages = 12 }\nkeep = { messages = 2 }\ntool = true",
        ))
        .await;
    let alice = server.human("talker").await;
    let compact = |id: &str| call(id, "compact_conversation", json!({}));
    let said = transcript(&alice.says(script().calls(compact("c0")).says("so be it")).await);
    assert!(
        said[2].starts_with("compact_conversation: Nothing was done"),
        "{said:#?}"
    );
    for text in ["one", "two"] {
        alice.says(text).await;
    }
    let text = script()
        .calls_all([compact("c1"), compact("c2"), lookup("l1", "x")])
        .turn(json!({"echo_messages": true}));
    let values = alice.says(text).await;
    let said = transcript(&values);
    let tail = &said[said.len() - 4..];
    assert_eq!(
        tail[0],
        "compact_conversation: Compacted: a summary stands for the first 8 messages now."
    );
    assert!(tail[1].contains("another call of the same message"), "{tail:#?}");
    assert!(tail[2].starts_with("lookup: "), "{tail:#?}");
    // The summary, the message, and the calls with their results.
    assert_eq!(tail[3], "ai: ROLES<<user,user,assistant,tool,tool,tool>>");
    assert_eq!(values["summarization"]["count"], 1);
}

async fn the_summary_counts_in_the_usage_and_in_the_limits(server: TestServer) {
    let lines = "trigger = { messages = 4 }\nkeep = { messages = 1 }";
    let agent = talker(8_000, lines).replace(
        "tools = [\"lookup\", \"send_email\", \"slow\"]",
        "limits = { model_calls = 1 }",
    );
    let agent = agent.replace("interrupt_on = { send_email = true }", "");
    server.is_configured_with(&agent).await;
    let alice = server.human("talker").await;
    alice.says("one").await;
    alice.says("two").await;
    let values = alice.says("three").await;
    assert_eq!(values["__error__"]["error"], "LimitExceededError", "{values}");
    let runs = alice.runs().await;
    let tree = alice
        .client()
        .get(&alice.path(&format!("/runs/{}/tree", runs[0]["run_id"].as_str().unwrap())))
        .await
        .ok();
    let usage = tree["root"]["usage"]
        .as_object()
        .or(tree["usage"].as_object())
        .expect("a usage");
    assert_eq!(usage["model_calls"], 1, "{tree:#}");
    assert!(usage["input_tokens"].as_u64().unwrap() > 0, "{tree:#}");
}

async fn a_client_compacts_a_thread(server: TestServer) {
    server.is_configured_with(&talker(8_000, "")).await;
    let alice = server.human("talker").await;
    let compact = |body: Value| {
        let alice = alice.clone();
        async move { alice.client().post(&alice.path("/compact"), body).await }
    };
    compact(json!({})).await.refused(422);
    alice.says("one").await;
    let nothing = compact(json!({})).await.ok();
    assert_eq!(nothing["status"], "nothing_to_do");
    for text in ["two", "three"] {
        alice.says(text).await;
    }
    let refused = compact(json!({"keep_messages": 0})).await.refused(422);
    assert!(refused.contains("keep_messages"), "{refused}");
    compact(json!({"keep": 1})).await.refused(422);
    let done = compact(json!({"keep_messages": 2})).await.ok();
    assert_eq!(done["status"], "compacted", "{done:#}");
    assert_eq!(done["summarized_messages"], 4);
    let run = alice.run_of_id(done["run_id"].as_str().unwrap());
    assert_eq!(run.status().await, "success");
    assert_eq!(alice.status().await, "idle");
    let state = alice.state().await;
    assert_eq!(state["values"]["messages"].as_array().unwrap().len(), 6);
    assert_eq!(state["values"]["summarization"]["count"], 1);
    assert_eq!(state["next"], json!([]));
    let said = transcript(&alice.says(script().turn(json!({"echo_messages": true}))).await);
    assert_eq!(said.last().unwrap(), "ai: ROLES<<user,user,assistant,user>>");
    // Without a body, and for a thread that does not exist.
    let client = alice.client();
    let bare = client.request(reqwest::Method::POST, &alice.path("/compact"));
    assert_eq!(reply(bare).await.ok()["status"], "nothing_to_do");
    let nowhere = "/threads/00000000-0000-4000-8000-000000000000/compact";
    client.post(nowhere, json!({})).await.refused(404);
}

async fn a_compaction_leaves_an_open_approval_as_it_is(server: TestServer) {
    server.is_configured_with(&talker(8_000, "")).await;
    let alice = server.human("talker").await;
    alice.says("one").await;
    let text = script().calls(mail("m1", "bob")).turn(json!({"echo_messages": true}));
    alice.says(text).await;
    let question = alice.question().await;
    let body = json!({"keep_messages": 1});
    let done = alice.client().post(&alice.path("/compact"), body).await.ok();
    assert_eq!(done["status"], "compacted", "{done:#}");
    assert_eq!(alice.status().await, "interrupted");
    assert_eq!(alice.question().await.id(), question.id());
    assert_eq!(server.tools.calls_of("send_email").len(), 0);
    let values = alice.approves(&question).await.finishes().await;
    let said = transcript(&values);
    assert_eq!(
        said.iter().filter(|line| line.starts_with("send_email: ")).count(),
        1,
        "{said:#?}"
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn a_thread_at_work_is_not_compacted(server: TestServer) {
    server.is_configured_with(&talker(8_000, "")).await;
    let alice = server.human("talker").await;
    server.tools.hold("slow");
    let run = alice
        .asks(script().calls(call("s1", "slow", json!({}))).says("done"))
        .await;
    server.tools.called("slow", 1).await;
    let refused = alice
        .client()
        .post(&alice.path("/compact"), json!({}))
        .await
        .refused(409);
    assert!(refused.contains("already running"), "{refused}");
    server.tools.let_go("slow");
    run.finishes().await;
}

async fn a_compaction_whose_summary_fails_is_reported(server: TestServer) {
    let agent = talker(8_000, "").replace(r#"{"text": "SUMMARY"}"#, r#"{"error": 400}"#);
    server.is_configured_with(&agent).await;
    let alice = server.human("talker").await;
    for text in ["one", "two"] {
        alice.says(text).await;
    }
    let body = json!({"keep_messages": 1});
    let failed = alice.client().post(&alice.path("/compact"), body).await.ok();
    assert_eq!(failed["__error__"]["error"], "ModelRefusedError", "{failed:#}");
    let values = alice.says("three").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: echo: three");
    assert_eq!(values.get("summarization"), None);
}

async fn another_model_writes_the_summary(server: TestServer) {
    let agent = r#"
        [agents.writer]
        model = "fake_openai:m-1"
        system_prompt = "You write."
        summarization = { model = "scripted:lab", summary_prompt = '{"script": [{"text": "BY ANOTHER"}]}', trigger = { messages = 4 }, keep = { messages = 1 } }
    "#;
    server.is_configured_with(agent).await;
    let alice = server.human("writer").await;
    server
        .models
        .will([Turn::Says("one"), Turn::Says("two"), Turn::Says("three")]);
    for text in ["first", "second", "third"] {
        alice.says(text).await;
    }
    let asked = server.models.asked();
    assert_eq!(asked.len(), 3, "the agent's model wrote no summary");
    assert!(asked[2].body.contains("BY ANOTHER"), "{}", asked[2].body);
    assert!(!asked[2].body.contains("\"second\""), "{}", asked[2].body);
}

async fn the_next_summary_is_made_of_the_whole_last_one(server: TestServer) {
    let agent = "[agents.writer]\nmodel = \"fake_openai:m-1\"\n";
    server.is_configured_with(agent).await;
    let alice = server.human("writer").await;
    let summary = format!("{}FACT-4711{}", "so it goes ".repeat(400), " and so on".repeat(400));
    server.models.will([
        Turn::Says("one"),
        Turn::Says("two"),
        Turn::Says(summary.leak()),
        Turn::Says("three"),
        Turn::Says("a shorter summary"),
    ]);
    for texts in [["first", "second"].as_slice(), &["third"]] {
        for text in texts {
            alice.says(text).await;
        }
        let body = json!({"keep_messages": 1});
        let compacted = alice.client().post(&alice.path("/compact"), body).await.ok();
        assert_eq!(compacted["status"], "compacted", "{compacted:#}");
    }
    let asked = server.models.asked();
    assert_eq!(asked.len(), 5);
    assert!(asked[4].body.contains("FACT-4711"), "{}", asked[4].body);
}

async fn a_summary_of_too_much_is_asked_for_again_with_half_of_it(server: TestServer) {
    let agent = "[agents.writer]\nmodel = \"fake_openai:m-1\"\n";
    server.is_configured_with(agent).await;
    let alice = server.human("writer").await;
    server.models.will([Turn::Says("hello")]);
    has_talked(&alice, 40).await;
    server.models.will([
        Turn::Refuses(413, None),
        Turn::Refuses(413, None),
        Turn::Says("the summary"),
        Turn::Says("now"),
    ]);
    let values = alice.says("and now?").await;
    assert_eq!(transcript(&values).pop().unwrap(), "ai: now");
    let lengths: Vec<usize> = server.models.asked().iter().map(|asked| asked.body.len()).collect();
    assert_eq!(lengths.len(), 5);
    assert!(lengths[3] * 4 < lengths[2] * 3, "{lengths:?}");
}

async fn an_agent_without_summarisation_sends_everything(server: TestServer) {
    let agent = r#"
        [agents.plainest]
        model = "scripted:lab"
        summarization = false
        general_purpose_subagent = { enabled = false }
    "#;
    server.is_configured_with(agent).await;
    let alice = server.human("plainest").await;
    alice.says("one").await;
    let refused = alice
        .client()
        .post(&alice.path("/compact"), json!({}))
        .await
        .refused(422);
    assert!(refused.contains("summarization = false"), "{refused}");
    let said = transcript(&alice.says(script().turn(json!({"echo_messages": true}))).await);
    assert_eq!(said.last().unwrap(), "ai: ROLES<<user,assistant,user>>");
}
