//! The run that is disturbed, and its outcome, which has to be that of an undisturbed run.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::reviewer::{Progress, REJECTION, Reviewer};
use crate::support::client::Disconnected;
use crate::support::{call, script, task};

/// Part of the result of a call that was started before a crash and must not be repeated.
const UNKNOWN: &str = "its outcome is unknown";

/// The facts that clients can read after the run, with `MARK` for the mark of the experiment.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// The messages.
    pub(super) messages: Vec<Value>,
    /// The files.
    pub(super) files: Value,
    /// The steps of the main agent's history.
    pub(super) steps: Vec<Value>,
    /// The child runs: name, causing call, depth, status and input.
    pub(super) children: Vec<Value>,
    /// The interrupts, without those about unknown outcomes.
    pub(super) interrupts: Vec<Value>,
    /// The number of calls that the tools received, by tool and id of the call.
    pub(super) effects: BTreeMap<(String, String), usize>,
}

/// Returns the message that starts an experiment. `mark` is in every id, so that no two experiments share one.
pub(super) fn message(mark: &str) -> String {
    let id = |name: &str| format!("{mark}_{name}");
    let act = |name: &str, tool: &str, ms: u64| call(&id(name), tool, json!({"note": name, "ms": ms}));
    let write = |name: &str, path: &str| call(&id(name), "write_file", json!({"file_path": path, "content": name}));
    let clerk = script()
        .calls_all([
            act("clerk_record", "record", 15),
            act("clerk_charge", "charge", 30),
            act("clerk_notify", "notify", 30),
        ])
        .calls_all([write("clerk_file", "/clerk.md"), act("clerk_late", "charge", 0)])
        .turn(json!({"echo_last_tool": true}));
    let mailer = script()
        .calls(act("mailer_record", "record", 0))
        .calls(act("mailer_send", "send", 30))
        .calls_all([write("mailer_file", "/mail.md"), act("mailer_notify", "notify", 10)])
        .turn(json!({"echo_last_tool": true}));
    let treasurer = script()
        .calls_all([write("plan", "/plan.md"), act("open", "record", 0)])
        .calls_all([
            task(&id("clerk"), "clerk", clerk),
            task(&id("mailer"), "mailer", mailer),
            act("beside", "record", 20),
        ])
        .turn(json!({"text": "Now I pay.", "tool_calls": [act("pay", "pay", 20)], "delay_ms": 3}))
        .turn(json!({"text": "All of it is done.", "delay_ms": 3}));
    treasurer.to_string()
}

