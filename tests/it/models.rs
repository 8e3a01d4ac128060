//! Every kind of provider, over its own protocol.

use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::{TestServer, lookup, on_both_engines, script, transcript};

/// The agents that speak each protocol, the path they ask, and the key they send.
const PROTOCOLS: [(&str, &str, Option<&str>); 4] = [
    ("openai", "/openai/v1/chat/completions", Some("secret-openai")),
    ("anthropic", "/anthropic/v1/messages", Some("secret-anthropic")),
    ("google_genai", "/google/v1beta/models/m-1:streamGenerateContent", Some("secret-google")),
    ("ollama", "/ollama/v1/chat/completions", None),
];

on_both_engines! {
    async fn each_protocol_carries_a_conversation_with_tools(server: TestServer) {
        for (agent, path, key) in PROTOCOLS {
            let alice = server.human(agent).await;
            let asked_before = server.models.asked().len();
            server.models.will([Turn::LooksUp(vec!["x", "y"]), Turn::Says("x and y")]);
            let values = alice.says("what are x and y?").await;
            let said = ["human: what are x and y?", "ai calls lookup, lookup", "lookup: found x", "lookup: found y",
                "ai: x and y"];
            assert_eq!(transcript(&values), said, "{agent}");
            let asked = server.models.asked().split_off(asked_before);
            assert_eq!(asked.len(), 2, "{agent}");
            for request in &asked {
                assert_eq!((request.path.as_str(), request.key.as_deref()), (path, key));
                assert!(request.body.contains("You speak "), "{}", request.body);
            }
            assert!(!asked[0].body.contains("found x") && asked[1].body.contains("found x"), "{}", asked[1].body);
            let usage = &values["messages"][4]["usage_metadata"];
            assert_eq!((&usage["input_tokens"], &usage["output_tokens"]), (&json!(9), &json!(4)), "{agent}");
        }
    }

    async fn each_protocol_streams_its_pieces(server: TestServer) {
        for (agent, _, _) in PROTOCOLS {
            let alice = server.human(agent).await;
            server.models.will([Turn::Says("one two three")]);
            let frames = alice.listens("count", json!({"stream_mode": "messages-tuple"})).await.rest().await;
            let pieces = frames.iter().filter(|frame| frame.data[0]["type"] == "AIMessageChunk");
            let text: String = pieces.clone().filter_map(|frame| frame.data[0]["content"].as_str()).collect();
            assert_eq!(text, "one two three", "{agent}");
            assert!(pieces.filter(|frame| frame.data[0]["content"] != "").count() > 1, "{agent}");
        }
    }

    async fn a_provider_that_is_overrun_is_asked_again(server: TestServer) {
        for (agent, _, _) in PROTOCOLS {
            let alice = server.human(agent).await;
            server.models.will([Turn::Refuses(429, Some("0")), Turn::Refuses(503, None), Turn::Says("at last")]);
            assert_eq!(transcript(&alice.says("hello").await), ["human: hello", "ai: at last"], "{agent}");
        }
    }

    async fn a_refusal_is_not_tried_again_and_does_not_show_what_the_provider_said(server: TestServer) {
        for (agent, _, _) in PROTOCOLS {
            let alice = server.human(agent).await;
            let asked_before = server.models.asked().len();
            server.models.will([Turn::Refuses(400, None)]);
            let error = alice.says("hello").await["__error__"].clone();
            assert!(error["message"].as_str().unwrap().contains("refused the request"), "{agent}: {error}");
            assert_eq!(server.models.asked().len(), asked_before + 1, "{agent}");
        }
    }

    async fn an_answer_that_breaks_off_is_an_error_and_never_a_short_answer(server: TestServer) {
        for (agent, _, _) in PROTOCOLS {
            let alice = server.human(agent).await;
            server.models.will([Turn::BreaksOff]);
            let values = alice.says("hello").await;
            assert!(values["__error__"].is_object(), "{agent}: {values}");
            assert_eq!(alice.transcript().await, ["human: hello"], "{agent}");
            server.models.will([Turn::Says("here I am")]);
            let body = json!({"input": null});
            alice.starts(body).await.finishes().await;
            assert_eq!(alice.transcript().await, ["human: hello", "ai: here I am"], "{agent}");
        }
    }

    async fn a_missing_key_is_named_when_it_is_needed(server: TestServer) {
        let alice = server.human("keyless").await;
        let error = alice.says("hello").await["__error__"].clone();
        assert!(error["message"].as_str().unwrap().contains("ADJUTANT_TEST_NO_SUCH_KEY"), "{error}");
        assert_eq!(server.models.asked().len(), 0);
    }

    async fn without_messages_and_instructions_no_provider_is_asked_and_none_is_blamed(server: TestServer) {
        server.is_configured_with("[agents.silent]\nmodel = \"fake_openai:m-1\"\n").await;
        let asked_before = server.models.asked().len();
        for input in [json!({}), json!({"messages": []})] {
            let wish = json!({"assistant_id": "silent", "input": input});
            let error = server.client().post("/runs/wait", wish).await.ok()["__error__"].clone();
            assert_eq!(error["error"], "EmptyInputError", "{error}");
            assert!(error["message"].as_str().unwrap().contains("there is nothing to ask the model"), "{error}");
        }
        assert_eq!(server.models.asked().len(), asked_before);
    }

    async fn a_scripted_answer_that_breaks_off_fails_the_run(server: TestServer) {
        let alice = server.human("agent").await;
        let values = alice.says(script().turn(json!({"text": "one two", "drop": true}))).await;
        assert!(values["__error__"].is_object(), "{values}");
        assert_eq!(alice.transcript().await, ["human: …"]);
    }

    async fn a_failure_that_passes_is_not_noticed(server: TestServer) {
        let alice = server.human("agent").await;
        let turn = json!({"fail_first": 2, "status": 503, "tool_calls": [lookup("c1", "x")]});
        let said = transcript(&alice.says(script().turn(turn).says("done")).await);
        assert_eq!(said, ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]);
    }

    async fn a_form_is_filled_in_by_the_main_agent_too(server: TestServer) {
        let alice = server.human("finder").await;
        let finding = crate::support::call("f1", "Finding", json!({"summary": "it is so"}));
        alice.says(script().calls(finding).says("not reached")).await;
        assert_eq!(alice.state().await["values"]["structured_response"], json!({"summary": "it is so"}));
        assert_eq!(alice.transcript().await.len(), 3);
        alice.says(script().turn(json!({"text": "talk"}))).await;
        assert_eq!(alice.state().await["values"]["structured_response"], Value::Null);
    }
}
