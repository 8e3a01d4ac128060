//! Asks a person about tool calls and other questions of agents.

use serde_json::{Value, json};

use super::input::{Entered, edit_in_editor};
use super::questions;
use super::reply::Reply;
use super::session::Session;
use super::values::ask_value;
use crate::client::decisions::{self, ActionRequest};
use crate::client::error::{ClientError, ClientResult};
use crate::client::escape;
use crate::client::resources::{interrupts, text};
use crate::domain::text_limits::first_chars;

/// The number of lines of arguments that are shown at once.
const MAX_ARGUMENT_LINES: usize = 24;

/// The longest line of arguments that is shown at once, in characters.
const MAX_ARGUMENT_CHARS: usize = 500;

/// The choice of a person about one tool call.
enum Choice {
    Decided(Value),
    Later,
    AnsweredElsewhere,
}

/// Asks what an interrupt asks.
pub(super) async fn ask(session: &mut Session, interrupt: &Value) -> ClientResult<Reply> {
    session.settle()?;
    session.begin_question();
    let path = interrupt["agent_path"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str);
    let path = path.collect::<Vec<_>>().join(" / ");
    if !decisions::wants_decisions(interrupt) {
        return Box::pin(ask_question(session, interrupt, &path)).await;
    }
    let requests = decisions::action_requests(interrupt);
    let number = requests.len();
    let mut decided = vec![];
    for (at, request) in requests.iter().enumerate() {
        let count = if number > 1 {
            format!(" ({} of {number})", at + 1)
        } else {
            String::new()
        };
        let name = &request.name;
        let head = escape::line(&format!("{path} asks: may it call {name}{count}?"));
        session.write(&format!("\n{head}\n{}", short(&request.args)))?;
        match Box::pin(decide(session, request)).await? {
            Choice::Decided(decision) => decided.push(decision),
            Choice::Later => return Ok(Reply::Later),
            Choice::AnsweredElsewhere => return Ok(Reply::AnsweredElsewhere),
        }
    }
    Ok(Reply::Answer(json!({"decisions": decided})))
}

/// Asks about one tool call until there is a decision.
async fn decide(session: &mut Session, request: &ActionRequest) -> ClientResult<Choice> {
    let prompt = prompt(request);
    loop {
        let Entered::Line(line) = session.read_line(&prompt, "", false).await? else {
            return Ok(Choice::Later);
        };
        if session.is_answered_elsewhere() {
            return Ok(Choice::AnsweredElsewhere);
        }
        let line = line.trim();
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let decision = match word.to_ascii_lowercase().as_str() {
            "a" | "approve" | "y" | "yes" => Some(decisions::approve()),
            "r" | "reject" | "n" | "no" => {
                let reason = if rest.is_empty() {
                    ask_text(session, "Reason (may be empty): ").await?
                } else {
                    Some(rest.to_owned())
                };
                reason.map(|reason| decisions::reject(&reason))
            }
            "s" | "respond" => {
                let answer = if rest.is_empty() {
                    ask_text(session, "Result for the model: ").await?
                } else {
                    Some(rest.to_owned())
                };
                answer.map(|answer| decisions::respond(&answer))
            }
            "w" | "always" if request.may_be_remembered => Some(decisions::always(decisions::approve())),
            "d" | "deny" if request.may_be_remembered => {
                let reason = if rest.is_empty() {
                    ask_text(session, "Reason (may be empty): ").await?
                } else {
                    Some(rest.to_owned())
                };
                reason.map(|reason| decisions::always(decisions::reject(&reason)))
            }
            "e" | "edit" => Box::pin(edit(session, request)).await?,
            "v" | "view" => {
                session.write(&format!("{}\n", escape::json(&format!("{:#}", request.args))))?;
                None
            }
            "l" | "later" | "/quit" => return Ok(Choice::Later),
            _ => None,
        };
        let Some(decision) = decision else { continue };
        let kind = text(&decision, "type");
        if request.allowed.contains(&kind) || request.allowed.is_empty() {
            return Ok(Choice::Decided(decision));
        }
        session.remark(&format!("this call allows only: {}", request.allowed.join(", ")))?;
    }
}

