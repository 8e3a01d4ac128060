//! Checks names.

use super::Check;
use crate::definition::agent::AgentDefinition;
use crate::definition::context_scoping::ContextScoping;
use crate::definition::diagnostic::FieldPath;
use crate::definition::words::is_word;

/// The longest name of an agent, in characters.
const LONGEST: usize = 128;

/// Words that are in the place of a `graph_id` in addresses of the API.
const RESERVED: [&str; 2] = ["search", "validate"];

/// Returns the reason why no agent can have this `graph_id`.
pub(super) fn graph_id_problem(graph_id: &str) -> Option<String> {
    // A leading period is a way through folders for some clients, and hidden on some disks.
    if !is_word(graph_id, LONGEST, ".") || graph_id.starts_with('.') {
        let allowed = "must be 1 to 128 letters, digits, `_`, `-` or `.`, and not begin with a `.`";
        return Some(format!("the graph_id {graph_id:?} {allowed}"));
    }
    let is_reserved = RESERVED.contains(&graph_id);
    is_reserved
        .then(|| format!("the graph_id `{graph_id}` is a word of the API (`/agents/{graph_id}`); choose another"))
}

impl Check<'_> {
    /// The names by which people and models know agents.
    pub(super) fn names(&mut self, agent: &AgentDefinition) {
        let top = FieldPath::default();
        let general = top.then("general_purpose_subagent").then("name");
        let own = [(top.then("name"), agent.name.as_deref())];
        let general = [(general, agent.general_purpose_subagent.name.as_deref())];
        let below = agent
            .subagents_with_fields()
            .map(|(field, subagent)| (field.then("name"), Some(&*subagent.name)));
        for (field, name) in own.into_iter().chain(general).chain(below) {
            let problem = name
                .filter(|name| !name.trim().is_empty())
                .and_then(|name| problem(name, agent.context_scoping));
            problem.into_iter().for_each(|problem| self.error(&field, problem));
        }
    }
}

/// Returns the reason why an agent cannot have this name. Blank names are reported elsewhere.
fn problem(name: &str, scoping: ContextScoping) -> Option<String> {
    if name.chars().count() > LONGEST {
        return Some(format!("must have at most {LONGEST} characters"));
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Some(format!("{name:?} must be one line without white space around it"));
    }
    let is_split = scoping == ContextScoping::Prefix && name.contains(':');
    is_split.then(|| {
        format!("`{name}` must have no `:`, since `context_scoping` is `prefix`: what stands before one is a name")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use crate::definition::ValidationContext;
    use crate::definition::validate::findings_of;

    fn reported(graph_id: &str, body: Value) -> Vec<String> {
        findings_of(graph_id, body, &ValidationContext::of_tests())
    }

    #[test]
    fn a_graph_id_can_stand_in_an_address_and_be_a_folder() {
        let body = json!({"model": "scripted:x"});
        for good in ["a", "A-1_b.c", &"x".repeat(128)] {
            assert_eq!(reported(good, body.clone()), [""; 0]);
        }
        for bad in ["", ".", "..", ".a", "a b", "a/b", "ä", &"x".repeat(129)] {
            assert!(
                reported(bad, body.clone())[0].contains("must be 1 to 128 letters"),
                "{bad}"
            );
        }
        assert!(reported("search", body)[0].contains("is a word of the API"));
    }

    #[test]
    fn names_are_one_line_and_not_endless() {
        let body = |name: &str| {
            let subagent = json!({"name": name, "description": "Does this and all of that.", "system_prompt": "Do."});
            json!({"name": name, "model": "scripted:x", "subagents": [subagent],
                "general_purpose_subagent": {"name": format!("{name}!")}})
        };
        assert_eq!(reported("a", body("Ünlaut & Söhne: Nr. 1")), [""; 0]);
        for (bad, why) in [
            ("a\nb", "one line"),
            (" a", "one line"),
            (&*"x".repeat(129), "at most 128 characters"),
        ] {
            let reported = reported("a", body(bad));
            assert!(reported.iter().all(|line| line.contains(why)), "{reported:#?}");
            assert_eq!(reported.len(), 3, "{reported:#?}");
        }
    }

    #[test]
    fn a_name_with_a_colon_cannot_be_addressed_in_a_scoped_context() {
        let body = json!({"model": "scripted:x", "name": "a:b", "context_scoping": "prefix"});
        assert!(reported("a", body)[0].starts_with("name: `a:b` must have no `:`"));
    }
}
