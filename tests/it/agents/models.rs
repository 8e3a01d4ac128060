//! Models of every kind of provider, over its own protocol.

use serde_json::{Value, json};

use crate::support::provider::Turn;
use crate::support::{TestServer, lookup, on_both_engines, script, transcript};

/// The agents of each protocol, the path of their requests, and their key.
const PROTOCOLS: [(&str, &str, Option<&str>); 4] = [
    ("openai", "/openai/v1/chat/completions", Some("secret-openai")),
    ("anthropic", "/anthropic/v1/messages", Some("secret-anthropic")),
    (
        "google_genai",
        "/google/v1beta/models/m-1:streamGenerateContent",
        Some("secret-google"),
    ),
    ("ollama", "/ollama/v1/chat/completions", None),
];

on_both_engines! {
    each_protocol_carries_a_conversation_with_tools,
    each_protocol_streams_its_pieces,
    a_message_after_a_failed_run_reaches_the_provider_as_one_of_its_own,
    a_rate_limited_request_is_repeated,
    a_refused_request_is_not_repeated_and_hides_the_response,
    an_incomplete_answer_is_an_error,
    a_missing_key_is_named_when_it_is_needed,
    a_run_without_messages_and_prompt_makes_no_model_call,
    an_incomplete_scripted_answer_fails_the_run,
    a_transient_failure_is_retried,
    the_main_agent_can_have_a_response_format,
    the_names_of_files_reach_the_provider,
    a_provider_has_headers_and_retries_of_its_own,
    the_address_of_azure_is_a_base_url_of_the_openai_protocol,
}

async fn each_protocol_carries_a_conversation_with_tools(server: TestServer) {
    for (agent, path, key) in PROTOCOLS {
        let alice = server.human(agent).await;
        let asked_before = server.models.asked().len();
        server
            .models
            .will([Turn::LooksUp(vec!["x", "y"]), Turn::Says("x and y")]);
        let values = alice.says("what are x and y?").await;
        let said = [
            "human: what are x and y?",
            "ai calls lookup, lookup",
            "lookup: found x",
            "lookup: found y",
            "ai: x and y",
        ];
        assert_eq!(transcript(&values), said, "{agent}");
        let asked = server.models.asked().split_off(asked_before);
        assert_eq!(asked.len(), 2, "{agent}");
        for request in &asked {
            assert_eq!(request.path.as_str(), path);
            assert_eq!(request.key.as_deref(), key);
            assert!(request.body.contains("You speak "), "{}", request.body);
        }
        assert!(!asked[0].body.contains("found x"), "{}", asked[1].body);
        assert!(asked[1].body.contains("found x"), "{}", asked[1].body);
        let usage = &values["messages"][4]["usage_metadata"];
        assert_eq!(&usage["input_tokens"], &json!(9), "{agent}");
        assert_eq!(&usage["output_tokens"], &json!(4), "{agent}");
    }
}

async fn each_protocol_streams_its_pieces(server: TestServer) {
    for (agent, _, _) in PROTOCOLS {
        let alice = server.human(agent).await;
        server.models.will([Turn::Says("one two three")]);
        let frames = alice
            .streams("count", json!({"stream_mode": "messages-tuple"}))
            .await
            .rest()
            .await;
        let pieces = frames.iter().filter(|frame| frame.data[0]["type"] == "AIMessageChunk");
        let text: String = pieces
            .clone()
            .filter_map(|frame| frame.data[0]["content"].as_str())
            .collect();
        assert_eq!(text, "one two three", "{agent}");
        assert!(
            pieces.filter(|frame| frame.data[0]["content"] != "").count() > 1,
            "{agent}"
        );
    }
}