/// Returns the prompt with the allowed decisions.
fn prompt(request: &ActionRequest) -> String {
    let words = [
        ("approve", "[a]pprove"),
        ("edit", "[e]dit"),
        ("reject", "[r]eject"),
        ("respond", "re[s]pond"),
    ];
    let allowed = words
        .iter()
        .filter(|word| request.allowed.is_empty() || request.allowed.iter().any(|allowed| allowed == word.0));
    let is_allowed = |kind: &str| request.allowed.is_empty() || request.allowed.iter().any(|allowed| allowed == kind);
    let always = [("approve", "al[w]ays approve"), ("reject", "always [d]eny")];
    let always = always
        .into_iter()
        .filter(|(kind, _)| request.may_be_remembered && is_allowed(kind))
        .map(|(_, word)| word);
    let shown: Vec<&str> = allowed
        .map(|word| word.1)
        .chain(always)
        .chain(["[v]iew all", "[l]ater"])
        .collect();
    format!("{} > ", shown.join("  "))
}

/// Reads a text; `None` if the person changes their mind.
async fn ask_text(session: &mut Session, prompt: &str) -> ClientResult<Option<String>> {
    Ok(match session.read_line(prompt, "", false).await? {
        Entered::Line(line) => Some(line.trim().to_owned()),
        Entered::Interrupt | Entered::End => None,
    })
}

/// Lets the person change a call, in their editor or in a line.
async fn edit(session: &mut Session, request: &ActionRequest) -> ClientResult<Option<Value>> {
    let action = json!({"name": request.name, "args": request.args});
    let mut text = format!("{action:#}\n");
    loop {
        let Some(edited) = edit_text(session, &text, &action).await? else {
            return Ok(None);
        };
        let read = serde_json::from_str::<Value>(&edited).map_err(|error| format!("this is not JSON: {error}"));
        match read.and_then(|value| decisions::edit(request, value).map_err(|reason| format!("it {reason}"))) {
            Ok(decision) => return Ok(Some(decision)),
            Err(reason) => {
                session.remark(&reason)?;
                text = edited;
                let again = ask_text(session, "Enter edits it again, anything else gives up: ").await?;
                if again.is_none_or(|answer| !answer.is_empty()) {
                    return Ok(None);
                }
            }
        }
    }
}

/// Opens a text in the editor. Without an editor it is edited as a line.
async fn edit_text(session: &mut Session, text: &str, action: &Value) -> ClientResult<Option<String>> {
    let given = text.to_owned();
    // The terminal belongs to the editor meanwhile.
    let edited = tokio::task::spawn_blocking(move || edit_in_editor(&given)).await;
    match edited.map_err(std::io::Error::other)? {
        Ok(Some(edited)) => Ok(Some(edited)),
        Ok(None) => {
            let is_first = text.trim_end() == format!("{action:#}");
            let line = if is_first {
                action.to_string()
            } else {
                text.trim_end().to_owned()
            };
            let entered = session.read_line("Call: ", &escape::json(&line), false).await?;
            Ok(match entered {
                Entered::Line(line) => Some(line),
                Entered::Interrupt | Entered::End => None,
            })
        }
        Err(ClientError::Io(error)) => session.remark(&error.to_string()).map(|()| None),
        Err(error) => Err(error),
    }
}

/// Asks a question that is no tool call, by the schema of its answer.
async fn ask_question(session: &mut Session, interrupt: &Value, path: &str) -> ClientResult<Reply> {
    let head = escape::line(&format!("{path} asks:"));
    let question = match interrupt["value"]["type"] == "ask_user" {
        // Each of its questions is shown when it is asked.
        true => String::new(),
        false => format!("{}\n", escape::text(&interrupts::question(interrupt))),
    };
    session.write(&format!("\n{head}\n{question}"))?;
    let schema = &interrupt["response_schema"];
    if interrupt["value"]["type"] == "ask_user" {
        return Box::pin(questions::ask_all(session, interrupt)).await;
    }
    let Some(answer) = Box::pin(ask_value(session, "Answer", schema)).await? else {
        return Ok(Reply::Later);
    };
    if session.is_answered_elsewhere() {
        return Ok(Reply::AnsweredElsewhere);
    }
    Ok(Reply::Answer(json!({"response": answer})))
}

/// Returns the arguments of a call as JSON of several lines, cut if they are long.
fn short(args: &Value) -> String {
    let text = escape::json(&format!("{args:#}"));
    let mut lines: Vec<String> = vec![];
    let mut is_cut = false;
    for line in text.lines().take(MAX_ARGUMENT_LINES) {
        let short = first_chars(line, MAX_ARGUMENT_CHARS);
        let is_long = short.len() < line.len();
        is_cut |= is_long;
        lines.push(if is_long {
            format!("  {short}…")
        } else {
            format!("  {short}")
        });
    }
    if is_cut || text.lines().count() > MAX_ARGUMENT_LINES {
        lines.push("  … (v shows all)".to_owned());
    }
    lines.join("\n") + "\n"
}
