//! Programs of LangGraph that have an agent as a node (`RemoteGraph`). A program that continues after it has stopped sends
//! the input of the node again, with what LangGraph reserves for itself in `configurable`; then the agent continues, too.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::actors::{Human, Run};
use crate::support::{
    TestServer, approval, continuation, lookup, mail, on_both_engines, script, task, transcript, two_mailers,
};

/// The node of a program.
struct Node {
    alice: Human,
    input: Value,
}

impl Node {
    async fn new(server: &TestServer, text: impl ToString) -> Self {
        let message = json!({"role": "user", "content": text.to_string(), "id": "asked"});
        Self {
            alice: server.human("agent").await,
            input: json!({"messages": [message]}),
        }
    }

    /// Calls the agent, and returns the values afterwards. `more` are further fields of the request.
    async fn calls(&self, more: Value) -> Value {
        let mut body = json!({"assistant_id": "agent", "input": self.input, "if_not_exists": "create"});
        for (name, value) in more.as_object().into_iter().flatten() {
            body[name] = value.clone();
        }
        self.alice
            .client()
            .post(&self.alice.path("/runs/wait"), body)
            .await
            .ok()
    }

    /// Calls the agent as [`Node::continues`] does, without a wait for its end. The program names `node`, if it is not empty.
    async fn begins(&self, node: &str, answers: Value) -> Run {
        let mut config = continuation(&answers);
        if !node.is_empty() {
            let task = "296c042a-9c07-d7fa-00fb-ac30c0102801";
            config["metadata"] = json!({"langgraph_checkpoint_ns": format!("{node}:{task}")});
        }
        let body = json!({"assistant_id": "agent", "input": self.input, "if_not_exists": "create", "config": config});
        self.alice.starts(body).await
    }

    /// Returns another node of the same program, with this input.
    fn beside(&self, input: Value) -> Self {
        Self {
            alice: self.alice.clone(),
            input,
        }
    }

    /// Returns what people have said on the thread.
    async fn said(&self) -> Vec<String> {
        let said = self.alice.transcript().await;
        said.into_iter().filter(|line| line.starts_with("human: ")).collect()
    }

    /// Calls the agent as LangGraph does when the program continues, with the answers that the program was given.
    async fn continues(&self, answers: Value) -> Value {
        self.calls(json!({"config": continuation(&answers)})).await
    }
}

/// Returns an input with this message, which has no id.
fn human(text: impl ToString) -> Value {
    json!({"messages": [{"role": "user", "content": text.to_string()}]})
}

on_both_engines! {
    an_answer_that_a_program_was_given_is_that_of_its_agent,
    a_program_that_follows_the_thread_continues_its_agent,
    a_program_without_an_answer_is_asked_again,
    the_answers_to_several_questions_may_come_one_after_the_other,
    an_agent_that_stopped_at_a_breakpoint_goes_on_with_its_program,
    an_agent_that_has_not_stopped_takes_the_input_of_its_program,
    a_node_beside_one_that_is_at_work_waits_with_its_input,
    nodes_that_the_program_names_may_have_the_same_input,
    a_node_that_calls_again_while_its_agent_is_at_work_is_not_heard_twice,
    a_node_does_not_take_the_answer_to_the_question_of_another_one,
    a_node_continues_with_a_program_that_has_branched_off,
    what_langgraph_reserves_for_itself_is_no_context,
    a_program_reads_the_state_of_its_agent_in_its_own_namespace,
}

async fn an_answer_that_a_program_was_given_is_that_of_its_agent(server: TestServer) {
    let mailer = script().calls(mail("m1", "bob")).says("sent");
    let asked_below = script().calls(task("t1", "mailer", &mailer)).says("it was sent");
    for (text, end) in [(mailer, "ai: sent"), (asked_below, "ai: it was sent")] {
        let sent = server.tools.calls_of("send_email").len();
        let node = Node::new(&server, text).await;
        let values = node.calls(json!({})).await;
        let id = values["__interrupt__"][0]["id"].as_str().unwrap().to_owned();
        // Questions of other nodes are not the agent's.
        let other = "0".repeat(32);
        let values = node.continues(json!({&id: approval(), other: "yes"})).await;
        let said = transcript(&values);
        assert_eq!(said.last().unwrap(), end);
        assert_eq!(
            said.iter().filter(|line| line.starts_with("human: ")).count(),
            1,
            "{said:?}"
        );
        assert_eq!(server.tools.calls_of("send_email").len(), sent + 1);
        assert_eq!(node.alice.status().await, "idle");
    }
}

