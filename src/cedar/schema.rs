//! The Cedar schema of the server: the types and the actions that policies can name.

use std::fmt::Write;

use crate::domain::access::Action;

/// The actions that change nothing, as a group.
const READS: &str = "reads";
/// The actions that change something, as a group.
const CHANGES: &str = "changes";

/// The types of resources with metadata that policies can ask about.
const WITH_METADATA: [&str; 3] = ["Thread", "Interrupt", "Assistant"];
/// The other types of resources.
const WITHOUT_METADATA: [&str; 5] = ["Agent", "Cron", "Delivery", "Item", "Server"];

/// Returns the type of the resources of an action.
pub(super) fn type_of(action: Action) -> &'static str {
    match action.resource() {
        "threads" => "Thread",
        "interrupts" => "Interrupt",
        "assistants" => "Assistant",
        "agents" => "Agent",
        "crons" => "Cron",
        "deliveries" => "Delivery",
        "store" => "Item",
        _ => "Server",
    }
}

/// Returns the groups of an action: its kind of resource, and whether it changes something.
pub(super) fn groups_of(action: Action) -> [&'static str; 2] {
    [action.resource(), if action.is_read() { READS } else { CHANGES }]
}

/// Returns the schema in the Cedar language.
pub(super) fn text() -> String {
    let mut text = "\
        entity Tenant;\n\
        entity User in [Tenant] {\n    tenant: String,\n    roles: Set<String>,\n    permissions: Set<String>,\n} tags String;\n"
        .to_owned();
    for name in WITH_METADATA {
        _ = writeln!(text, "entity {name} {{ owner: User }} tags String;");
    }
    for name in WITHOUT_METADATA {
        _ = writeln!(text, "entity {name} {{ owner: User }};");
    }
    let mut groups: Vec<&str> = Action::ALL.iter().flat_map(|action| groups_of(*action)).collect();
    groups.sort_unstable();
    groups.dedup();
    for group in groups {
        _ = writeln!(text, "action \"{group}\";");
    }
    for action in Action::ALL {
        let [kind, effect] = groups_of(*action);
        let resource = type_of(*action);
        _ = writeln!(
            text,
            "action \"{action}\" in [\"{kind}\", \"{effect}\"] appliesTo {{ principal: User, resource: {resource} }};"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_has_every_action_with_its_resource() {
        let text = text();
        for action in Action::ALL {
            assert!(text.contains(&format!("action \"{action}\" in")), "{action}");
        }
        assert!(cedar_policy::Schema::from_cedarschema_str(&text).is_ok(), "{text}");
    }
}
