//! Tests of agents that are programs: streams, updates, interrupts and failures.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::json;

use super::{Stage, questions};
use crate::agent::{Agent, AgentKind, AgentProgram, LoopOutcome, RemoteIdentity, SharedState};
use crate::definition::AfterCrash;
use crate::domain::checkpoint::Lane;
use crate::domain::declared_fields::DeclaredFields;
use crate::domain::event::{Chunk, Fact};
use crate::domain::interrupt::{Question, QuestionKind};
use crate::domain::limits::Limits;
use crate::domain::machine::{Failure, MODEL, Plan, RUNNABLE};
use crate::domain::message::Message;
use crate::domain::state::{State, Update};
use crate::tool::{Halt, Runnable, Scope};

/// A program that follows the instructions in its input, like an agent on another server.
struct Obedient;

#[async_trait]
impl Runnable for Obedient {
    fn after_crash(&self) -> AfterCrash {
        AfterCrash::Repeat
    }

    async fn run(&self, scope: &Scope, state: State) -> Result<Update, Halt> {
        let order = state.messages.recent()[0].content.text();
        for text in ["Hel", "lo"] {
            scope.program.stream("a1", Some(Chunk::Text(text.to_owned()))).await;
            if order == "fail" {
                return Err(Failure::new("RemoteAgentError", "gone").into());
            }
        }
        if order == "ask" && scope.answers.is_empty() {
            assert_eq!(scope.program.asked, 0);
            return Err(Halt::Ask(vec![question("one"), question("two")]));
        }
        if order == "ask nothing" {
            return Err(Halt::Ask(vec![]));
        }
        let answers = scope.answers.iter();
        let answers: Vec<String> = answers
            .map(|(question, answer)| format!("{}={answer}", question.key.as_deref().unwrap_or_default()))
            .collect();
        scope
            .program
            .write(Update::messages([Message::ai(answers.join(" "))]))
            .await;
        Ok(Update::messages([Message {
            id: Some("a1".to_owned()),
            ..Message::ai("Hello")
        }]))
    }
}

fn question(key: &str) -> Question {
    Question {
        kind: QuestionKind::Question,
        value: json!("?"),
        schema: json!({}).into(),
        calls: vec![],
        key: Some(key.to_owned()),
        approvers: Default::default(),
        ..Question::default()
    }
}

fn stage(node: &'static str) -> Stage {
    let remote = RemoteIdentity {
        graph_id: "there".to_owned(),
        url: "http://peer".to_owned(),
    };
    Stage::new(Agent {
        name: "main".to_owned(),
        plan: Plan {
            program: Some(node),
            ..Plan::default()
        },
        limits: Limits::default(),
        declared: DeclaredFields::default(),
        is_fork: false,
        shares: SharedState::default(),
        approvers: Default::default(),
        display_text: None,
        initial: vec![],
        kind: AgentKind::Program(Box::new(AgentProgram {
            runnable: Arc::new(Obedient),
            form: None,
            remote: (node == MODEL).then_some(remote),
            context: None,
        })),
    })
}

fn nodes(stage: &Stage) -> Vec<String> {
    stage.store.rows(Lane::Main).into_iter().map(|row| row.node).collect()
}

fn texts(stage: &Stage) -> Vec<String> {
    stage.state().messages.texts()
}

#[tokio::test]
async fn messages_of_a_remote_agent_are_a_checkpoint_before_its_answer() {
    let remote = stage(MODEL);
    assert_eq!(remote.hears("work").await, LoopOutcome::Done);
    assert_eq!(nodes(&remote), ["__start__", "__start__", MODEL, MODEL]);
    assert_eq!(texts(&remote), ["work", "", "Hello"]);
    assert_eq!(remote.store.deltas(), 4, "it begins, two pieces, it ends");
    let plain = stage(RUNNABLE);
    assert_eq!(plain.hears("work").await, LoopOutcome::Done);
    assert_eq!(nodes(&plain), ["__start__", "__start__", RUNNABLE, RUNNABLE]);
    assert_eq!(plain.store.deltas(), 0, "only remote agents stream");
}

#[tokio::test]
async fn a_program_that_asked_twice_continues_with_both_answers() {
    let stage = stage(MODEL);
    let asked = questions(&stage.hears("ask").await);
    assert_eq!(asked.len(), 2);
    let left = questions(&stage.is_answered(&asked[1], json!(2)).await);
    assert_eq!(left, asked[..1]);
    assert_eq!(stage.is_answered(&asked[0], json!(1)).await, LoopOutcome::Done);
    assert_eq!(texts(&stage), ["ask", "one=1 two=2", "Hello"]);
}

#[tokio::test]
async fn the_partial_answer_of_a_failed_remote_agent_is_stored() {
    let stage = stage(MODEL);
    let LoopOutcome::Failed(failure) = stage.hears("fail").await else {
        panic!("it failed")
    };
    assert_eq!(failure.class, "RemoteAgentError");
    let facts = stage.store.facts(Lane::Main);
    let broken = facts.iter().find_map(|fact| match fact {
        Fact::BrokenOff { message, failed: true } => Some(message.content.text()),
        _ => None,
    });
    assert_eq!(broken.as_deref(), Some("Hel"));
}

#[tokio::test]
async fn an_interrupt_without_a_question_fails_the_program() {
    let stage = stage(RUNNABLE);
    let outcome = stage.hears("ask nothing").await;
    let is_failure =
        matches!(&outcome, LoopOutcome::Failed(failure) if failure.message.contains("no client can answer"));
    assert!(is_failure, "{outcome:?}");
    assert_eq!(stage.machine().open_questions().count(), 0);
}
