//! The files and folders that a definition names as skills and memory.

use super::diagnostic::FieldPath;
use super::source::entries;
use super::{AgentDefinition, NamedSource, SkillSource, policy};

impl AgentDefinition {
    /// Returns the files and folders that the definition and its subagents name as skills and memory.
    pub fn named_sources(&self) -> Vec<NamedSource> {
        let mut all = of_fields(&FieldPath::default(), &self.skills, &self.skill_tools, &self.memory);
        all.extend(policy::named_sources(&FieldPath::of(["middleware"]), &self.middleware));
        let general = FieldPath::of(["general_purpose_subagent"]).then("middleware");
        all.extend(policy::named_sources(
            &general,
            &self.general_purpose_subagent.middleware,
        ));
        for (at, subagent) in self.subagents.iter().enumerate() {
            let field = FieldPath::of(["subagents"]).then(at);
            all.extend(of_fields(
                &field,
                &subagent.skills,
                &subagent.skill_tools,
                &subagent.memory,
            ));
            all.extend(policy::named_sources(&field.then("middleware"), &subagent.middleware));
        }
        all
    }
}

fn of_fields(field: &FieldPath, skills: &[SkillSource], tools: &[String], memory: &[String]) -> Vec<NamedSource> {
    let mut all = entries(&field.then("skills"), skills.iter().map(SkillSource::path), Some(tools));
    all.extend(entries(&field.then("memory"), memory.iter().map(String::as_str), None));
    all
}
