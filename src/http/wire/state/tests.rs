use std::sync::Arc;

use super::super::history::HistoryEntries;
use super::*;
use crate::db::checkpoints::Visit;
use crate::domain::access::Ownership;
use crate::domain::account::RunQueue;
use crate::domain::checkpoint::Lane;
use crate::domain::checkpoint::{Checkpoint, Entry};
use crate::domain::id::{AssistantId, InterruptId, StepBase};
use crate::domain::interrupt::{Interrupt, InterruptSource, Question, QuestionKind};
use crate::domain::machine::{MODEL, Machine};
use crate::domain::message::{Message, ToolCall};
use crate::domain::run::{Lineage, RunRequest, RunStatus};
use crate::domain::state::{State, Update};
use crate::domain::thread::ThreadStatus;
use crate::domain::time::Timestamp;

/// Drives a machine and keeps each checkpoint as it would be stored.
struct History {
    machine: Machine,
    plan: Plan,
    checkpoints: Vec<Checkpoint>,
}

impl History {
    fn after_input(text: &str) -> Self {
        let mut history = Self {
            machine: Machine::default(),
            plan: Plan::default(),
            checkpoints: vec![],
        };
        let input = Update::messages([Message::human(text)]);
        let [before, after] = history.machine.begin(
            &history.plan,
            input.clone(),
            [CheckpointId::mint(), CheckpointId::mint()],
        );
        history.keep(before, State::default(), Position::default());
        let state = history.machine.state.clone();
        let position = history.machine.position.clone();
        history.keep(after, state, position);
        history
    }

    fn says(mut self, message: Message) -> Self {
        let entry = self
            .machine
            .model_done(&self.plan, message, Update::none(), CheckpointId::mint());
        let state = self.machine.state.clone();
        let position = self.machine.position.clone();
        self.keep(entry, state, position);
        self
    }

    fn keep(&mut self, entry: Entry, state: State, position: Position) {
        let checkpoint = Checkpoint {
            entry,
            thread: thread().id,
            lane: Lane::Main,
            run: Some(run().id),
            seq: 0,
            forks: false,
            position,
            state,
            created_at: Timestamp(0),
        };
        self.checkpoints.insert(0, checkpoint);
    }

    fn page(self) -> Page {
        Page {
            scene: scene(),
            checkpoints: self.checkpoints,
            after: None,
        }
    }
}

/// A page of checkpoints, newest first, and the step after it.
struct Page {
    scene: HistoryContext,
    checkpoints: Vec<Checkpoint>,
    after: Option<Entry>,
}

impl Page {
    /// The page as it is read: oldest first.
    fn moments(&self, budget: usize) -> (Vec<HistoryEntry>, bool) {
        let parts = HistoryFields {
            values: true,
            keys: vec![],
            tasks: true,
        };
        let mut moments = HistoryEntries::new(parts, budget, HashMap::new(), None, Arc::default());
        for checkpoint in self.checkpoints.iter().rev() {
            moments.step(checkpoint);
            moments.state(Some(&checkpoint.state));
        }
        if let Some(after) = &self.after {
            moments.complete_newest(after);
        }
        moments.finish()
    }
}

fn scene() -> HistoryContext {
    let run_notes = HashMap::from([(run().id, run_metadata(&run()))]);
    HistoryContext {
        thread: thread(),
        child: None,
        run_notes,
        stopped_at: None,
        interrupts: vec![],
    }
}

fn thread() -> Thread {
    Thread {
        id: ThreadId(Uuid::from_u128(1)),
        ownership: Ownership::default(),
        status: ThreadStatus::Idle,
        metadata: Object::from_iter([("graph_id".to_owned(), json!("agent"))]),
        config: Object::new(),
        error: None,
        created_at: Timestamp(0),
        updated_at: Timestamp(0),
        state_updated_at: Timestamp(0),
        ttl: None,
        expires_at: None,
    }
}

fn run() -> Run {
    let id = RunId(Uuid::from_u128(2));
    let config = json!({"configurable": {"user": "u8", "nested": {}, "__internal": 1}});
    Run {
        id,
        thread: thread().id,
        assistant: AssistantId::of_graph("agent"),
        lineage: Lineage::root(id, "main-agent"),
        status: RunStatus::Success,
        request: RunRequest {
            config: config.as_object().cloned().unwrap_or_default(),
            ..RunRequest::default()
        },
        metadata: Object::from_iter([("mine".to_owned(), json!("yes"))]),
        error: None,
        attempt: 1,
        created_at: Timestamp(0),
        updated_at: Timestamp(0),
        due_at: Timestamp(0),
        queue: RunQueue::default(),
    }
}

