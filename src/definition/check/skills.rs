//! Checks the skills, their tools, and the memory of an agent.

use super::Check;
use crate::definition::agent::{AgentDefinition, SubagentDefinition};
use crate::definition::diagnostic::FieldPath;
use crate::definition::mcp::{ToolNames, model_tool_name};
use crate::definition::source::{SkillSource, check_paths, check_skills};

/// The skills and the memory of an agent or a subagent.
pub(super) struct SkillsAndMemory<'a> {
    skills: &'a [SkillSource],
    skill_tools: &'a [String],
    memory: &'a [String],
    /// The tools that it has from the beginning.
    tools: &'a [String],
}

impl<'a> SkillsAndMemory<'a> {
    pub(super) fn of_agent(agent: &'a AgentDefinition) -> Self {
        Self {
            skills: &agent.skills,
            skill_tools: &agent.skill_tools,
            memory: &agent.memory,
            tools: &agent.tools,
        }
    }

    pub(super) fn of_subagent(subagent: &'a SubagentDefinition, parent: &'a AgentDefinition) -> Self {
        Self {
            skills: &subagent.skills,
            skill_tools: &subagent.skill_tools,
            memory: &subagent.memory,
            tools: subagent.tools.as_ref().unwrap_or(&parent.tools),
        }
    }
}

impl Check<'_> {
    pub(super) fn skills_and_memory(&mut self, field: &FieldPath, given: &SkillsAndMemory<'_>) {
        self.findings.extend(check_skills(&field.then("skills"), given.skills));
        self.findings.extend(check_paths(
            &field.then("memory"),
            given.memory.iter().map(String::as_str),
        ));
        let field = field.then("skill_tools");
        if !given.skill_tools.is_empty() && given.skills.is_empty() {
            self.error(&field, "goes with `skills` only: a skill that was read discloses them");
        }
        self.tools(&field, given.skill_tools);
        for (at, tool) in given.skill_tools.iter().enumerate() {
            // All tools of a server may be there from the start but for some.
            let disclosed = ToolNames::of([tool]);
            let is_there = |other: &&String| {
                !other.ends_with("/*") && disclosed.contains(&model_tool_name(other)) || *other == tool
            };
            if let Some(other) = given.tools.iter().find(is_there) {
                let message =
                    format!("`{other}` is in `tools`, too; a tool that skills disclose is not there from the start");
                self.error(&field.then(at), message);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::definition::check::check_agent;
    use crate::definition::{AgentDefinition, ValidationContext};

    #[test]
    fn tools_of_skills_need_skills_and_are_no_others() {
        let context = ValidationContext {
            tools: ["lookup".to_owned(), "publish".to_owned()].into_iter().collect(),
            providers: ["scripted".to_owned()].into_iter().collect(),
            ..ValidationContext::default()
        };
        let findings = |body| {
            let agent: AgentDefinition = serde_json::from_value(body).expect("a definition");
            check_agent("a", &agent, &context)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        let good = json!({"model": "scripted:x", "skills": ["/s"], "skill_tools": ["publish"], "tools": ["lookup"],
            "interrupt_on": {"publish": true}});
        assert_eq!(findings(good), [""; 0]);
        let bad = json!({"model": "scripted:x", "tools": ["lookup"], "skill_tools": ["lookup", "nope"]});
        let reported = findings(bad);
        assert!(
            reported[0].starts_with("skill_tools: goes with `skills`"),
            "{reported:#?}"
        );
        assert!(
            reported[1].starts_with("skill_tools[1]: there is no tool `nope`"),
            "{reported:#?}"
        );
        assert!(
            reported[2].starts_with("skill_tools[0]: `lookup` is in `tools`"),
            "{reported:#?}"
        );
    }

    #[test]
    fn tools_of_skills_can_be_those_of_mcp_servers() {
        let context = ValidationContext {
            providers: ["scripted".to_owned()].into_iter().collect(),
            mcp_servers: ["docs".to_owned()].into_iter().collect(),
            ..ValidationContext::default()
        };
        let reported = |tools: &[&str], skill_tools: &[&str]| {
            let body = json!({"model": "scripted:x", "skills": ["/s"], "tools": tools, "skill_tools": skill_tools});
            let agent: AgentDefinition = serde_json::from_value(body).expect("a definition");
            check_agent("a", &agent, &context)
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(reported(&["docs/read"], &["docs/write"]), [""; 0]);
        assert_eq!(reported(&["docs/*"], &["docs/write"]), [""; 0], "all but that one");
        assert!(reported(&[], &["web/*"])[0].starts_with("skill_tools[0]: there is no server `web` of tools"));
        assert!(reported(&["docs/read"], &["docs/*"])[0].starts_with("skill_tools[0]: `docs/read` is in `tools`"));
        assert!(reported(&["docs/*"], &["docs/*"])[0].starts_with("skill_tools[0]: `docs/*` is in `tools`"));
    }

    #[test]
    fn an_agent_without_file_tools_can_read_its_skills() {
        let body =
            json!({"model": "scripted:x", "files": "none", "skills": ["/s"], "interrupt_on": {"read_file": true}});
        let agent: AgentDefinition = serde_json::from_value(body).expect("a definition");
        let providers = ["scripted".to_owned()].into_iter().collect();
        assert_eq!(
            check_agent(
                "a",
                &agent,
                &ValidationContext {
                    providers,
                    ..ValidationContext::default()
                }
            ),
            []
        );
    }
}
