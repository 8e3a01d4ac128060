//! Whether the arguments of a call fit the tool's schema, said so that a model can mend them.

use std::sync::OnceLock;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::{Map, Value};
use tokio::runtime::RuntimeFlavor;

use crate::domain::schema::{Schema, Verdict};
use crate::model::ToolSpec;

/// How many wrong fields are named at most.
const MOST_LINES: usize = 20;

/// The check of one tool's arguments. The schema is compiled at the first call.
pub struct ArgumentCheck {
    tool: String,
    schema: Value,
    compiled: OnceLock<Option<Schema>>,
}

impl ArgumentCheck {
    /// A check against the parameters of `spec`.
    pub fn new(spec: &ToolSpec) -> Self {
        Self {
            tool: spec.name.clone(),
            schema: spec.parameters.clone(),
            compiled: OnceLock::new(),
        }
    }

    fn compiled(&self) -> Option<&Schema> {
        self.compiled
            .get_or_init(|| Schema::compile(&self.schema).ok())
            .as_ref()
    }

    /// Checks `args`. A schema that cannot be compiled checks nothing: it was refused when the tool was declared, or
    /// the tool checks by itself.
    ///
    /// # Errors
    /// The text for the model: one line for each wrong field.
    pub fn check(&self, args: &Map<String, Value>) -> Result<(), String> {
        let Some(compiled) = self.compiled() else { return Ok(()) };
        let args = Value::Object(args.clone());
        let verdict = aside(compiled.takes_long(&args), || compiled.judge(&args));
        let mut lines: Vec<String> = match verdict {
            Verdict::Fits => return Ok(()),
            Verdict::Wrong(errors) => errors.iter().flat_map(complaints).collect(),
            Verdict::Unexplained(reason) => vec![format!("- the whole {reason}")],
        };
        lines.dedup();
        let left_out = lines.len().saturating_sub(MOST_LINES);
        lines.truncate(MOST_LINES);
        if left_out > 0 {
            lines.push(format!("- and {left_out} more"));
        }
        Err(format!(
            "Error: the arguments of `{}` do not fit its schema. Nothing was run.\n{}\nCorrect them and call again.",
            self.tool,
            lines.join("\n")
        ))
    }
}

/// Does `work`, and lets other tasks go on meanwhile on other threads if it takes long.
pub fn aside<T>(takes_long: bool, work: impl FnOnce() -> T) -> T {
    let flavor = tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) if takes_long => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

/// One line for each field that `error` is about.
fn complaints(error: &ValidationError<'_>) -> Vec<String> {
    let place = field(error);
    let inside = |name: &str| {
        if place.is_empty() {
            name.to_owned()
        } else {
            format!("{place}.{name}")
        }
    };
    if let ValidationErrorKind::Required { property } = error.kind() {
        return vec![format!(
            "- `{}`: is required, but missing",
            inside(property.as_str().unwrap_or_default())
        )];
    }
    if let ValidationErrorKind::AdditionalProperties { unexpected }
    | ValidationErrorKind::UnevaluatedProperties { unexpected } = error.kind()
    {
        return unexpected
            .iter()
            .map(|name| format!("- `{}`: there is no such field", inside(name)))
            .collect();
    }
    if let ValidationErrorKind::Type { kind } = error.kind() {
        return vec![format!(
            "- `{place}`: must be {}, but is {}",
            wanted(kind),
            kind_of(error.instance())
        )];
    }
    if let ValidationErrorKind::Enum { options } = error.kind() {
        return vec![format!("- `{place}`: must be one of {options}")];
    }
    vec![format!("- `{place}`: {}", error.masked_with("the value"))]
}

/// The place of the error as `recipients[0].name`.
fn field(error: &ValidationError<'_>) -> String {
    let pointer = error.instance_path().to_string();
    let mut place = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            place.push_str(&format!("[{part}]"));
        } else {
            place.push_str(if place.is_empty() { "" } else { "." });
            place.push_str(&part.replace("~1", "/").replace("~0", "~"));
        }
    }
    place
}

fn wanted(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(several) => several
            .iter()
            .map(|one| one.to_string())
            .collect::<Vec<_>>()
            .join(" or "),
    }
}

fn kind_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn complaint(args: Value) -> String {
        let parameters = json!({
            "type": "object",
            "properties": {
                "to": {"type": "array", "items": {"type": "object", "properties": {"name": {"type": "string"}}}},
                "body": {"type": "string", "maxLength": 5},
                "kind": {"enum": ["plain", "rich"]},
            },
            "required": ["to", "body"],
            "additionalProperties": false,
        });
        let spec = ToolSpec {
            name: "send".to_owned(),
            description: String::new(),
            parameters,
        };
        let args = args.as_object().cloned().unwrap_or_default();
        ArgumentCheck::new(&spec).check(&args).err().unwrap_or_default()
    }

    #[test]
    fn fitting_arguments_pass() {
        assert_eq!(complaint(json!({"to": [{"name": "al"}], "body": "hi"})), "");
    }

    #[test]
    fn each_wrong_field_has_a_line_that_names_it() {
        let cases = [
            (json!({"to": []}), "- `body`: is required, but missing\n"),
            (
                json!({"to": [], "body": "", "cc": 1}),
                "- `cc`: there is no such field\n",
            ),
            (
                json!({"to": [{"name": 7}], "body": ""}),
                "- `to[0].name`: must be string, but is integer\n",
            ),
            (
                json!({"to": [], "body": "", "kind": "x"}),
                "- `kind`: must be one of [\"plain\",\"rich\"]\n",
            ),
            (
                json!({"to": [], "body": "too long"}),
                "- `body`: the value is longer than 5 characters\n",
            ),
        ];
        for (args, line) in cases {
            let text = complaint(args);
            assert!(text.contains(line), "{text}");
            assert!(text.contains("`send`"), "{text}");
            assert_eq!(text.lines().count(), 3, "{text}");
        }
    }

    #[test]
    fn a_schema_that_is_none_checks_nothing() {
        let spec = ToolSpec {
            name: "odd".to_owned(),
            description: String::new(),
            parameters: json!({"type": 7}),
        };
        assert_eq!(ArgumentCheck::new(&spec).check(&Map::new()), Ok(()));
    }
}
