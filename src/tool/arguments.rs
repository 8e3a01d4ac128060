//! Validation of a call's arguments against the tool's JSON Schema, with error texts from which a model can correct
//! them.

use std::sync::OnceLock;

use jsonschema::ValidationError;
use jsonschema::error::{TypeKind, ValidationErrorKind};
use serde_json::{Map, Value};
use tokio::runtime::RuntimeFlavor;

use crate::domain::schema::{Schema, SchemaCheck};
use crate::model::ToolSpec;

/// The maximum number of invalid fields that one error text names.
const MAX_LINES: usize = 20;

/// The validator of one tool's arguments. The schema is compiled at the first call.
pub struct ArgumentCheck {
    tool: String,
    schema: Value,
    compiled: OnceLock<Option<Schema>>,
}

impl ArgumentCheck {
    /// Creates a validator for the parameters of `spec`.
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

    /// Validates `args`. A schema that does not compile accepts everything: the definition was rejected earlier, or the
    /// tool validates by itself.
    ///
    /// # Errors
    /// The text for the model, with one line for each invalid field.
    pub fn check(&self, args: &Map<String, Value>) -> Result<(), String> {
        let Some(compiled) = self.compiled() else { return Ok(()) };
        let args = Value::Object(args.clone());
        let verdict = run_blocking(compiled.takes_long(&args), || compiled.validate(&args));
        let mut lines: Vec<String> = match verdict {
            SchemaCheck::Fits => return Ok(()),
            SchemaCheck::Wrong(errors) => errors.iter().flat_map(error_lines).collect(),
            SchemaCheck::Unexplained(reason) => vec![format!("- the whole {reason}")],
        };
        lines.dedup();
        let left_out = lines.len().saturating_sub(MAX_LINES);
        lines.truncate(MAX_LINES);
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

/// Runs `work` on this thread. If it takes long, the other tasks of this thread are moved to other threads first
/// (`tokio::task::block_in_place`).
pub fn run_blocking<T>(takes_long: bool, work: impl FnOnce() -> T) -> T {
    let flavor = tokio::runtime::Handle::try_current().map(|runtime| runtime.runtime_flavor());
    match flavor {
        Ok(RuntimeFlavor::MultiThread) if takes_long => tokio::task::block_in_place(work),
        Ok(_) | Err(_) => work(),
    }
}

/// Returns one line for each field that `error` concerns.
fn error_lines(error: &ValidationError<'_>) -> Vec<String> {
    let path = field_path(error);
    let inside = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
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
            "- `{path}`: must be {}, but is {}",
            expected_type(kind),
            type_name(error.instance())
        )];
    }
    if let ValidationErrorKind::Enum { options } = error.kind() {
        return vec![format!("- `{path}`: must be one of {options}")];
    }
    vec![format!("- `{path}`: {}", error.masked_with("the value"))]
}

/// Returns the path of the field with the error, as in `recipients[0].name`.
fn field_path(error: &ValidationError<'_>) -> String {
    let pointer = error.instance_path().to_string();
    let mut path = String::new();
    for part in pointer.split('/').filter(|part| !part.is_empty()) {
        if part.bytes().all(|byte| byte.is_ascii_digit()) {
            path.push_str(&format!("[{part}]"));
        } else {
            path.push_str(if path.is_empty() { "" } else { "." });
            path.push_str(&part.replace("~1", "/").replace("~0", "~"));
        }
    }
    path
}

fn expected_type(kind: &TypeKind) -> String {
    match kind {
        TypeKind::Single(one) => one.to_string(),
        TypeKind::Multiple(several) => several
            .iter()
            .map(|one| one.to_string())
            .collect::<Vec<_>>()
            .join(" or "),
    }
}

fn type_name(value: &Value) -> &'static str {
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

    fn error_text(args: Value) -> String {
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
    fn valid_arguments_pass() {
        assert_eq!(error_text(json!({"to": [{"name": "al"}], "body": "hi"})), "");
    }

    #[test]
    fn each_invalid_field_has_a_line_that_names_it() {
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
            let text = error_text(args);
            assert!(text.contains(line), "{text}");
            assert!(text.contains("`send`"), "{text}");
            assert_eq!(text.lines().count(), 3, "{text}");
        }
    }

    #[test]
    fn an_invalid_schema_accepts_everything() {
        let spec = ToolSpec {
            name: "odd".to_owned(),
            description: String::new(),
            parameters: json!({"type": 7}),
        };
        assert_eq!(ArgumentCheck::new(&spec).check(&Map::new()), Ok(()));
    }
}
