//! The answers to interrupts, as the server takes them.

use std::io::Read;

use serde_json::{Value, json};

use super::error::{ClientError, ClientResult};
use crate::config::client::AnswerOptions;

/// The largest file with an answer, in bytes.
const MAX_ANSWER_BYTES: u64 = 16 * 1024 * 1024;

/// A tool call that waits for a decision.
pub(super) struct ActionRequest {
    pub(super) name: String,
    pub(super) args: Value,
    pub(super) allowed: Vec<String>,
    /// True if the decision may be remembered for the rest of the thread.
    pub(super) may_be_remembered: bool,
}

/// Returns whether an interrupt is about one tool call and answered by one decision.
fn is_per_call(interrupt: &Value) -> bool {
    interrupt["kind"] == "tool_approval" && interrupt["value"]["type"] == "tool_approval"
}

/// Returns whether an interrupt is answered with decisions about tool calls.
pub(super) fn wants_decisions(interrupt: &Value) -> bool {
    interrupt["value"]["action_requests"].is_array() || is_per_call(interrupt)
}

/// Returns whether the schema of a decision allows to remember it for the rest of the thread.
fn may_be_remembered(schema: Option<&Value>) -> bool {
    let scopes = schema.and_then(|schema| schema.pointer("/properties/scope/enum")?.as_array());
    scopes.is_some_and(|scopes| scopes.iter().any(|scope| scope == "thread"))
}

/// Returns the tool calls that an interrupt asks about.
pub(super) fn action_requests(interrupt: &Value) -> Vec<ActionRequest> {
    let schema = &interrupt["response_schema"];
    if is_per_call(interrupt) {
        let words = schema.pointer("/properties/type/enum").and_then(Value::as_array);
        let allowed = words.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        return vec![ActionRequest {
            name: interrupt["value"]["name"].as_str().unwrap_or("?").to_owned(),
            args: interrupt["value"]["args"].clone(),
            allowed: allowed.collect(),
            may_be_remembered: may_be_remembered(Some(schema)),
        }];
    }
    let requests = interrupt["value"]["action_requests"].as_array();
    let configs = interrupt["value"]["review_configs"].as_array();
    let read = |(at, request): (usize, &Value)| {
        let name = request["name"].as_str().unwrap_or("?").to_owned();
        let by_name = |config: &&Value| config["action_name"].as_str() == Some(&name);
        let config = configs.and_then(|configs| {
            let same = configs.get(at).filter(by_name);
            same.or_else(|| configs.iter().find(by_name))
        });
        let words = config.and_then(|config| config["allowed_decisions"].as_array());
        let allowed = words.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned);
        ActionRequest {
            name,
            args: request["args"].clone(),
            allowed: allowed.collect(),
            may_be_remembered: may_be_remembered(schema.pointer(&format!("/properties/decisions/prefixItems/{at}"))),
        }
    };
    requests.into_iter().flatten().enumerate().map(read).collect()
}

/// The decision to make the call.
pub(super) fn approve() -> Value {
    json!({"type": "approve"})
}

/// The decision not to make the call.
pub(super) fn reject(reason: &str) -> Value {
    match reason.trim() {
        "" => json!({"type": "reject"}),
        reason => json!({"type": "reject", "message": reason}),
    }
}

/// The decision, remembered for the rest of the thread.
pub(super) fn always(mut decision: Value) -> Value {
    decision["scope"] = json!("thread");
    decision
}

/// The decision to give the model this text as the result.
pub(super) fn respond(text: &str) -> Value {
    json!({"type": "respond", "message": text})
}

/// The decision to make another call: its arguments, or its name and arguments.
pub(super) fn edit(request: &ActionRequest, edited: Value) -> Result<Value, &'static str> {
    let is_action = edited["args"].is_object() && edited["name"].is_string();
    let action = match (is_action, edited.is_object()) {
        (true, _) => edited,
        (false, true) => json!({"name": request.name, "args": edited}),
        (false, false) => return Err("must be a JSON object: the arguments, or {\"name\": …, \"args\": …}"),
    };
    Ok(json!({"type": "edit", "edited_action": action}))
}

/// The answer to a question: JSON, or else the text. What has to be a text is not read as JSON.
pub(super) fn response(interrupt: &Value, text: &str) -> Value {
    let is_text = interrupt["response_schema"]["type"] == "string";
    let read = if is_text { None } else { serde_json::from_str(text).ok() };
    read.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// Returns the body of an answer given by options. With `is_always` the decisions are remembered for the thread.
pub(super) fn answer(interrupt: &Value, options: &AnswerOptions, is_always: bool) -> ClientResult<Value> {
    let requests = action_requests(interrupt);
    let wrong = |text: String| Err(ClientError::Usage(text));
    if is_always && (!wants_decisions(interrupt) || !(options.approve || options.reject.is_some())) {
        return wrong("--always goes with --approve and --reject".to_owned());
    }
    if !wants_decisions(interrupt) {
        return match &options.respond {
            Some(text) => Ok(json!({"response": response(interrupt, &load(text)?)})),
            None => wrong("this interrupt is a question: answer it with --respond".to_owned()),
        };
    }
    let decisions = if options.approve {
        vec![approve(); requests.len()]
    } else if let Some(reason) = &options.reject {
        vec![reject(reason); requests.len()]
    } else if let Some(text) = &options.decisions {
        match read_json("--decisions", &load(text)?)? {
            Value::Array(decisions) => decisions,
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
                return wrong("--decisions must be a JSON list".to_owned());
            }
        }
    } else {
        let [request] = requests.as_slice() else {
            return wrong(format!(
                "the interrupt asks about {} tool calls: answer them with --decisions",
                requests.len()
            ));
        };
        match (&options.edit, &options.respond) {
            (Some(text), _) => {
                let edited = read_json("--edit", &load(text)?)?;
                let decision =
                    edit(request, edited).map_err(|reason| ClientError::Usage(format!("--edit {reason}")))?;
                vec![decision]
            }
            (None, Some(text)) => vec![respond(&load(text)?)],
            (None, None) => return wrong("an answer is missing".to_owned()),
        }
    };
    let decisions: Vec<Value> = match is_always {
        true => decisions.into_iter().map(always).collect(),
        false => decisions,
    };
    Ok(json!({"decisions": decisions}))
}

fn read_json(option: &str, text: &str) -> ClientResult<Value> {
    serde_json::from_str(text).map_err(|error| ClientError::Usage(format!("{option} is not JSON: {error}")))
}

/// Returns the text of an option: of a file for `@FILE`, of standard input for `@-`.
fn load(text: &str) -> ClientResult<String> {
    let Some(path) = text.strip_prefix('@') else {
        return Ok(text.to_owned());
    };
    let wrong = |error: std::io::Error| ClientError::Usage(format!("{path} cannot be read: {error}"));
    let mut read = String::new();
    let source: Box<dyn Read> = match path {
        "-" => Box::new(std::io::stdin().lock()),
        path => Box::new(std::fs::File::open(path).map_err(wrong)?),
    };
    let mut source = source.take(MAX_ANSWER_BYTES + 1);
    let size = source.read_to_string(&mut read).map_err(wrong)?;
    if u64::try_from(size).is_ok_and(|size| size > MAX_ANSWER_BYTES) {
        return Err(ClientError::Usage(format!(
            "{path} is larger than {MAX_ANSWER_BYTES} bytes"
        )));
    }
    Ok(read)
}