fn view(page: &Page, at: usize) -> Value {
    let entry = page.moments(usize::MAX).0.swap_remove(at);
    super::super::json(&page.scene.view(entry, Some(&Plan::default()), "main-agent"))
}

fn with_call() -> Message {
    let mut message = Message::ai("");
    if let crate::domain::message::Role::Ai { tool_calls, .. } = &mut message.role {
        tool_calls.push(ToolCall::new("call_1", "lookup", Object::new()));
    }
    message
}

fn asked(task: TaskId, status: InterruptState) -> (TaskId, InterruptRecord) {
    let question = Question {
        kind: QuestionKind::Question,
        value: json!("why?"),
        schema: json!({}).into(),
        calls: vec![],
        key: None,
        approvers: Default::default(),
        ..Question::default()
    };
    let interrupt = Interrupt {
        id: InterruptId::of_task(task, 0),
        task,
        asker: InterruptSource::Call("call_1".into()),
        question: Arc::new(question),
        answer: None,
        is_inline: false,
    };
    let asked = InterruptRecord {
        interrupt,
        thread: thread().id,
        run: run().id,
        lane: Lane::Main,
        agent: "main-agent".into(),
        path: vec![],
        task_call_id: None,
        seq: 1,
        ordinal: 0,
        status,
        resolution: None,
        resumed_by: None,
        created_at: Timestamp(0),
        resolved_at: None,
    };
    (task, asked)
}

#[test]
fn an_empty_thread_has_an_empty_state() {
    let shown = super::super::json(&StateView::empty(None));
    let wanted = json!({"values": {}, "next": [], "tasks": [], "metadata": null, "created_at": null, "checkpoint": null,
        "parent_checkpoint": null, "interrupts": [], "checkpoint_id": null, "parent_checkpoint_id": null});
    assert_eq!(shown, wanted);
}

#[test]
fn the_input_is_the_result_of_the_first_task() {
    let scene = History::after_input("hello").says(Message::ai("hi")).page();
    let first = view(&scene, 2);
    assert_eq!(first["next"], json!(["__start__"]));
    assert_eq!(first["tasks"][0]["path"], json!(["__pregel_pull", "__start__"]));
    assert_eq!(first["tasks"][0]["result"]["messages"][0]["content"], "hello");
    assert_eq!(first["metadata"]["source"], "input");
    assert_eq!(first["metadata"]["step"], -1);
    assert_eq!(first["values"], json!({"messages": [], "files": {}}));
    assert_eq!(first["parent_checkpoint"], Value::Null);
}

#[test]
fn a_finished_task_shows_its_writes_and_an_open_one_nothing() {
    let scene = History::after_input("hello").says(with_call()).page();
    let finished = view(&scene, 1);
    assert_eq!(finished["next"], json!([MODEL]));
    assert_eq!(finished["tasks"][0]["result"]["messages"][0]["type"], "ai");
    let open = view(&scene, 0);
    assert_eq!(open["next"], json!([TOOLS]));
    assert_eq!(open["tasks"][0]["path"], json!(["__pregel_push", 0, false]));
    assert_eq!(open["tasks"][0]["result"], Value::Null);
}

#[test]
fn tasks_that_a_cancelled_run_left_open_have_its_error() {
    let mut page = History::after_input("hello").says(with_call()).page();
    page.scene.thread.error = Some(Failure::cancelled());
    assert_eq!(view(&page, 0)["tasks"][0]["error"], Value::Null, "another run went on");
    page.scene.stopped_at = Some(page.checkpoints[0].entry.id);
    let wanted = "UserInterrupt(\"The run was cancelled by request.\")";
    assert_eq!(view(&page, 0)["tasks"][0]["error"], wanted);
    assert_eq!(
        view(&page, 1)["tasks"][0]["error"],
        Value::Null,
        "this step is completed"
    );
    let task = TaskId(serde_json::from_value(view(&page, 0)["tasks"][0]["id"].clone()).unwrap());
    page.scene.interrupts = vec![asked(task, InterruptState::Pending)];
    assert_eq!(
        view(&page, 0)["tasks"][0]["error"],
        Value::Null,
        "it goes on with the answer"
    );
}

