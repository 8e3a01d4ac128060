//! The run that is disturbed, and what has to come of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::client::{Client, Gone, REFUSED};
use super::effects::{Effect, Progress};
use crate::support::{call, script, task};

/// What is said about a call that was begun before a crash and is not to be repeated.
const UNKNOWN: &str = "its outcome is unknown";

/// How the story ended: what everybody can read afterwards, with the marks of this one experiment taken out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Outcome {
    /// What was said, a message each.
    pub(super) messages: Vec<Value>,
    /// The files.
    pub(super) files: Value,
    /// The steps of the main agent's history.
    pub(super) steps: Vec<Value>,
    /// The children: name, causing call, depth, status, and what was said to them.
    pub(super) children: Vec<Value>,
    /// What was asked, without the questions about crashes.
    pub(super) asked: Vec<Value>,
    /// How often what was done: by tool and call.
    pub(super) effects: BTreeMap<(String, String), usize>,
}

/// The wish of one experiment. `mark` is in every id, so that no two experiments share one.
pub(super) fn wish(mark: &str) -> String {
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
    let chief = script()
        .calls_all([write("plan", "/plan.md"), act("open", "record", 0)])
        .calls_all([
            task(&id("clerk"), "clerk", clerk),
            task(&id("mailer"), "mailer", mailer),
            act("beside", "record", 20),
        ])
        .turn(json!({"text": "Now I pay.", "tool_calls": [act("pay", "pay", 20)], "delay_ms": 3}))
        .turn(json!({"text": "All of it is done.", "delay_ms": 3}));
    chief.to_string()
}

/// Reads how the story ended.
pub(super) async fn outcome(client: &Client, mark: &str) -> Result<Outcome, Gone> {
    let state = client.get("/state").await?;
    let (_, history) = client.post("/history", &json!({"limit": 1000})).await?;
    let steps = history.as_array().expect("a list").iter().rev().map(step).collect();
    let runs = client.get("/runs?limit=1000").await?;
    let mut children = vec![];
    for run in runs.as_array().expect("a list") {
        let found = client
            .get(&format!("/runs/{}/children", run["run_id"].as_str().expect("an id")))
            .await?;
        children.extend(found.as_array().expect("a list").iter().map(child));
    }
    let asked = client.get("/interrupts").await?;
    let asked = asked["interrupts"].as_array().expect("a list").iter();
    let asked = asked
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
                .map(message)
                .collect(),
            mark,
        ),
        files,
        steps,
        children: unmarked(children, mark),
        asked: unmarked(asked, mark),
        effects: BTreeMap::new(),
    })
}

/// What the tools saw.
pub(super) fn counted(effects: &[Effect], mark: &str) -> BTreeMap<(String, String), usize> {
    let mut counted = BTreeMap::new();
    for effect in effects {
        *counted
            .entry((effect.tool.clone(), effect.key.replace(mark, "MARK")))
            .or_default() += 1;
    }
    counted
}

fn unmarked(values: Vec<Value>, mark: &str) -> Vec<Value> {
    let mut values: Vec<Value> = values
        .into_iter()
        .map(|value| serde_json::from_str(&value.to_string().replace(mark, "MARK")).unwrap())
        .collect();
    // Only children and questions have no order of their own; sorting messages would hide mistakes.
    if values.first().is_some_and(|value| value["type"].is_null()) {
        values.sort_by_key(Value::to_string);
    }
    values
}