/// Reads the outcome of a run.
pub(super) async fn outcome(reviewer: &Reviewer, mark: &str) -> Result<Outcome, Disconnected> {
    let state = reviewer.get("/state").await?;
    let history = reviewer.post("/history", &json!({"limit": 1000})).await?.ok();
    let steps = history.as_array().expect("a list").iter().rev().map(step).collect();
    let runs = reviewer.get("/runs?limit=1000").await?;
    let mut children = vec![];
    for run in runs.as_array().expect("a list") {
        let found = reviewer
            .get(&format!("/runs/{}/children", run["run_id"].as_str().expect("an id")))
            .await?;
        children.extend(found.as_array().expect("a list").iter().map(child));
    }
    let interrupts = reviewer.get("/interrupts").await?;
    let interrupts = interrupts["interrupts"].as_array().expect("a list").iter();
    let interrupts = interrupts
        .filter(|question| question["kind"] != "unknown_outcome")
        .map(question)
        .collect();
    let files = state["values"]["files"].as_object().expect("files").iter();
    let files: Value = files
        .map(|(path, file)| (path.clone(), file["content"].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into();
    Ok(Outcome {
        messages: unmarked(
            state["values"]["messages"]
                .as_array()
                .expect("a list")
                .iter()
                .map(shown_message)
                .collect(),
            mark,
        ),
        files,
        steps,
        children: unmarked(children, mark),
        interrupts: unmarked(interrupts, mark),
        effects: BTreeMap::new(),
    })
}

/// Counts the calls that the tools received, by tool and id of the call.
pub(super) fn counted(calls: &[Value], mark: &str) -> BTreeMap<(String, String), usize> {
    let mut counted = BTreeMap::new();
    for call in calls {
        let tool = call["name"].as_str().expect("a name").to_owned();
        let key = call["key"].as_str().expect("a key").replace(mark, "MARK");
        *counted.entry((tool, key)).or_default() += 1;
    }
    counted
}

fn unmarked(values: Vec<Value>, mark: &str) -> Vec<Value> {
    let mut values: Vec<Value> = values
        .into_iter()
        .map(|value| serde_json::from_str(&value.to_string().replace(mark, "MARK")).unwrap())
        .collect();
    // Only child runs and interrupts have no order; sorting messages would hide mistakes.
    if values.first().is_some_and(|value| value["type"].is_null()) {
        values.sort_by_key(Value::to_string);
    }
    values
}

fn shown_message(message: &Value) -> Value {
    json!({
        "type": message["type"],
        "content": message["content"],
        "name": message["name"],
        "tool_calls": message["tool_calls"],
        "tool_call_id": message["tool_call_id"],
        "status": message["status"],
    })
}

fn step(checkpoint: &Value) -> Value {
    let messages = checkpoint["values"]["messages"].as_array().map_or(0, Vec::len);
    json!([
        checkpoint["metadata"]["step"],
        checkpoint["metadata"]["source"],
        checkpoint["next"],
        messages
    ])
}

fn child(run: &Value) -> Value {
    let mut shown = run.clone();
    // A model call that was cut off is repeated and counted again, and times differ.
    for field in [
        "run_id",
        "thread_id",
        "assistant_id",
        "root_run_id",
        "parent_run_id",
        "created_at",
        "updated_at",
        "usage",
    ] {
        shown.as_object_mut().expect("an object").remove(field);
    }
    for (name, value) in shown.as_object_mut().expect("an object") {
        if name.ends_with("_id") && name != "tool_call_id" || name.contains("checkpoint") || name == "namespace" {
            *value = Value::Null;
        }
    }
    shown
}

fn question(interrupt: &Value) -> Value {
    let requests = interrupt["value"]["action_requests"].clone();
    json!([
        interrupt["kind"],
        interrupt["status"],
        interrupt["agent_path"],
        requests,
        interrupt["resolution"]["answer"]
    ])
}

/// Returns every difference between a disturbed run and the undisturbed one that the reviewer's decisions do not
/// explain.
pub(super) async fn differences(
    reviewer: &Reviewer,
    mark: &str,
    calls: &[Value],
    right: &Outcome,
) -> Result<Vec<String>, Disconnected> {
    let mut wrong = vec![];
    let mut complain = |is_wrong: bool, what: String| {
        if is_wrong {
            wrong.push(what);
        }
    };
    let thread = reviewer.get("").await?;
    complain(
        thread["status"] != "idle",
        format!("the thread is {}", thread["status"]),
    );
    let state = reviewer.get("/state").await?;
    complain(
        state["next"] != json!([]),
        format!("something is left to do: {}", state["next"]),
    );
    for run in reviewer.get("/runs?limit=1000").await?.as_array().expect("a list") {
        complain(run["status"] != "success", format!("a run is {}: {run}", run["status"]));
    }
    for interrupt in reviewer.get("/interrupts").await?["interrupts"]
        .as_array()
        .expect("a list")
    {
        complain(
            interrupt["status"] != "resolved",
            format!("an interrupt is {}: {interrupt}", interrupt["status"]),
        );
    }
    let found = outcome(reviewer, mark).await?;
    let decided = Decided::of(reviewer, mark);
    complain(
        found.messages.len() != right.messages.len(),
        format!("{} messages instead of {}", found.messages.len(), right.messages.len()),
    );
    for (found, right) in found.messages.iter().zip(&right.messages) {
        let is_wrong = found != right && !decided.explains(found, right);
        complain(is_wrong, format!("the message {found} should be {right}"));
    }
    complain(
        found.files != right.files,
        format!("the files are {} instead of {}", found.files, right.files),
    );
    complain(
        found.steps != right.steps,
        format!("the steps are {:?} instead of {:?}", found.steps, right.steps),
    );
    complain(
        found.children != right.children,
        format!("the children are {:?} instead of {:?}", found.children, right.children),
    );
    complain(
        found.interrupts != right.interrupts,
        format!(
            "the interrupts are {:?} instead of {:?}",
            found.interrupts, right.interrupts
        ),
    );
    let counted = counted(calls, mark);
    let keys = |effects: &BTreeMap<(String, String), usize>| effects.keys().cloned().collect::<BTreeSet<_>>();
    for (tool, key) in keys(&counted).difference(&keys(&right.effects)) {
        complain(
            true,
            format!("{tool} was called for {key}, which is no call of the run"),
        );
    }
    for (tool, key) in right.effects.keys() {
        let times = counted.get(&(tool.clone(), key.clone())).copied().unwrap_or(0);
        let fault = decided.fault(tool, key, times);
        complain(
            fault.is_some(),
            format!("{tool} for {key}: {}", fault.unwrap_or_default()),
        );
    }
    Ok(wrong)
}

/// The reviewer's decisions about calls with an unknown outcome.
struct Decided {
    /// By id of the call: the number of approved repetitions, and the last decision.
    calls: BTreeMap<String, (usize, &'static str)>,
}

impl Decided {
    fn of(reviewer: &Reviewer, mark: &str) -> Self {
        let mut calls: BTreeMap<String, (usize, &'static str)> = BTreeMap::new();
        for decision in &reviewer.decisions {
            let decided = calls.entry(decision.call.replace(mark, "MARK")).or_default();
            decided.0 += usize::from(decision.kind == "approve");
            decided.1 = decision.kind;
        }
        Self { calls }
    }

    /// Returns whether the decisions explain a different result. The answer of a subagent is the result of its last
    /// tool; for a call with an unknown outcome that is what the reviewer or the server gave as its result.
    fn explains(&self, found: &Value, right: &Value) -> bool {
        let content = found["content"].as_str().unwrap_or_default();
        let is_explained = match right["tool_call_id"].as_str() {
            Some("MARK_clerk") => {
                let rejected = self
                    .calls
                    .get("MARK_clerk_late")
                    .is_some_and(|(_, last)| *last == "reject");
                rejected && content.contains(REJECTION)
            }
            Some("MARK_mailer") => content.contains(UNKNOWN),
            _ => false,
        };
        let mut same = found.clone();
        same["content"] = right["content"].clone();
        is_explained && same == *right
    }

    /// Returns what is wrong with this number of effects of a call.
    fn fault(&self, tool: &str, key: &str, times: usize) -> Option<String> {
        let (approved, last) = self.calls.get(key).copied().unwrap_or_default();
        match tool {
            // Repetitions do no harm: they have the key of the first call.
            "record" | "pay" => (times == 0).then(|| "was never called".to_owned()),
            "charge" | "send" => {
                let most = 1 + approved;
                let least = usize::from(last != "reject");
                (times > most || times < least)
                    .then(|| format!("{times} effects, but {approved} repetitions allowed, then {last:?}"))
            }
            _ => (times > 1).then(|| format!("{times} effects of a call that is never repeated")),
        }
    }
}

/// The measurements of the undisturbed run.
#[derive(Debug, Clone)]
pub(super) struct Measure {
    /// The outcome.
    pub(super) outcome: Outcome,
    /// The duration.
    pub(super) took: std::time::Duration,
    /// The number of calls that the tools received.
    pub(super) called: usize,
    /// The number of calls that the tools answered.
    pub(super) answered: usize,
    /// The progress of the reviewer.
    pub(super) progress: Progress,
}