#[test]
fn the_step_after_the_page_is_known_too() {
    let whole = History::after_input("hello").says(Message::ai("hi")).page();
    let mut page = History::after_input("x").page();
    page.checkpoints = whole.checkpoints[1..].to_vec();
    page.after = Some(whole.checkpoints[0].entry.clone());
    assert_eq!(view(&page, 0), view(&whole, 1));
    assert_ne!(view(&page, 0)["tasks"][0]["result"], Value::Null);
}

#[test]
fn a_page_keeps_the_newest_that_fit_and_at_least_one() {
    let page = History::after_input("hello").says(Message::ai("hi")).page();
    let (whole, is_cut) = page.moments(usize::MAX);
    assert_eq!(whole.len(), 3);
    assert!(!is_cut);
    let newest = whole[0].origin.id;
    let sizes: Vec<usize> = whole.iter().map(|entry| entry.bytes).collect();
    let (two, is_cut) = page.moments(sizes[0] + sizes[1]);
    assert_eq!(two.len(), 2);
    assert!(is_cut);
    assert_eq!(two[0].origin.id, newest);
    let (one, is_cut) = page.moments(1);
    assert_eq!(one.len(), 1);
    assert!(is_cut);
    assert_eq!(one[0].origin.id, newest);
}

#[test]
fn metadata_contains_that_of_the_run_and_its_scalar_settings() {
    let scene = History::after_input("hello").page();
    let metadata = &view(&scene, 0)["metadata"];
    assert_eq!(metadata["mine"], "yes");
    assert_eq!(metadata["user"], "u8");
    assert_eq!(metadata.get("nested"), None);
    assert_eq!(metadata.get("__internal"), None);
    assert_eq!(metadata["graph_id"], "agent");
    assert_eq!(metadata["lc_agent_name"], "main-agent");
    assert_eq!(metadata["run_attempt"], 1);
}

#[test]
fn an_interrupt_is_shown_with_its_task_and_at_the_top() {
    let mut scene = History::after_input("hello").says(with_call()).page();
    let task = TaskId::of_step(Some(scene.checkpoints[0].entry.id), TOOLS, 0);
    scene.scene.interrupts = vec![asked(task, InterruptState::Pending)];
    let shown = view(&scene, 0);
    assert_eq!(shown["tasks"][0]["interrupts"][0]["value"], "why?");
    assert_eq!(shown["interrupts"], shown["tasks"][0]["interrupts"]);
    scene.scene.interrupts = vec![asked(task, InterruptState::Resolved)];
    assert_eq!(view(&scene, 0)["interrupts"], json!([]));
}

/// Returns how many interrupts of subagents the calls of a step show that ends at the number `until` of the log. Of the calls
/// the first one has delegated, and the tool of the second one is called again. The interrupts have the number 1.
fn asked_in_a_step_until(until: i64) -> Vec<usize> {
    let page = History::after_input("hello").says(with_call()).page();
    let base = StepBase::after(Some(page.checkpoints[0].entry.id), None);
    let mut own = asked(base.task(TOOLS, 0), InterruptState::Resolved);
    let mut again = asked(TaskId::of_delegation(base.task(TOOLS, 1), 3), InterruptState::Resolved);
    for (_, record) in [&mut own, &mut again] {
        record.lane = Lane::Child(run().id);
    }
    let mut entry = page.moments(usize::MAX).0.swap_remove(0);
    entry.completed = Some(CompletedStep {
        node: TOOLS.to_owned(),
        base,
        results: vec![None, None, None],
        until,
    });
    let scene = HistoryContext {
        interrupts: vec![own, again],
        ..page.scene
    };
    let scene = scene.with_calls_of(std::slice::from_ref(&entry));
    let shown = super::super::json(&scene.view(entry, Some(&Plan::default()), "main-agent"));
    let tasks = shown["tasks"].as_array().expect("tasks").iter();
    tasks
        .map(|task| task["interrupts"].as_array().map_or(0, Vec::len))
        .collect()
}

#[test]
fn an_interrupt_of_a_subagent_is_shown_with_the_call_that_has_delegated_again_and_again() {
    assert_eq!(asked_in_a_step_until(1), [1, 1, 0]);
    assert_eq!(asked_in_a_step_until(i64::MAX), [1, 1, 0]);
}

#[test]
fn interrupts_that_were_raised_after_a_step_are_not_looked_for_in_it() {
    assert_eq!(asked_in_a_step_until(0), [1, 0, 0]);
}
