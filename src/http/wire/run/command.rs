//! Commands of runs on the wire.

use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::ToSchema;

use crate::domain::Invalid;
use crate::domain::goto::{Goto, MAX_TARGETS};
use crate::domain::run::Command;

/// A command that a client may send instead of input.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub struct CommandBody {
    /// The answer to the open interrupt, or an object of answers by interrupt id. An empty object answers none: the
    /// interrupts are reported again.
    pub resume: Option<Value>,
    /// A state update: an object, or a list of pairs `[field, value]`. It may write every field, also those that an input
    /// may not.
    #[schema(value_type = Option<Object>)]
    pub update: Option<Value>,
    /// The next node, or a list of nodes. `{"node": …, "input": …}` gives a node its own input: for `model` the
    /// messages to answer instead of the conversation, for `tools` the calls to make.
    #[schema(value_type = Option<Vec<String>>)]
    pub goto: Option<Value>,
}

/// The key under which the adapter of AG-UI sends the answers to several interrupts: by id, each with a `status` and a
/// `payload`.
const AG_UI_ANSWERS: &str = "__agui_resume_map__";
/// The key with which the adapter of AG-UI says that the only question was cancelled.
const AG_UI_CANCELLED: &str = "__agui_cancelled__";

impl CommandBody {
    /// Replaces the form in which the adapter of AG-UI sends several answers by an object of answers by interrupt id. A
    /// question that was cancelled on the page gets no answer, and stays open.
    pub(super) fn unwrap_ag_ui(&mut self) {
        let Some(Value::Object(resume)) = &mut self.resume else {
            return;
        };
        let is_cancelled = resume.contains_key(AG_UI_CANCELLED);
        let by_id = match resume.get_mut(AG_UI_ANSWERS) {
            Some(Value::Object(by_id)) => std::mem::take(by_id),
            Some(_) | None if is_cancelled => Map::new(),
            Some(_) | None => return,
        };
        let resolved = |(id, answer): (String, Value)| {
            let payload = answer.get("payload").filter(|_| answer["status"] == "resolved")?;
            Some((id, payload.clone()))
        };
        *resume = by_id.into_iter().filter_map(resolved).collect();
    }

    /// The answers. An empty object answers nothing: the run continues, and what waits for an answer asks again.
    pub(super) fn answers(&self) -> Option<&Value> {
        self.resume.as_ref().filter(|answers| !is_empty_object(answers))
    }

    /// Returns true if the command says nothing. Some clients send such an object with every input.
    pub(super) fn is_empty(&self) -> bool {
        self.resume.is_none() && self.update.is_none() && self.names_no_node()
    }

    /// Returns true if the command has nothing but an empty object of answers.
    pub(super) fn only_continues(&self) -> bool {
        self.resume.as_ref().is_some_and(is_empty_object) && self.update.is_none() && self.names_no_node()
    }

    fn names_no_node(&self) -> bool {
        match &self.goto {
            None => true,
            Some(target) => target.as_array().is_some_and(Vec::is_empty),
        }
    }

    /// Refuses input that would be lost beside this command. An empty object, which some clients always send, is
    /// allowed.
    pub(super) fn check_beside(&self, input: &Value) -> Result<(), Invalid> {
        if self.update.is_none() || is_empty_object(input) {
            return Ok(());
        }
        let reason = "cannot be given together with `command.update`: use one of them";
        Err(Invalid::new("input", reason))
    }

    /// Reads the command without the answers, which admission checks.
    pub(super) fn read(&self) -> Result<Command, Invalid> {
        let goto = match &self.goto {
            Some(Value::Array(targets)) => targets.iter().collect(),
            Some(target) => vec![target],
            None => vec![],
        };
        if goto.len() > MAX_TARGETS {
            return Err(Invalid::new(
                "command.goto",
                format!("names more than {MAX_TARGETS} targets"),
            ));
        }
        let goto = goto
            .into_iter()
            .enumerate()
            .map(|(at, target)| read_target(at, target))
            .collect::<Result<_, _>>()?;
        Ok(Command {
            update: self.update.clone(),
            goto,
            ..Command::default()
        })
    }
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty)
}

/// Reads a target of `goto`: the name of a node, or an object `{"node": name, "input": …}`.
fn read_target(at: usize, target: &Value) -> Result<Goto, Invalid> {
    if let Some(name) = target.as_str() {
        return Ok(Goto::Node(name.to_owned()));
    }
    let node = target.get("node").and_then(Value::as_str).map(str::to_owned);
    let node = node.ok_or_else(|| {
        Invalid::new(
            format!("command.goto[{at}]"),
            "must be the name of a node, or an object with `node`",
        )
    })?;
    Ok(match target.get("input").filter(|input| !input.is_null()) {
        Some(input) => Goto::Send {
            node,
            input: input.clone(),
        },
        None => Goto::Node(node),
    })
}
