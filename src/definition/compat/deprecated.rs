//! Deprecated keys, which are translated to the present ones.
//!
//! Agents once had one set of defaults for all their subagents (`default_model`, `default_tools`, `default_middleware`,
//! `default_interrupt_on`) and a switch for the general-purpose subagent (`general_purpose_agent`).

use serde_json::{Map, Value, json};

use crate::definition::diagnostic::{Diagnostic, FieldPath};

/// Each deprecated key and the field of a subagent for which it is the default.
const DEFAULTS: [(&str, &str); 3] = [
    ("default_model", "model"),
    ("default_tools", "tools"),
    ("default_interrupt_on", "interrupt_on"),
];
/// The deprecated key of the policies that every subagent has, and the field in which they come before its own.
const POLICIES: (&str, &str) = ("default_middleware", "middleware");
const SWITCH: &str = "general_purpose_agent";
const GENERAL: &str = "general_purpose_subagent";

/// Replaces the deprecated keys of an agent's definition. Returns one warning that names all of them.
///
/// Present keys precede deprecated ones: a subagent's own field, and all of `general_purpose_subagent`.
pub fn translate(agent: &mut Map<String, Value>) -> Option<Diagnostic> {
    let mut found = vec![];
    let mut defaults = Map::new();
    for (key, field) in DEFAULTS {
        if let Some(value) = agent.shift_remove(key) {
            found.push(key);
            defaults.insert(field.to_owned(), value);
        }
    }
    let policies = agent.shift_remove(POLICIES.0);
    found.extend(policies.is_some().then_some(POLICIES.0));
    let switch = agent.shift_remove(SWITCH);
    // A value of another shape is reported under the field to which it is translated.
    let enabled = switch.clone().unwrap_or(Value::Bool(true));
    found.extend(switch.is_some().then_some(SWITCH));
    let first = *found.first()?;
    let fill = |subagent: &mut Map<String, Value>| {
        fill(subagent, &defaults);
        policies.iter().for_each(|policies| put_before(subagent, policies));
    };
    if let Some(Value::Array(subagents)) = agent.get_mut("subagents") {
        subagents.iter_mut().filter_map(Value::as_object_mut).for_each(fill);
    }
    let general = agent.entry(GENERAL).or_insert_with(|| json!({"enabled": enabled}));
    if let Value::Object(general) = general {
        fill(general);
    }
    let names: Vec<String> = found.iter().map(|key| format!("`{key}`")).collect();
    let message = format!(
        "{} {} deprecated: write `model`, `tools`, `middleware` and `interrupt_on` on each subagent, and `{GENERAL}`",
        names.join(", "),
        if names.len() == 1 { "is" } else { "are" }
    );
    Some(Diagnostic::warning(FieldPath::of([first]), message))
}

fn fill(fields: &mut Map<String, Value>, defaults: &Map<String, Value>) {
    for (field, value) in defaults {
        fields.entry(field.clone()).or_insert_with(|| value.clone());
    }
}

/// Puts the policies that every subagent has before a subagent's own. Values that are not lists are left for the check.
fn put_before(subagent: &mut Map<String, Value>, policies: &Value) {
    match (policies, subagent.get_mut(POLICIES.1)) {
        (Value::Array(policies), Some(Value::Array(own))) => {
            own.splice(0..0, policies.iter().cloned());
        }
        (_, Some(_)) => {}
        (policies, None) => drop(subagent.insert(POLICIES.1.to_owned(), policies.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn translated(agent: Value) -> (Value, Option<String>) {
        let mut agent = agent.as_object().cloned().unwrap_or_default();
        let warning = translate(&mut agent).map(|finding| finding.message);
        (Value::Object(agent), warning)
    }

    #[test]
    fn defaults_fill_what_subagents_leave_out() {
        let agent = json!({
            "default_model": "lab:small", "default_tools": ["lookup"], "default_interrupt_on": {"lookup": true},
            "subagents": [{"name": "a", "tools": []}, {"name": "b", "model": "lab:big"}],
        });
        let rules = json!({"lookup": true});
        let wanted = json!({
            "subagents": [
                {"name": "a", "tools": [], "model": "lab:small", "interrupt_on": rules},
                {"name": "b", "model": "lab:big", "tools": ["lookup"], "interrupt_on": rules},
            ],
            "general_purpose_subagent":
                {"enabled": true, "model": "lab:small", "tools": ["lookup"], "interrupt_on": rules},
        });
        let (agent, warning) = translated(agent);
        assert_eq!(agent, wanted);
        let warning = warning.unwrap_or_default();
        assert!(
            warning.starts_with("`default_model`, `default_tools`, `default_interrupt_on` are"),
            "{warning}"
        );
    }

    #[test]
    fn policies_of_all_subagents_come_before_their_own() {
        let agent = json!({"default_middleware": ["audit"], "subagents": [
            {"name": "a", "middleware": ["TodoListMiddleware"]}, {"name": "b"}]});
        let wanted = json!({
            "subagents": [
                {"name": "a", "middleware": ["audit", "TodoListMiddleware"]}, {"name": "b", "middleware": ["audit"]},
            ],
            "general_purpose_subagent": {"enabled": true, "middleware": ["audit"]},
        });
        let (agent, warning) = translated(agent);
        assert_eq!(agent, wanted);
        assert!(warning.is_some_and(|text| text.starts_with("`default_middleware` is deprecated")));
        let none = translated(json!({"default_middleware": []})).0;
        assert_eq!(
            none,
            json!({"general_purpose_subagent": {"enabled": true, "middleware": []}})
        );
    }

    #[test]
    fn the_old_switch_turns_the_general_purpose_subagent_off_unless_the_new_one_says_otherwise() {
        let (agent, warning) = translated(json!({"general_purpose_agent": false}));
        assert_eq!(agent, json!({"general_purpose_subagent": {"enabled": false}}));
        assert!(warning.is_some_and(|text| text.starts_with("`general_purpose_agent` is deprecated")));
        let both = json!({"general_purpose_agent": false, "general_purpose_subagent": {"name": "helper"}});
        assert_eq!(
            translated(both).0,
            json!({"general_purpose_subagent": {"name": "helper"}})
        );
    }

    #[test]
    fn a_definition_without_them_stays_as_it_is() {
        let agent = json!({"model": "lab:mock", "subagents": []});
        assert_eq!(translated(agent.clone()), (agent, None));
    }
}
