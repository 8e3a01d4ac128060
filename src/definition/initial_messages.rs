//! The messages with which a subagent begins, before the description of its work.

use std::sync::Arc;

use super::agent::SubagentDefinition;
use super::diagnostic::{Diagnostic, FieldPath};
use super::limits::LARGEST_DEFINITION;
use crate::domain::input::read_initial;
use crate::domain::message::Message;

const FIELD: &str = "initial_messages";

impl SubagentDefinition {
    /// Returns the messages with which the subagent begins. The check has reported invalid messages.
    pub fn beginning(&self) -> Vec<Arc<Message>> {
        read_initial(&self.initial_messages)
            .unwrap_or_default()
            .into_iter()
            .map(Arc::new)
            .collect()
    }

    /// Checks the messages; `field` is the field of the subagent.
    pub(super) fn check_initial(&self, field: &FieldPath) -> Vec<Diagnostic> {
        let list = field.then(FIELD);
        let wrong = read_initial(&self.initial_messages).err();
        let wrong = wrong.map(|(at, why)| Diagnostic::error(list.then(at), why));
        let size: usize = self
            .initial_messages
            .iter()
            .map(|message| message.to_string().len())
            .sum();
        let message = || format!("have {size} bytes of JSON; at most {LARGEST_DEFINITION} are allowed");
        let large = (size > LARGEST_DEFINITION).then(|| Diagnostic::error(list.clone(), message()));
        wrong.into_iter().chain(large).collect()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::definition::ValidationContext;
    use crate::definition::validate::findings_of;

    fn reported(mut subagent: Value) -> Vec<String> {
        subagent["name"] = json!("a");
        subagent["description"] = json!("Does all that is left.");
        let body = json!({"model": "scripted:x", "subagents": [subagent]});
        findings_of("x", body, &ValidationContext::of_tests())
    }

    #[test]
    fn messages_of_all_kinds_may_stand_at_the_beginning() {
        let messages = json!(["hello", {"role": "assistant", "content": "", "tool_calls": [{"id": "1", "name": "x", "args": {}}]},
            {"role": "tool", "tool_call_id": "1", "content": "y"}, {"role": "system", "content": "z"}]);
        assert_eq!(reported(json!({"initial_messages": messages})), [""; 0]);
    }

    #[test]
    fn what_is_no_message_is_told_with_its_place() {
        let cases = [
            (json!("hello"), "subagents[0].initial_messages: must be a list"),
            (
                json!(["x", 3]),
                "subagents[0].initial_messages[1]: must be a string, a pair or an object",
            ),
            (
                json!([{"role": "robot", "content": "x"}]),
                "subagents[0].initial_messages[0]: `role` is \"robot\", but allowed",
            ),
            (
                json!([{"role": "user"}]),
                "subagents[0].initial_messages[0]: `content` is missing",
            ),
            (
                json!([{"role": "remove", "id": "x"}]),
                "subagents[0].initial_messages[0]: must not remove a message: there is none yet",
            ),
            (
                json!([{"role": "tool", "tool_call_id": "1", "content": "y"}]),
                "subagents[0].initial_messages[0]: answers the call `1`, which no message before it makes",
            ),
            (
                json!(vec!["x"; 101]),
                "subagents[0].initial_messages[100]: is one too many; at most 100 are allowed",
            ),
        ];
        for (messages, expected) in cases {
            let reported = reported(json!({"initial_messages": messages}));
            assert!(
                reported.len() == 1 && reported[0].starts_with(expected),
                "{expected}: {reported:#?}"
            );
        }
    }

    #[test]
    fn forks_and_agents_defined_elsewhere_begin_otherwise() {
        let fork = reported(json!({"initial_messages": ["x"], "mode": "fork"}));
        assert_eq!(
            fork,
            ["subagents[0].initial_messages: goes without `mode = \"fork\"` only: a fork has what its caller has"]
        );
        let elsewhere = reported(json!({"initial_messages": ["x"], "graph_id": "x", "async": false}));
        assert!(
            elsewhere.contains(
                &"subagents[0].initial_messages: goes without `graph_id` only: that agent is defined elsewhere"
                    .to_owned()
            ),
            "{elsewhere:#?}"
        );
    }
}
