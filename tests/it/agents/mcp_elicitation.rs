//! MCP servers that ask a human in the middle of a call, over a session. Those without sessions are in `mcp_input`.

use std::borrow::Cow;
use std::sync::{Arc, Mutex};

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ElicitRequestParams, ListToolsResult,
    PaginatedRequestParams, ProtocolVersion, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Value, json};

use super::mcp_input::serves_mcp;
use crate::support::{Human, TestServer, call, on_both_engines, script};

on_both_engines! {
    a_question_of_a_server_is_an_interrupt_that_outlives_a_restart,
    a_call_asks_one_question_after_the_other,
    a_declined_question_is_an_answer,
    a_server_without_the_setting_cannot_ask,
    a_server_that_needs_no_handshake_may_ask_in_a_session_with_the_setting_for_it,
}

/// A server with the tool `book`, which asks for a seat and then for a confirmation.
#[derive(Clone, Default)]
struct Travel {
    /// The answers that the tool has got from the client, in the order of its questions.
    answers: Arc<Mutex<Vec<String>>>,
    /// True if the server offers a version without sessions, too, in which it cannot ask in this way.
    offers_all_versions: bool,
}

fn question(message: &str, field: &str) -> ElicitRequestParams {
    let properties = json!({field: {"type": "string"}});
    let schema = json!({"type": "object", "properties": properties, "required": [field]});
    serde_json::from_value(json!({"message": message, "requestedSchema": schema})).expect("parameters")
}

impl ServerHandler for Travel {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        // In later versions a server sends no requests.
        let latest = match self.offers_all_versions {
            true => ProtocolVersion::LATEST,
            false => ProtocolVersion::LATEST_WITH_INITIALIZE,
        };
        Cow::Borrowed(ProtocolVersion::known_up_to(&latest))
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        let schema = json!({"type": "object"}).as_object().cloned().unwrap_or_default();
        Ok(ListToolsResult {
            tools: vec![Tool::new("book", "Books a seat.", Arc::new(schema))],
            ..ListToolsResult::default()
        })
    }

    async fn call_tool(
        &self,
        _: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let mut said = vec![];
        for (message, field) in [("Which seat?", "seat"), ("Are you sure?", "sure")] {
            let asked = context.peer.create_elicitation(question(message, field)).await;
            let answer = asked.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            let answer = serde_json::to_value(&answer).expect("JSON");
            let text = match answer["action"].as_str() {
                Some("accept") => answer["content"][field].to_string(),
                other => format!("{other:?}"),
            };
            self.answers.lock().expect("the answers").push(text.clone());
            said.push(text);
        }
        let text = format!("booked: {}", said.join(", "));
        Ok(CallToolResult::success(vec![ContentBlock::text(text)]).into())
    }
}

/// Starts the server, and an agent that uses it.
async fn traveller(server: &TestServer, settings: &str) -> (Human, Travel) {
    traveller_with(server, settings, Travel::default()).await
}

/// Starts this server, and an agent that uses it.
async fn traveller_with(server: &TestServer, settings: &str, travel: Travel) -> (Human, Travel) {
    let base = serves_mcp(travel.clone()).await;
    server
        .is_configured_with(&format!(
            "[mcp_servers.travel]\nurl = \"{base}/mcp\"\n{settings}\n\
             [agents.traveller]\nmodel = \"scripted:lab\"\ntools = [\"travel/*\"]\n"
        ))
        .await;
    (server.human("traveller").await, travel)
}

fn book() -> String {
    let turn = json!({"echo_tools": true});
    script()
        .calls(call("b1", "travel__book", json!({})))
        .turn(turn)
        .to_string()
}

/// Answers the open question with the value of its only field.
async fn answers(human: &Human, message: &str, content: Value) {
    let open = human.question().await;
    let record = human
        .client()
        .get(&human.path(&format!("/interrupts/{}", open.id())))
        .await
        .ok();
    assert_eq!(record["kind"], "question", "{record}");
    assert_eq!(record["value"]["message"], message, "{record}");
    let reply = human.resolves(&open, json!({"response": content})).await.ok();
    human.run(&reply).finishes().await;
}

async fn a_question_of_a_server_is_an_interrupt_that_outlives_a_restart(server: TestServer) {
    let (alice, _travel) = traveller(&server, "elicitation = true").await;
    alice.says(book()).await;
    server.is_stopped_and_started_again().await;
    answers(
        &alice,
        "Which seat?",
        json!({"action": "accept", "content": {"seat": "4a"}}),
    )
    .await;
    server.is_stopped_and_started_again().await;
    answers(
        &alice,
        "Are you sure?",
        json!({"action": "accept", "content": {"sure": "yes"}}),
    )
    .await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "travel__book: booked: \"4a\", \"yes\"");
}

async fn a_call_asks_one_question_after_the_other(server: TestServer) {
    let (alice, travel) = traveller(&server, "elicitation = true").await;
    alice.says(book()).await;
    answers(
        &alice,
        "Which seat?",
        json!({"action": "accept", "content": {"seat": "4a"}}),
    )
    .await;
    answers(
        &alice,
        "Are you sure?",
        json!({"action": "accept", "content": {"sure": "yes"}}),
    )
    .await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "travel__book: booked: \"4a\", \"yes\"");
    let given = travel.answers.lock().expect("the answers").clone();
    assert_eq!(given[given.len() - 2..], ["\"4a\"", "\"yes\""]);
    let open = alice.questions().await;
    assert!(open.is_empty());
}

async fn a_declined_question_is_an_answer(server: TestServer) {
    let (alice, _travel) = traveller(&server, "elicitation = true").await;
    alice.says(book()).await;
    let open = alice.question().await;
    let wrong = json!({"response": {"action": "accept", "content": {"seat": 4}}});
    assert_eq!(alice.resolves(&open, wrong).await.status, 422);
    answers(&alice, "Which seat?", json!({"action": "decline"})).await;
    answers(&alice, "Are you sure?", json!({"action": "decline"})).await;
    let said = alice.transcript().await;
    assert_eq!(said[2], "travel__book: booked: Some(\"decline\"), Some(\"decline\")");
}

async fn a_server_without_the_setting_cannot_ask(server: TestServer) {
    let (alice, _travel) = traveller(&server, "").await;
    alice.says(book()).await;
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    assert!(said[2].starts_with("travel__book failed:"), "{said:#?}");
}

async fn a_server_that_needs_no_handshake_may_ask_in_a_session_with_the_setting_for_it(server: TestServer) {
    let travel = Travel {
        offers_all_versions: true,
        ..Travel::default()
    };
    let (alice, _travel) = traveller_with(&server, "elicitation = true", travel).await;
    alice.says(book()).await;
    assert!(alice.questions().await.is_empty());
    let said = alice.transcript().await;
    assert!(said[2].starts_with("travel__book failed:"), "{said:#?}");

    server
        .is_reconfigured("elicitation = true\n", "elicitation = true\nhandshake = true\n")
        .await;
    let bob = server.human("traveller").await;
    bob.says(book()).await;
    for (message, field, value) in [("Which seat?", "seat", "4a"), ("Are you sure?", "sure", "yes")] {
        server.is_stopped_and_started_again().await;
        answers(&bob, message, json!({"action": "accept", "content": {field: value}})).await;
    }
    let said = bob.transcript().await;
    assert_eq!(said[2], "travel__book: booked: \"4a\", \"yes\"");
}