fn message(message: &Value) -> Value {
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
    // A question to the model that was cut off is asked, and counted, again; and times differ.
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

fn question(asked: &Value) -> Value {
    let requests = asked["value"]["action_requests"].clone();
    json!([
        asked["kind"],
        asked["status"],
        asked["agent_path"],
        requests,
        asked["resolution"]["answer"]
    ])
}

/// Everything that is wrong with how the story ended, compared with the undisturbed one.
pub(super) async fn complaints(
    client: &Client,
    mark: &str,
    effects: &[Effect],
    right: &Outcome,
) -> Result<Vec<String>, Gone> {
    let mut wrong = vec![];
    let mut complain = |is_wrong: bool, what: String| {
        if is_wrong {
            wrong.push(what);
        }
    };
    let thread = client.get("").await?;
    complain(
        thread["status"] != "idle",
        format!("the thread is {}", thread["status"]),
    );
    let state = client.get("/state").await?;
    complain(
        state["next"] != json!([]),
        format!("something is left to do: {}", state["next"]),
    );
    for run in client.get("/runs?limit=1000").await?.as_array().expect("a list") {
        complain(run["status"] != "success", format!("a run is {}: {run}", run["status"]));
    }
    for asked in client.get("/interrupts").await?["interrupts"]
        .as_array()
        .expect("a list")
    {
        complain(
            asked["status"] != "resolved",
            format!("a question is {}: {asked}", asked["status"]),
        );
    }
    let found = outcome(client, mark).await?;
    let ends = Endings::of(client, mark);
    complain(
        found.messages.len() != right.messages.len(),
        format!("{} messages instead of {}", found.messages.len(), right.messages.len()),
    );
    for (found, right) in found.messages.iter().zip(&right.messages) {
        let is_wrong = found != right && !ends.explain(found, right);
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
        found.asked != right.asked,
        format!("asked was {:?} instead of {:?}", found.asked, right.asked),
    );
    let counted = counted(effects, mark);
    let keys = |effects: &BTreeMap<(String, String), usize>| effects.keys().cloned().collect::<BTreeSet<_>>();
    for (tool, key) in keys(&counted).difference(&keys(&right.effects)) {
        complain(
            true,
            format!("{tool} was called for {key}, which is no call of the run"),
        );
    }
    for (tool, key) in right.effects.keys() {
        let times = counted.get(&(tool.clone(), key.clone())).copied().unwrap_or(0);
        let verdict = ends.judge(tool, key, times);
        complain(
            verdict.is_some(),
            format!("{tool} for {key}: {}", verdict.unwrap_or_default()),
        );
    }
    Ok(wrong)
}

/// What the human decided about the calls of unknown outcome.
struct Endings {
    /// By call: how often it was to be run again, and what was decided last.
    decided: BTreeMap<String, (usize, &'static str)>,
}

impl Endings {
    fn of(client: &Client, mark: &str) -> Self {
        let mut decided: BTreeMap<String, (usize, &'static str)> = BTreeMap::new();
        for one in &client.decided {
            let end = decided.entry(one.call.replace(mark, "MARK")).or_default();
            end.0 += usize::from(one.decision == "approve");
            end.1 = one.decision;
        }
        Self { decided }
    }

    /// Whether a result differs for a reason: the last word of a subagent is what its last tool said, and of a call of
    /// unknown outcome that is what the human or the server said in its place.
    fn explain(&self, found: &Value, right: &Value) -> bool {
        let said = found["content"].as_str().unwrap_or_default();
        let explained = match right["tool_call_id"].as_str() {
            Some("MARK_clerk") => {
                let rejected = self
                    .decided
                    .get("MARK_clerk_late")
                    .is_some_and(|(_, last)| *last == "reject");
                rejected && said.contains(REFUSED)
            }
            Some("MARK_mailer") => said.contains(UNKNOWN),
            _ => false,
        };
        let mut same = found.clone();
        same["content"] = right["content"].clone();
        explained && same == *right
    }

    /// What is wrong about so many effects of a call.
    fn judge(&self, tool: &str, key: &str, times: usize) -> Option<String> {
        let (approved, last) = self.decided.get(key).copied().unwrap_or_default();
        match tool {
            // It may be called as often as needed: the key says that it is one call.
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

/// What the clock and the counters said about the undisturbed run.
#[derive(Debug, Clone)]
pub(super) struct Measure {
    /// How it ended.
    pub(super) outcome: Outcome,
    /// How long it took.
    pub(super) took: std::time::Duration,
    /// How often what happened.
    pub(super) seen: Progress,
}
