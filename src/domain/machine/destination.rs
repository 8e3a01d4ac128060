//! The destination of `command.goto`: the one node of an agent's loop to which its targets are resolved.

use std::collections::HashSet;

use serde_json::Value;

use super::plan::{END, HookPoint, MODEL, Plan, TOOLS};
use crate::domain::Invalid;
use crate::domain::goto::Goto;
use crate::domain::input::{read_call, read_input, under};
use crate::domain::message::{Message, ToolCall};

/// The node that the targets of one command resolve to.
#[derive(Debug, Clone, PartialEq)]
pub enum Destination {
    /// The model; with messages, the model receives these instead of the conversation.
    Model(Option<Vec<Message>>),
    /// The tool step.
    Tools {
        /// True to run the calls of the last answer that have no result yet.
        own: bool,
        /// The calls that the client sent.
        sent: Vec<ToolCall>,
    },
    /// A hook, by its hook point and index.
    Hook(HookPoint, usize),
    /// The end: open interrupts are cancelled, and the run does nothing more.
    End,
}

impl Destination {
    /// Resolves `targets` for an agent with this `plan`. Returns none if the agent has none of these nodes; the run
    /// then does nothing, as on other servers of this API.
    ///
    /// # Errors
    /// Returns the target that cannot be resolved, and the reason.
    pub fn of(targets: &[Goto], plan: &Plan) -> Result<Option<Self>, Invalid> {
        let mut found: Option<Self> = None;
        for (at, target) in targets.iter().enumerate() {
            let field = format!("command.goto[{at}]");
            let Some(destination) = Self::of_one(target, plan).map_err(under(&field))? else {
                continue;
            };
            found = Some(match (found, destination) {
                (None, destination) => destination,
                (Some(Self::Tools { own, sent: mut all }), Self::Tools { own: too, sent }) => {
                    all.extend(sent);
                    Self::Tools {
                        own: own || too,
                        sent: all,
                    }
                }
                (Some(earlier), destination) if earlier == destination => destination,
                (Some(_), _) => {
                    return Err(Invalid::new(
                        field,
                        "is another node: an agent continues at one node at a time",
                    ));
                }
            });
        }
        if let Some(Self::Tools { sent, .. }) = &found {
            check_ids(sent)?;
        }
        Ok(found)
    }

    fn of_one(target: &Goto, plan: &Plan) -> Result<Option<Self>, Invalid> {
        let input = target.input();
        // A program has one node, which is no destination: it runs once for each input.
        if plan.program.is_some() && target.node() != END {
            return Ok(None);
        }
        match target.node() {
            MODEL => input
                .map(read_messages)
                .transpose()
                .map(|messages| Some(Self::Model(messages))),
            TOOLS => {
                let sent = input.map(read_calls).transpose()?;
                Ok(Some(Self::Tools {
                    own: sent.is_none(),
                    sent: sent.unwrap_or_default(),
                }))
            }
            node => {
                let found = if node == END {
                    Some(Self::End)
                } else {
                    plan.find(node).map(|(m, at)| Self::Hook(m, at))
                };
                if found.is_some() && input.is_some() {
                    let reason = format!("is not for {node}, which reads the state: use `command.update`");
                    return Err(Invalid::new("input", reason));
                }
                Ok(found)
            }
        }
    }
}

/// Parses the messages for the model.
fn read_messages(input: &Value) -> Result<Vec<Message>, Invalid> {
    let update = read_input(input).map_err(|invalid| match invalid.field.as_str() {
        // An error about the whole input names it already.
        "input" => invalid,
        _ => under("input")(invalid),
    })?;
    if update.messages.is_empty() {
        return Err(Invalid::new(
            "input.messages",
            "is missing: the model receives it instead of the conversation",
        ));
    }
    Ok(update
        .messages
        .into_iter()
        .map(|message| Message::clone(&message))
        .collect())
}