async fn a_message_after_a_failed_run_reaches_the_provider_as_one_of_its_own(server: TestServer) {
    let alice = server.human("openai").await;
    server.models.will([Turn::Refuses(400, None)]);
    alice.says("what is x?").await;
    server.models.will([Turn::Says("I see")]);
    alice.says("and what is y?").await;
    let asked = server.models.asked().pop().unwrap();
    let body = asked.json();
    let messages = body["messages"].as_array().unwrap();
    let said: Vec<&Value> = messages
        .iter()
        .filter(|m| m["role"] == "user")
        .map(|m| &m["content"])
        .collect();
    assert_eq!(said, ["what is x?", "and what is y?"], "{}", asked.body);
    assert_eq!(messages.len(), 3, "{}", asked.body);
}

async fn a_rate_limited_request_is_repeated(server: TestServer) {
    for (agent, _, _) in PROTOCOLS {
        let alice = server.human(agent).await;
        server.models.will([
            Turn::Refuses(429, Some("0")),
            Turn::Refuses(503, None),
            Turn::Says("at last"),
        ]);
        assert_eq!(
            transcript(&alice.says("hello").await),
            ["human: hello", "ai: at last"],
            "{agent}"
        );
    }
}

async fn a_refused_request_is_not_repeated_and_hides_the_response(server: TestServer) {
    for (agent, _, _) in PROTOCOLS {
        let alice = server.human(agent).await;
        let asked_before = server.models.asked().len();
        server.models.will([Turn::Refuses(400, None)]);
        let error = alice.says("hello").await["__error__"].clone();
        assert!(
            error["message"].as_str().unwrap().contains("refused the request"),
            "{agent}: {error}"
        );
        assert_eq!(server.models.asked().len(), asked_before + 1, "{agent}");
    }
}

async fn an_incomplete_answer_is_an_error(server: TestServer) {
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
    assert!(
        error["message"].as_str().unwrap().contains("ADJUTANT_TEST_NO_SUCH_KEY"),
        "{error}"
    );
    assert_eq!(server.models.asked().len(), 0);
}

async fn a_run_without_messages_and_prompt_makes_no_model_call(server: TestServer) {
    server
        .is_configured_with("[agents.silent]\nmodel = \"fake_openai:m-1\"\n")
        .await;
    let asked_before = server.models.asked().len();
    for input in [json!({}), json!({"messages": []})] {
        let run_body = json!({"assistant_id": "silent", "input": input});
        let error = server.client().post("/runs/wait", run_body).await.ok()["__error__"].clone();
        assert_eq!(error["error"], "EmptyInputError", "{error}");
        assert!(
            error["message"]
                .as_str()
                .unwrap()
                .contains("there is nothing to ask the model"),
            "{error}"
        );
    }
    assert_eq!(server.models.asked().len(), asked_before);
}

async fn an_incomplete_scripted_answer_fails_the_run(server: TestServer) {
    let alice = server.human("agent").await;
    let values = alice
        .says(script().turn(json!({"text": "one two", "drop": true})))
        .await;
    assert!(values["__error__"].is_object(), "{values}");
    assert_eq!(alice.transcript().await, ["human: …"]);
}

async fn a_transient_failure_is_retried(server: TestServer) {
    let alice = server.human("agent").await;
    let turn = json!({"fail_first": 2, "status": 503, "tool_calls": [lookup("c1", "x")]});
    let said = transcript(&alice.says(script().turn(turn).says("done")).await);
    assert_eq!(said, ["human: …", "ai calls lookup", "lookup: found x", "ai: done"]);
}

async fn the_main_agent_can_have_a_response_format(server: TestServer) {
    let alice = server.human("finder").await;
    let finding = crate::support::call("f1", "Finding", json!({"summary": "it is so"}));
    alice.says(script().calls(finding).says("not reached")).await;
    assert_eq!(
        alice.state().await["values"]["structured_response"],
        json!({"summary": "it is so"})
    );
    assert_eq!(alice.transcript().await.len(), 3);
    alice.says(script().turn(json!({"text": "talk"}))).await;
    assert_eq!(alice.state().await["values"]["structured_response"], Value::Null);
}

