//! Limits for the output of models, tools and remote agents, applied before it becomes a part of a state. U+0000 is
//! replaced by U+FFFD, and values beyond the [JSON limits](super::json_limits) are refused or left out.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::call::ToolOutput;
use super::item::ItemChange;
use super::json_limits::{LimitExceeded, admit, replace_nul};
use super::message::{Content, InvalidToolCall, Message, Role, ToolCall};
use super::state::Update;

/// Applies the limits to a model's answer. A call whose arguments exceed them becomes an invalid call, which the model
/// receives as an error; other values that exceed them are left out.
pub fn admit_answer(message: &mut Message) {
    if let Content::Blocks(blocks) = &mut message.content {
        for block in blocks {
            if let Err(exceeded) = admit(block) {
                *block =
                    json!({"type": "text", "text": format!("(A part of the answer {exceeded} and was left out.)")});
            }
        }
    }
    for extras in [&mut message.additional_kwargs, &mut message.response_metadata] {
        extras.retain(|_, value| admit(value).is_ok());
    }
    if let Role::Ai {
        tool_calls,
        invalid_tool_calls,
        usage_metadata,
    } = &mut message.role
    {
        if usage_metadata.as_mut().is_some_and(|usage| admit(usage).is_err()) {
            *usage_metadata = None;
        }
        for call in std::mem::take(tool_calls) {
            match admitted(call) {
                Ok(call) => tool_calls.push(call),
                Err(call) => invalid_tool_calls.push(call),
            }
        }
    }
    // Values that exceed a limit are left out by now; only texts remain, which are always accepted.
    admit_message(message).unwrap_or_default();
}

/// Returns the call, or an invalid call if its arguments exceed a limit.
fn admitted(mut call: ToolCall) -> Result<ToolCall, InvalidToolCall> {
    let Err(exceeded) = admit_map(&mut call.args) else {
        return Ok(call);
    };
    Err(InvalidToolCall {
        name: Some(call.name),
        args: serde_json::to_string(&call.args).ok(),
        id: Some(call.id),
        error: Some(format!("a document of the arguments {exceeded}")),
        kind: "invalid_tool_call".to_owned(),
    })
}

/// Applies the limits to the output of a call and all its writes.
///
/// # Errors
/// Returns the limit that is exceeded.
pub fn admit_result(answer: &mut ToolOutput) -> Result<(), LimitExceeded> {
    for change in &mut answer.changes {
        if let ItemChange::Put(draft) = change {
            admit_map(&mut draft.value)?;
        }
    }
    admit_update(&mut answer.writes)
}

/// Applies the limits to the writes of a tool or a remote agent.
///
/// # Errors
/// Returns the limit that is exceeded.
pub fn admit_update(update: &mut Update) -> Result<(), LimitExceeded> {
    for message in &mut update.messages {
        admit_message(Arc::make_mut(message))?;
    }
    for file in update.files.values_mut().flatten() {
        if file.content.text().contains('\0') {
            let mut text = file.content.text().into_owned();
            replace_nul(&mut text);
            Arc::make_mut(file).content = text.into();
        }
    }
    update.fields.values_mut().try_for_each(admit)
}

/// Applies the limits to a message.
///
/// # Errors
/// Returns the limit that is exceeded.
pub fn admit_message(message: &mut Message) -> Result<(), LimitExceeded> {
    match &mut message.content {
        Content::Text(text) => replace_nul(text),
        Content::Blocks(blocks) => blocks.iter_mut().try_for_each(admit)?,
    }
    admit_map(&mut message.additional_kwargs)?;
    admit_map(&mut message.response_metadata)?;
    message.name.iter_mut().chain(&mut message.id).for_each(replace_nul);
    match &mut message.role {
        Role::Human | Role::System | Role::Remove => Ok(()),
        Role::Ai {
            tool_calls,
            invalid_tool_calls,
            usage_metadata,
        } => {
            for call in tool_calls {
                [&mut call.id, &mut call.name].into_iter().for_each(replace_nul);
                admit_map(&mut call.args)?;
            }
            for call in invalid_tool_calls {
                let texts = [&mut call.id, &mut call.name, &mut call.args, &mut call.error];
                texts.into_iter().flatten().for_each(replace_nul);
            }
            usage_metadata.iter_mut().try_for_each(admit)
        }
        Role::Tool {
            tool_call_id,
            artifact,
            status: _,
        } => {
            replace_nul(tool_call_id);
            artifact.iter_mut().try_for_each(admit)
        }
    }
}

/// Applies the limits to an object as a whole.
fn admit_map(fields: &mut Map<String, Value>) -> Result<(), LimitExceeded> {
    if fields.is_empty() {
        return Ok(());
    }
    let mut whole = Value::Object(std::mem::take(fields));
    let judged = admit(&mut whole);
    if let Value::Object(whole) = whole {
        *fields = whole;
    }
    judged
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::json_limits::MAX_DEPTH;

    fn nested(levels: usize) -> Value {
        (0..levels).fold(json!(1), |inner, _| json!({"a": inner}))
    }

    fn object(levels: usize) -> Map<String, Value> {
        nested(levels).as_object().cloned().unwrap_or_default()
    }

    #[test]
    fn a_call_that_is_too_deep_becomes_invalid_and_others_stay() {
        let calls = vec![
            ToolCall::new("c\u{0}1", "dig", object(MAX_DEPTH + 1)),
            ToolCall::new("c2", "dig", object(MAX_DEPTH)),
        ];
        let role = Role::Ai {
            tool_calls: calls,
            invalid_tool_calls: vec![],
            usage_metadata: None,
        };
        let blocks = vec![nested(MAX_DEPTH + 1), json!({"type": "text", "text": "a\0b"})];
        let mut message = Message::new(role, Content::Blocks(blocks));
        message
            .additional_kwargs
            .insert("native".to_owned(), nested(MAX_DEPTH + 5));
        admit_answer(&mut message);
        assert_eq!(
            message
                .tool_calls()
                .iter()
                .map(|call| call.id.as_str())
                .collect::<Vec<_>>(),
            ["c2"]
        );
        let refused = &message.invalid_tool_calls()[0];
        assert_eq!(refused.id.as_deref(), Some("c\u{fffd}1"));
        assert_eq!(
            refused.error.as_deref(),
            Some("a document of the arguments nests deeper than 64 levels")
        );
        assert!(message.additional_kwargs.is_empty());
        assert_eq!(
            message.content.text(),
            "(A part of the answer nests deeper than 64 levels and was left out.)a\u{fffd}b"
        );
    }

    #[test]
    fn a_result_that_is_too_deep_is_refused() {
        let artifact = |levels| {
            let role = Role::Tool {
                tool_call_id: "c1".into(),
                artifact: Some(nested(levels)),
                status: Default::default(),
            };
            ToolOutput::message(Message::new(role, Content::default()))
        };
        assert_eq!(admit_result(&mut artifact(MAX_DEPTH)), Ok(()));
        assert_eq!(admit_result(&mut artifact(MAX_DEPTH + 1)), Err(LimitExceeded::Depth));
    }
}