/// Parses the input of a tool step: a call, a list of calls, a `tool_call_with_context`, or messages that end with
/// calls.
fn read_calls(input: &Value) -> Result<Vec<ToolCall>, Invalid> {
    if let Value::Array(items) = input {
        let call = |(at, item): (usize, &Value)| read_one(item).map_err(under(&format!("input[{at}]")));
        return items.iter().enumerate().map(call).collect();
    }
    if let Some(call) = input.get("tool_call") {
        return Ok(vec![read_one(call).map_err(under("input.tool_call"))?]);
    }
    if input.get("messages").is_some() {
        let messages = read_messages(input)?;
        let calls = messages
            .last()
            .map(|last| last.tool_calls().to_vec())
            .unwrap_or_default();
        return if calls.is_empty() {
            Err(Invalid::new("input.messages", "must end with tool calls"))
        } else {
            Ok(calls)
        };
    }
    Ok(vec![read_one(input).map_err(under("input"))?])
}

fn read_one(call: &Value) -> Result<ToolCall, Invalid> {
    read_call(call)?.map_err(|_| Invalid::new("function.arguments", "must be the JSON text of an object"))
}

fn check_ids(calls: &[ToolCall]) -> Result<(), Invalid> {
    let mut ids = HashSet::new();
    match calls.iter().find(|call| !ids.insert(call.id.as_str())) {
        Some(call) => Err(Invalid::new(
            "command.goto",
            format!("has two calls with the id {:?}", call.id),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn plan() -> Plan {
        Plan {
            after_model: vec!["Review.after_model".to_owned()],
            ..Plan::default()
        }
    }

    fn read(targets: Value) -> Result<Option<Destination>, String> {
        let targets: Vec<Goto> = serde_json::from_value(targets).expect("targets");
        Destination::of(&targets, &plan()).map_err(|invalid| invalid.to_string())
    }

    #[test]
    fn known_names_resolve_to_nodes_and_unknown_names_to_none() {
        assert_eq!(read(json!(["model", "nowhere"])), Ok(Some(Destination::Model(None))));
        assert_eq!(
            read(json!([{"node": "tools"}])),
            Ok(Some(Destination::Tools {
                own: true,
                sent: vec![]
            }))
        );
        assert_eq!(
            read(json!(["Review.after_model"])),
            Ok(Some(Destination::Hook(HookPoint::AfterModel, 0)))
        );
        assert_eq!(read(json!(["nowhere", "__end__"])), Ok(Some(Destination::End)));
        assert_eq!(read(json!(["nowhere"])), Ok(None));
    }

    #[test]
    fn a_call_is_parsed_in_every_form() {
        let call = json!({"name": "lookup", "args": {"q": 1}, "id": "c1", "type": "tool_call"});
        let forms = [
            call.clone(),
            json!([call]),
            json!({"__type": "tool_call_with_context", "tool_call": call, "state": {}}),
            json!({"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]}),
        ];
        for form in forms {
            let Ok(Some(Destination::Tools { own: false, sent })) = read(json!([{"node": "tools", "input": form}]))
            else {
                panic!("{form}");
            };
            assert_eq!(sent[0].id.as_str(), "c1");
            assert_eq!(sent[0].name.as_str(), "lookup");
            assert_eq!(sent.len(), 1);
        }
        let twice = json!([{"node": "tools", "input": call}, {"node": "tools", "input": call}]);
        assert!(read(twice).is_err_and(|error| error.contains("two calls with the id \"c1\"")));
    }

    #[test]
    fn the_error_names_the_invalid_target() {
        let cases = [
            (json!(["model", "tools"]), "command.goto[1]: is another node"),
            (
                json!([{"node": "model", "input": {}}]),
                "command.goto[0].input.messages: is missing",
            ),
            (
                json!([{"node": "model", "input": [{"role": "user", "content": "x"}]}]),
                "command.goto[0].input: must be an object",
            ),
            (
                json!([{"node": "tools", "input": {"name": "x"}}]),
                "command.goto[0].input.id: is missing",
            ),
            (
                json!([{"node": "tools", "input": [7]}]),
                "command.goto[0].input[0]: must be an object",
            ),
            (
                json!([{"node": "Review.after_model", "input": {"a": 1}}]),
                "command.goto[0].input: is not for Review.after_model",
            ),
        ];
        for (targets, expected) in cases {
            let error = read(targets.clone()).err().unwrap_or_default();
            assert!(error.starts_with(expected), "{targets}: {error}");
        }
    }
}