async fn the_names_of_files_reach_the_provider(server: TestServer) {
    let file = |more: Value| {
        let mut block = json!({"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf"});
        block.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        block
    };
    let nested =
        json!({"type": "file", "file": {"filename": "c.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}});
    let blocks = json!([{"type": "text", "text": "see"}, file(json!({"filename": "a \"b\".pdf"})), file(json!({})),
            file(json!({"metadata": {"filename": "b.pdf"}})), nested]);
    let sent = async |agent: &str| -> Value {
        let alice = server.human(agent).await;
        server.models.will([Turn::Says("seen")]);
        alice
            .starts(json!({"input": {"messages": [{"role": "user", "content": blocks}]}}))
            .await
            .finishes()
            .await;
        server.models.asked().last().unwrap().json()
    };
    let names = |body: &Value, at: &str| -> Vec<Value> {
        let messages = body["messages"].as_array().unwrap();
        let said = messages.iter().find(|message| message["role"] == "user").unwrap()["content"]
            .as_array()
            .unwrap();
        said[1..]
            .iter()
            .map(|block| block.pointer(at).cloned().unwrap_or_default())
            .collect()
    };
    let named = [
        json!("a \"b\".pdf"),
        json!("document.pdf"),
        json!("b.pdf"),
        json!("c.pdf"),
    ];
    assert_eq!(names(&sent("openai").await, "/file/filename"), named);
    let named = [json!("a \"b\".pdf"), Value::Null, json!("b.pdf"), json!("c.pdf")];
    assert_eq!(names(&sent("anthropic").await, "/title"), named);
}

async fn a_provider_has_headers_and_retries_of_its_own(server: TestServer) {
    let base = &server.models.base;
    server
        .is_configured_with(&format!(
            "[providers.gateway]\nkind = \"openai\"\nbase_url = \"{base}/openai/v1\"\napi_key = \"sk-1\"\n\
             headers = {{ x-team = \"support\", authorization = \"Bearer other\" }}\nmax_retries = 0\n\
             [providers.patient]\nkind = \"openai\"\nbase_url = \"{base}/openai/v1\"\nmax_retries = 3\n\
             [agents.gated]\nmodel = \"gateway:m-1\"\n[agents.waiting]\nmodel = \"patient:m-1\"\n"
        ))
        .await;
    let alice = server.human("gated").await;
    let before = server.models.asked().len();
    let busy = || Turn::Refuses(429, Some("0"));
    server.models.will([busy()]);
    let values = alice.says("hello").await;
    assert_eq!(values["__error__"]["error"], "ModelRateLimitError", "{values}");
    let asked = server.models.asked().split_off(before);
    assert_eq!(asked.len(), 1, "it is not repeated");
    assert_eq!(asked[0].headers["x-team"], "support");
    assert_eq!(asked[0].headers["authorization"], "Bearer other");
    let bob = server.human("waiting").await;
    server
        .models
        .will([busy(), busy(), busy(), Turn::Says("the fourth time")]);
    assert_eq!(
        transcript(&bob.says("hello").await),
        ["human: hello", "ai: the fourth time"]
    );
    assert!(!server.models.asked()[before + 1].headers.contains_key("x-team"));
}

async fn the_address_of_azure_is_a_base_url_of_the_openai_protocol(server: TestServer) {
    let base = &server.models.base;
    server
        .is_configured_with(&format!(
            "[providers.azure]\nkind = \"openai\"\nbase_url = \"{base}/openai/v1\"\napi_key = \"azure-key\"\n\
             headers = {{ api-key = \"azure-key\" }}\n[agents.clouded]\nmodel = \"azure:my-deployment\"\n"
        ))
        .await;
    let alice = server.human("clouded").await;
    let before = server.models.asked().len();
    server.models.will([Turn::Says("from the cloud")]);
    assert_eq!(
        transcript(&alice.says("hello").await),
        ["human: hello", "ai: from the cloud"]
    );
    let asked = server.models.asked().split_off(before);
    assert_eq!(asked[0].path, "/openai/v1/chat/completions");
    assert_eq!(asked[0].key.as_deref(), Some("azure-key"));
    assert_eq!(asked[0].headers["api-key"], "azure-key");
    let body = asked[0].json();
    assert_eq!(body["model"], "my-deployment");
}
