//! Providers of the kind `openai_responses`, structured output by `auto`, and clouds with OpenAI's protocol.

use serde_json::{Value, json};

use crate::support::provider::{ModelCall, Turn};
use crate::support::{TestServer, on_both_engines, transcript};

/// Configures an agent whose provider speaks OpenAI's responses, and providers of other kinds.
async fn set_up(server: &TestServer) {
    let base = &server.models.base;
    let provider = |name: &str, kind: &str, path: &str| {
        format!("[providers.{name}]\nkind = \"{kind}\"\nbase_url = \"{base}{path}\"\napi_key = \"key-of-{name}\"\n")
    };
    let providers = [
        provider("answers", "openai_responses", "/responses/v1"),
        provider("chat", "openai", "/openai/v1"),
        provider("claude", "anthropic", "/anthropic"),
        provider("gemini", "google_genai", "/google"),
    ];
    server
        .is_configured_with(&format!(
            "{}[agents.thinker]\nmodel = \"answers:m-1\"\nsystem_prompt = \"You think.\"\ntools = [\"lookup\"]\n\
             model_settings = {{ reasoning = {{ effort = \"low\", summary = \"auto\" }} }}\n",
            providers.concat()
        ))
        .await;
}

/// Returns the bodies of the requests from number `before` on.
fn bodies(server: &TestServer, before: usize) -> Vec<Value> {
    let asked = server.models.asked().split_off(before);
    asked.iter().map(ModelCall::json).collect()
}

/// Returns the types of the items of a request.
fn types(body: &Value) -> Vec<&str> {
    let items = body["input"].as_array().expect("items");
    items.iter().filter_map(|item| item["type"].as_str()).collect()
}

on_both_engines! {
    responses_carry_a_conversation_with_tools_and_their_reasoning,
    responses_carry_images_files_and_separate_messages,
    failures_of_responses_are_those_of_every_provider,
    the_strategy_auto_is_that_of_the_provider_where_the_model_has_it,
    bedrock_and_vertex_are_base_urls_of_the_openai_protocol,
}

async fn responses_carry_a_conversation_with_tools_and_their_reasoning(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("thinker").await;
    let before = server.models.asked().len();
    server.models.will([
        Turn::LooksUp(vec!["x", "y"]),
        Turn::Says("x and y"),
        Turn::Says("indeed"),
    ]);
    let values = alice.says("what are x and y?").await;
    let said = [
        "human: what are x and y?",
        "ai calls lookup, lookup",
        "lookup: found x",
        "lookup: found y",
        "ai: x and y",
    ];
    assert_eq!(transcript(&values), said);
    let calls = &values["messages"][1];
    assert_eq!(calls["tool_calls"][0]["id"], "call_x");
    assert_eq!(calls["additional_kwargs"]["reasoning_content"], "thinking of x");
    assert_eq!(calls["usage_metadata"]["input_tokens"], 9);
    assert_eq!(calls["response_metadata"]["finish_reason"], "tool_calls");
    assert_eq!(values["messages"][4]["response_metadata"]["finish_reason"], "stop");
    // The thread has the reasoning, also when the server was started anew.
    server.is_stopped_and_started_again().await;
    alice.says("sure?").await;
    let asked = server.models.asked().split_off(before);
    assert!(!asked.is_empty(), "the model was not asked");
    assert!(asked.iter().all(|asked| asked.path == "/responses/v1/responses"));
    assert!(asked.iter().all(|asked| asked.key.as_deref() == Some("key-of-answers")));
    let bodies = bodies(&server, before);
    assert_eq!(bodies.len(), 3);
    for body in &bodies {
        let instructions = body["instructions"].as_str().expect("a text");
        assert!(instructions.starts_with("You think."), "{instructions}");
        assert_eq!(body["store"], false);
        assert_eq!(body["stream"], true);
        assert_eq!(body["include"], json!(["reasoning.encrypted_content"]));
        assert_eq!(body["reasoning"]["effort"], "low");
        let tools = body["tools"].as_array().expect("tools");
        assert!(tools.iter().any(|tool| tool["name"] == "lookup"), "{body}");
    }
    assert_eq!(types(&bodies[0]), ["message"]);
    let answered = [
        "message",
        "reasoning",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
    ];
    assert_eq!(types(&bodies[1]), answered);
    let whole: Vec<&str> = answered.into_iter().chain(["message", "message"]).collect();
    assert_eq!(types(&bodies[2]), whole);
    for body in &bodies[1..] {
        assert_eq!(body["input"][1]["encrypted_content"], "sealed-x", "{body}");
        assert_eq!(body["input"][2]["call_id"], "call_x", "{body}");
        assert_eq!(body["input"][4]["output"], "found x", "{body}");
    }
}

async fn responses_carry_images_files_and_separate_messages(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("thinker").await;
    let before = server.models.asked().len();
    server.models.will([Turn::Says("seen")]);
    let file = json!({"type": "file", "base64": "JVBERi0=", "mime_type": "application/pdf", "filename": "a.pdf"});
    let blocks = json!([{"type": "text", "text": "see"}, file,
        {"type": "image", "base64": "iVBORw0K", "mime_type": "image/png"},
        {"type": "video", "base64": "AAAA", "mime_type": "video/mp4"}]);
    let messages = json!([{"role": "user", "content": "first"}, {"role": "user", "content": blocks}]);
    alice
        .starts(json!({"input": {"messages": messages}}))
        .await
        .finishes()
        .await;
    let body = bodies(&server, before).remove(0);
    let items = body["input"].as_array().expect("items");
    let parts: Vec<&Value> = items.iter().map(|item| &item["content"][0]).collect();
    assert!(items.iter().all(|item| item["role"] == "user"), "{body:#}");
    assert_eq!(parts[0]["text"], "first");
    assert_eq!(parts[1]["text"], "see");
    assert_eq!(parts[2]["type"], "input_file");
    assert_eq!(parts[2]["filename"], "a.pdf");
    assert_eq!(parts[3]["type"], "input_image");
    assert!(
        parts[4]["text"].as_str().is_some_and(|text| text.contains("video/mp4")),
        "{body:#}"
    );
}