async fn a_program_that_follows_the_thread_continues_its_agent(server: TestServer) {
    let node = Node::new(&server, script().calls(mail("m1", "bob")).says("sent")).await;
    let values = node.calls(json!({})).await;
    let id = values["__interrupt__"][0]["id"].as_str().unwrap();
    let config = continuation(&json!({id: approval()}));
    let params = json!({"assistant_id": "agent", "input": node.input, "config": config});
    let command = json!({"id": 1, "method": "run.start", "params": params});
    let answer = server.client().post(&node.alice.path("/commands"), command).await.ok();
    let run = answer["result"]["run_id"].as_str().unwrap();
    node.alice.run_of_id(run).finishes().await;
    let said = node.alice.transcript().await;
    assert_eq!(said.last().unwrap(), "ai: sent");
    assert_eq!(
        said.iter().filter(|line| line.starts_with("human: ")).count(),
        1,
        "{said:?}"
    );
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn a_program_without_an_answer_is_asked_again(server: TestServer) {
    let node = Node::new(&server, script().calls(mail("m1", "bob")).says("sent")).await;
    let first = node.calls(json!({})).await;
    for answers in [Value::Null, json!({}), json!({"0".repeat(32): "yes"})] {
        let again = node.continues(answers).await;
        assert_eq!(again["__interrupt__"][0]["id"], first["__interrupt__"][0]["id"]);
        assert_eq!(transcript(&again), transcript(&first));
    }
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    assert_eq!(node.alice.status().await, "interrupted");
}

async fn the_answers_to_several_questions_may_come_one_after_the_other(server: TestServer) {
    let node = Node::new(&server, script().calls_all(two_mailers()).says("both were sent")).await;
    node.calls(json!({})).await;
    let questions = node.alice.questions().await;
    assert_eq!(questions.len(), 2);
    let values = node.continues(json!({questions[0].id(): approval()})).await;
    assert_eq!(values["__interrupt__"].as_array().unwrap().len(), 1);
    assert_eq!(values["__interrupt__"][0]["id"], questions[1].id());
    let values = node.continues(json!({questions[1].id(): approval()})).await;
    assert_eq!(transcript(&values).last().unwrap(), "ai: both were sent");
    assert_eq!(server.tools.calls_of("send_email").len(), 2);
}

async fn an_agent_that_stopped_at_a_breakpoint_goes_on_with_its_program(server: TestServer) {
    let node = Node::new(&server, script().calls(lookup("c1", "x")).says("it is x")).await;
    node.calls(json!({"interrupt_before": ["tools"]})).await;
    assert_eq!(node.alice.status().await, "interrupted");
    let values = node.continues(json!({})).await;
    let said = transcript(&values);
    assert_eq!(said.last().unwrap(), "ai: it is x");
    assert_eq!(said.len(), 4, "{said:?}");
    assert_eq!(server.tools.calls_of("lookup").len(), 1);
}

async fn an_agent_that_has_not_stopped_takes_the_input_of_its_program(server: TestServer) {
    let node = Node::new(&server, "one").await;
    // The program has stopped at another node, before it called the agent for the first time.
    let values = node.continues(json!({"0".repeat(32): "yes"})).await;
    assert_eq!(transcript(&values), ["human: one", "ai: echo: one"]);
    let input = json!({"messages": [{"role": "user", "content": "two"}]});
    let node = Node { input, ..node };
    let values = node.continues(json!({})).await;
    assert_eq!(transcript(&values)[2..], ["human: two", "ai: echo: two"]);
}

async fn a_node_beside_one_that_is_at_work_waits_with_its_input(server: TestServer) {
    server.tools.hold("lookup");
    let one = Node::new(&server, script().calls(lookup("c1", "x")).says("it is x")).await;
    let first = one.begins("", json!({})).await;
    server.tools.called("lookup", 1).await;
    let other = one.beside(human("two"));
    let second = other.begins("", json!({})).await;
    assert_eq!(second.status().await, "pending");
    server.tools.let_go("lookup");
    first.finishes().await;
    second.finishes().await;
    assert_eq!(other.alice.transcript().await[4..], ["human: two", "ai: echo: two"]);
}

async fn nodes_that_the_program_names_may_have_the_same_input(server: TestServer) {
    server.tools.hold("lookup");
    let text = script().calls(lookup("c1", "x")).says("it is x");
    let node = Node::new(&server, &text).await.beside(human(&text));
    let first = node.begins("one", json!({})).await;
    server.tools.called("lookup", 1).await;
    let second = node.begins("other", json!({})).await;
    // The input of the second one waits, and is not heard twice either.
    let again = node.begins("other", json!({})).await;
    server.tools.let_go("lookup");
    for run in [first, second, again] {
        run.finishes().await;
    }
    assert_eq!(node.said().await.len(), 2);
    assert_eq!(server.tools.calls_of("lookup").len(), 2);
}

async fn a_node_that_calls_again_while_its_agent_is_at_work_is_not_heard_twice(server: TestServer) {
    for name in ["", "one"] {
        server.tools.hold("lookup");
        let before = server.tools.calls_of("lookup").len();
        let node = Node::new(&server, script().calls(lookup("c1", "x")).says("it is x")).await;
        let first = node.begins(name, json!({})).await;
        server.tools.called("lookup", before + 1).await;
        let again = node.begins(name, json!({})).await;
        server.tools.let_go("lookup");
        first.finishes().await;
        again.finishes().await;
        assert_eq!(node.said().await.len(), 1);
        assert_eq!(node.alice.transcript().await.last().unwrap(), "ai: it is x");
        assert_eq!(server.tools.calls_of("lookup").len(), before + 1);
    }
}

async fn a_node_does_not_take_the_answer_to_the_question_of_another_one(server: TestServer) {
    let text = script().calls(mail("m1", "bob")).says("sent");
    let one = Node::new(&server, &text).await.beside(human(&text));
    one.begins("one", json!({})).await.finishes().await;
    let question = one.alice.question().await;
    let other = one.beside(human("two"));
    let answers = json!({question.id(): approval()});
    other.begins("other", answers.clone()).await.finishes().await;
    assert_eq!(other.said().await.last().unwrap(), "human: two");
    assert_eq!(server.tools.calls_of("send_email"), Vec::<Value>::new());
    // The message has withdrawn the question. The node that asked calls its agent anew.
    one.begins("one", answers).await.finishes().await;
    assert_ne!(one.alice.question().await.id(), question.id());
}

async fn a_node_continues_with_a_program_that_has_branched_off(server: TestServer) {
    let node = Node::new(&server, script().calls(mail("m1", "bob")).says("sent")).await;
    node.begins("one", json!({})).await.finishes().await;
    let question = node.alice.question().await;
    // The node has another task there.
    let answers = json!({question.id(): approval()});
    node.begins("one:other", answers).await.finishes().await;
    assert_eq!(node.alice.transcript().await.last().unwrap(), "ai: sent");
    assert_eq!(node.said().await.len(), 1);
    assert_eq!(server.tools.calls_of("send_email").len(), 1);
}

async fn what_langgraph_reserves_for_itself_is_no_context(server: TestServer) {
    let node = Node::new(&server, "hello").await;
    let reserved = json!({"__pregel_resuming": true, "__pregel_task_id": "x", "who": "me"});
    node.calls(json!({"config": {"configurable": reserved}})).await;
    // Only settings that are left in `configurable` exclude a context.
    let reserved = json!({"__pregel_resuming": true});
    node.calls(json!({"config": {"configurable": reserved}, "context": {"who": "you"}}))
        .await;
    let contexts = node
        .alice
        .runs()
        .await
        .into_iter()
        .map(|run| run["kwargs"]["context"].clone());
    assert_eq!(
        contexts.collect::<Vec<_>>(),
        [json!({"who": "you"}), json!({"who": "me"})]
    );
}

async fn a_program_reads_the_state_of_its_agent_in_its_own_namespace(server: TestServer) {
    let client = server.client();
    let mailer = script().calls(mail("m1", "bob")).says("sent");
    let node = Node::new(
        &server,
        script().calls(task("t1", "mailer", &mailer)).says("it was sent"),
    )
    .await;
    node.calls(json!({})).await;
    let state = node.alice.state().await;
    let at = |namespace: String| json!({"checkpoint": {"checkpoint_ns": namespace}});
    let outer = format!("remote:{}", Uuid::now_v7());
    let path = node.alice.path("/state/checkpoint");
    assert_eq!(client.post(&path, at(outer.clone())).await.ok(), state);
    let history = client.post(&node.alice.path("/history"), at(outer.clone())).await.ok();
    assert_eq!(history[0]["checkpoint_id"], state["checkpoint_id"]);
    let task = state["tasks"][0]["id"].as_str().unwrap();
    let below = client.post(&path, at(format!("{outer}|tools:{task}"))).await.ok();
    assert_eq!(below["checkpoint"]["checkpoint_ns"], format!("tools:{task}"));
    assert_eq!(below["next"], json!(["HumanInTheLoopMiddleware.after_model"]));
}
