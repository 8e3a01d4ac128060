//! Checks what the calls of a tool may read.

use super::diagnostic::{Diagnostic, FieldPath, check_length};
use super::namespace::check_namespace;
use super::words::path_problem;
use crate::domain::read_access::ReadAccess;
use crate::domain::state::is_private;

/// The most entries of each list.
const MOST: usize = 64;
/// The longest name of a field of the state, in bytes.
const LONGEST_FIELD: usize = 256;

/// Checks the declaration in `field`.
pub(super) fn check_read_access(field: &FieldPath, access: &ReadAccess) -> Vec<Diagnostic> {
    let ReadAccess { state, files, store } = access;
    let mut findings = vec![];
    for (name, length) in [("state", state.len()), ("files", files.len()), ("store", store.len())] {
        findings.extend(check_length(&field.then(name), length, MOST));
    }
    for (at, name) in state.iter().enumerate() {
        let field = field.then("state").then(at);
        findings.extend(state_field_problem(name).map(|problem| Diagnostic::error(field, problem)));
    }
    for (at, pattern) in files.iter().enumerate() {
        let field = field.then("files").then(at);
        findings.extend(path_problem(pattern).map(|problem| Diagnostic::error(field, problem)));
    }
    for (at, labels) in store.iter().enumerate() {
        let field = field.then("store").then(at);
        findings.extend(check_namespace(&field, labels));
    }
    findings
}

/// Returns the reason why calls cannot read this field of the state.
fn state_field_problem(name: &str) -> Option<String> {
    if name == "files" {
        return Some("is not `files`: patterns under `files` say which files can be read".to_owned());
    }
    if is_private(name) {
        return Some(format!("`{name}` belongs to the server, and no tool reads it"));
    }
    let is_name = !name.trim().is_empty() && name.len() <= LONGEST_FIELD;
    (!is_name).then(|| format!("must be the name of a field, of 1 to {LONGEST_FIELD} bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_with_a_declaration_is_said_with_its_field() {
        let read = |value: serde_json::Value| -> ReadAccess { serde_json::from_value(value).expect("a declaration") };
        let findings = |access: &ReadAccess| -> Vec<String> {
            let found = check_read_access(&FieldPath::of(["read_access"]), access);
            found.iter().map(ToString::to_string).collect()
        };
        let right = read(serde_json::json!({
            "state": ["messages", "todos"], "files": ["/reports/**"], "store": [["memories", "{user_id}"]],
        }));
        assert_eq!(findings(&right), [""; 0]);
        assert_eq!(findings(&ReadAccess::default()), [""; 0]);
        let wrong = read(serde_json::json!({
            "state": ["files", "_system_prompt", " "],
            "files": ["reports/**", "/a/../b", "/{a"],
            "store": [[], ["a.b"], ["a", "{"]],
        }));
        let found = findings(&wrong);
        let expected = [
            "read_access.state[0]: is not `files`",
            "read_access.state[1]: `_system_prompt` belongs to the server",
            "read_access.state[2]: must be the name of a field",
            "read_access.files[0]: `reports/**` must begin with /",
            "read_access.files[1]: `/a/../b` must contain neither",
            "read_access.files[2]: `/{a` is no pattern",
            "read_access.store[0]: must have at least one label",
            "read_access.store[1][0]: Namespace label 'a.b'",
            "read_access.store[2][1]: `{` must be a text with placeholders",
        ];
        assert_eq!(found.len(), expected.len(), "{found:#?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.starts_with(expected), "{found}");
        }
        let many = ReadAccess {
            state: (0..=MOST).map(|at| format!("f{at}")).collect(),
            ..ReadAccess::default()
        };
        assert_eq!(
            findings(&many),
            ["read_access.state: has 65 entries; at most 64 are allowed"]
        );
    }
}