async fn failures_of_responses_are_those_of_every_provider(server: TestServer) {
    set_up(&server).await;
    let alice = server.human("thinker").await;
    server
        .models
        .will([Turn::Refuses(429, Some("0")), Turn::Says("after all")]);
    alice.says("hello").await;
    assert_eq!(alice.transcript().await, ["human: hello", "ai: after all"]);
    server.models.will([Turn::Refuses(401, None)]);
    let error = alice.says("again").await["__error__"].clone();
    assert!(
        error["message"]
            .as_str()
            .is_some_and(|text| text.contains("refused the request")),
        "{error}"
    );
    server.models.will([Turn::BreaksOff]);
    let bob = server.human("thinker").await;
    let error = bob.says("hello").await["__error__"].clone();
    assert!(error.is_object(), "{error}");
}

async fn the_strategy_auto_is_that_of_the_provider_where_the_model_has_it(server: TestServer) {
    set_up(&server).await;
    let schema = json!({"title": "Finding", "type": "object", "required": ["summary"],
        "properties": {"summary": {"type": "string"}}, "additionalProperties": false});
    let asks = async |model: Value, format: Value, turn: Turn| -> (Value, String) {
        let definition = json!({"model": model, "response_format": format});
        server.client().put("/agents/former", definition).await.ok();
        let alice = server.human("former").await;
        let before = server.models.asked().len();
        server.models.will([turn]);
        let values = alice.says("what is it?").await;
        let body = server.models.asked().split_off(before).remove(0).body;
        (values["structured_response"].clone(), body)
    };
    for model in [
        "answers:gpt-5",
        "chat:gpt-5-mini",
        "claude:claude-sonnet-4-6",
        "gemini:gemini-3-pro",
    ] {
        let (found, body) = asks(json!(model), schema.clone(), Turn::Says(r#"{"summary": "so"}"#)).await;
        assert_eq!(found, json!({"summary": "so"}), "{model}: {body}");
        assert!(
            !body.contains("\"name\":\"Finding\",\"description\""),
            "{model}: {body}"
        );
        let body: Value = serde_json::from_str(&body).expect("JSON");
        match model {
            "answers:gpt-5" => {
                assert_eq!(body["text"]["format"]["type"], "json_schema");
                assert_eq!(body["text"]["format"]["schema"], schema);
                assert_eq!(body["text"]["format"]["name"], "Finding");
            }
            "chat:gpt-5-mini" => assert_eq!(body["response_format"]["json_schema"]["schema"], schema),
            _ => {}
        }
    }
    // By a tool: with another model, a form of its own for the call, or one model of several that does not have it.
    let by_tool = json!({"schema": schema, "tool_message_content": "Noted."});
    for (model, format) in [
        (json!("chat:m-1"), schema.clone()),
        (json!("chat:gpt-5"), by_tool),
        (json!("chat:gpt-5"), json!({"schema": schema, "strategy": "tool"})),
        (json!(["chat:gpt-5", "claude:m-1"]), schema.clone()),
    ] {
        let (_, body) = asks(model.clone(), format, Turn::Refuses(400, None)).await;
        assert!(
            body.contains("\"Finding\"") && !body.contains("\"json_schema\""),
            "{model}: {body}"
        );
    }
}

async fn bedrock_and_vertex_are_base_urls_of_the_openai_protocol(server: TestServer) {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/docs/models.md")).expect("the page");
    let recipe = |title: &str| -> String {
        let (_, section) = page.split_once(&format!("### {title}\n")).expect("a section");
        let (_, block) = section.split_once("```toml\n").expect("a block");
        block.split_once("```").expect("its end").0.to_owned()
    };
    let base = &server.models.base;
    let bedrock = recipe("Amazon Bedrock")
        .replace(
            "https://bedrock-runtime.REGION.amazonaws.com",
            &format!("{base}/bedrock"),
        )
        .replace("agents.agent]", "agents.of_bedrock]");
    let vertex = recipe("Google Vertex AI")
        .replace("https://LOCATION-aiplatform.googleapis.com", &format!("{base}/vertex"))
        .replace("agents.agent]", "agents.of_vertex]");
    server.is_configured_with(&format!("{bedrock}\n{vertex}")).await;
    for (agent, path, model, key) in [
        (
            "of_bedrock",
            "/bedrock/openai/v1/chat/completions",
            "openai.gpt-oss-120b-1:0",
            "a-key",
        ),
        (
            "of_vertex",
            "/vertex/v1/projects/PROJECT/locations/LOCATION/endpoints/openapi/chat/completions",
            "google/gemini-2.5-flash",
            "a-token",
        ),
    ] {
        let alice = server.human(agent).await;
        let before = server.models.asked().len();
        server.models.will([Turn::Says("from the cloud")]);
        assert_eq!(
            transcript(&alice.says("hello").await),
            ["human: hello", "ai: from the cloud"]
        );
        let asked = server.models.asked().split_off(before);
        assert_eq!(asked[0].path, path);
        assert_eq!(asked[0].key.as_deref(), Some(key));
        let body = asked[0].json();
        assert_eq!(body["model"], model);
    }
}
