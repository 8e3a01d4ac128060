//! Asks a person the questions of the tool `ask_user`.

use serde_json::{Value, json};

use super::input::Entered;
use super::reply::Reply;
use super::session::Session;
use super::values::ask_simple_or_nothing;
use crate::client::error::ClientResult;
use crate::client::escape;

/// The word that cancels all questions.
const CANCEL: &str = "/cancel";

/// The answer to one question.
enum Given {
    Value(Value),
    Cancelled,
    Later,
}

/// Asks all questions of an interrupt, one after the other.
pub(super) async fn ask_all(session: &mut Session, interrupt: &Value) -> ClientResult<Reply> {
    session.remark(&format!("{CANCEL} cancels all questions"))?;
    let questions = interrupt["value"]["questions"].as_array().cloned().unwrap_or_default();
    let mut answers = vec![];
    for (at, question) in questions.iter().enumerate() {
        let place = format!("/response_schema/properties/answers/prefixItems/{at}");
        let schema = interrupt.pointer(&place).cloned().unwrap_or_default();
        let given = Box::pin(ask_one(session, question, &schema)).await?;
        if session.is_answered_elsewhere() {
            return Ok(Reply::AnsweredElsewhere);
        }
        match given {
            Given::Value(value) => answers.push(value),
            Given::Cancelled => return Ok(Reply::Answer(json!({"response": {"type": "cancelled"}}))),
            Given::Later => return Ok(Reply::Later),
        }
    }
    Ok(Reply::Answer(
        json!({"response": {"type": "answered", "answers": answers}}),
    ))
}

async fn ask_one(session: &mut Session, question: &Value, schema: &Value) -> ClientResult<Given> {
    let is_required = question["required"] != json!(false);
    let text = question["question"].as_str().unwrap_or_default();
    session.write(&format!("{}\n", escape::text(text)))?;
    if question["type"] == "json" {
        // The schema of an optional answer has the alternative null.
        let own = schema.pointer("/anyOf/0").filter(|_| !is_required).unwrap_or(schema);
        let given = Box::pin(ask_simple_or_nothing(session, "Answer", own, is_required)).await?;
        return Ok(match given {
            Some(value) => Given::Value(value.unwrap_or_default()),
            None => Given::Later,
        });
    }
    let choices = show_choices(session, question)?;
    let prompt = match question["type"].as_str() {
        Some("multi_select") => "Answers (numbers or texts, with commas between): ",
        Some("multiple_choice") => "Answer (a number or a text): ",
        Some(_) | None => "Answer: ",
    };
    loop {
        let Entered::Line(line) = session.read_line(prompt, "", false).await? else {
            return Ok(Given::Later);
        };
        let line = line.trim();
        if line == CANCEL {
            return Ok(Given::Cancelled);
        }
        if line.is_empty() && !is_required {
            return Ok(Given::Value(Value::Null));
        }
        match read(question, &choices, line) {
            Ok(value) => return Ok(Given::Value(value)),
            Err(reason) => session.remark(reason)?,
        }
    }
}

/// Shows the choices of a question with their numbers, and returns them.
fn show_choices(session: &mut Session, question: &Value) -> ClientResult<Vec<String>> {
    let listed = question["choices"].as_array().into_iter().flatten();
    let mut choices = vec![];
    for (at, choice) in listed.enumerate() {
        let value = choice["value"].as_str().unwrap_or_default();
        let about = choice["description"].as_str().map(|text| format!(": {text}"));
        let line = escape::line(&format!("{}. {value}{}", at + 1, about.unwrap_or_default()));
        session.write(&format!("  {line}\n"))?;
        choices.push(value.to_owned());
    }
    Ok(choices)
}

/// Reads the answer to a question that a person has entered.
fn read(question: &Value, choices: &[String], line: &str) -> Result<Value, &'static str> {
    let allows_other = question["allow_other"] != json!(false);
    let one = |text: &str| {
        let text = text.trim();
        let by_number = text
            .parse::<usize>()
            .ok()
            .and_then(|number| choices.get(number.checked_sub(1)?));
        let known = choices.iter().find(|choice| *choice == text).or(by_number);
        let other = (allows_other && !text.is_empty()).then(|| text.to_owned());
        known.cloned().or(other)
    };
    match question["type"].as_str() {
        Some("multi_select") => {
            let chosen: Option<Vec<String>> = line.split(',').map(one).collect();
            chosen.map(|all| json!(all)).ok_or("one of them is none of the list")
        }
        Some("multiple_choice") => one(line).map(Value::String).ok_or("it is none of the list"),
        Some(_) | None if line.is_empty() => Err("an answer is needed"),
        Some(_) | None => Ok(Value::String(line.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_given_by_number_or_text() {
        let choices = ["red", "blue"].map(str::to_owned);
        let question = |kind: &str, other: bool| json!({"type": kind, "allow_other": other});
        let one = question("multiple_choice", false);
        assert_eq!(read(&one, &choices, "2"), Ok(json!("blue")));
        assert_eq!(read(&one, &choices, "red"), Ok(json!("red")));
        assert!(read(&one, &choices, "green").is_err());
        assert_eq!(
            read(&question("multiple_choice", true), &choices, "green"),
            Ok(json!("green"))
        );
        let several = question("multi_select", false);
        assert_eq!(read(&several, &choices, "1, blue"), Ok(json!(["red", "blue"])));
        assert!(read(&several, &choices, "1, 7").is_err());
        assert!(read(&json!({"type": "text"}), &[], "").is_err());
    }
}
