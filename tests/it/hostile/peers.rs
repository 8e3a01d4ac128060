//! Remote agents whose responses are too long, incomplete or invalid.

use crate::support::misbehaving_server::MisbehavingServer;
use crate::support::{TestServer, on_both_engines, script, task, transcript};

/// The invalid responses to the start of a run.
const WAYS: [&str; 5] = ["zeros", "endless", "line", "silent", "error"];

on_both_engines! {
    oversized_and_empty_remote_answers_are_error_results,
    an_endless_remote_stream_is_an_error_result_that_names_the_setting,
    a_redirect_of_a_remote_agent_is_not_followed,
}

async fn a_redirect_of_a_remote_agent_is_not_followed(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let agent = format!(
        "[peers]\npatience_s = 1.0\n[agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Delegate.\"\n\
         [[agents.wild.subagents]]\nname = \"away\"\ndescription = \"Has moved.\"\ngraph_id = \"agent\"\n\
         url = \"{}/elsewhere\"\nasync = false\n",
        wild.base
    );
    server.is_configured_with(&agent).await;
    let alice = server.human("wild").await;
    let plan = script().calls(task("t1", "away", "Work.")).says("done");
    let said = transcript(&alice.says(plan).await);
    assert!(said[2].starts_with("task failed"), "{}", said[2]);
    assert!(wild.asked("/elsewhere") > 0);
    assert_eq!(wild.asked("/target"), 0);
}

async fn oversized_and_empty_remote_answers_are_error_results(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let subagent = |way: &&str| {
        format!(
            "[[agents.wild.subagents]]\nname = \"{way}\"\ndescription = \"Works on a server that misbehaves.\"\n\
                 graph_id = \"agent\"\nurl = \"{}/{way}\"\nasync = false\n",
            wild.base
        )
    };
    let subagents: String = WAYS.iter().map(subagent).collect();
    let agent = "[peers]\npatience_s = 1.0\n[agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Delegate.\"\n";
    server.is_configured_with(&format!("{agent}{subagents}")).await;
    server.moves_into_a_process().await;
    let before = server.peak_memory().await;
    let alice = server.human("wild").await;
    let plan = WAYS
        .iter()
        .fold(script(), |plan, way| plan.calls(task(way, way, "Work.")))
        .says("done");
    let said = transcript(&alice.says(plan).await);
    assert_eq!(said.last().map(String::as_str), Some("ai: done"), "{said:#?}");
    let results: Vec<&String> = said.iter().filter(|line| line.starts_with("task")).collect();
    assert_eq!(results.len(), WAYS.len(), "{said:#?}");
    for (way, result) in WAYS.iter().zip(results) {
        assert!(result.starts_with("task failed"), "{way}: {result}");
        assert!(wild.asked(&format!("/{way}")) > 0, "{way} was never asked");
    }
    let grown = server.peak_memory().await - before;
    assert!(grown < 256, "it grew by {grown} MiB");
}

async fn an_endless_remote_stream_is_an_error_result_that_names_the_setting(server: TestServer) {
    let wild = MisbehavingServer::start().await;
    let agent = format!(
        "[answers]\nmax_remote_stream_bytes = 1000000\n\
             [agents.wild]\nmodel = \"scripted:lab\"\nsystem_prompt = \"Delegate.\"\n\
             [[agents.wild.subagents]]\nname = \"talker\"\ndescription = \"Never ends.\"\ngraph_id = \"agent\"\n\
             url = \"{}/run\"\nasync = false\n",
        wild.base
    );
    server.is_configured_with(&agent).await;
    let alice = server.human("wild").await;
    let said = transcript(
        &alice
            .says(script().calls(task("t1", "talker", "Work.")).says("done"))
            .await,
    );
    assert!(said[2].starts_with("task failed"), "{}", said[2]);
    assert!(said[2].contains("more than 1000000 bytes"), "{}", said[2]);
    assert!(said[2].contains("`[answers] max_remote_stream_bytes`"), "{}", said[2]);
    assert_eq!(said[3], "ai: done");
}
