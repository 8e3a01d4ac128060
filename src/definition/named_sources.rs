//! The files and folders that a definition names as skills and memory.

use super::agent::AgentDefinition;
use super::diagnostic::FieldPath;
use super::listed_settings::ListedSettings;
use super::policy::Policy;
use super::source::SkillSource;

/// A file or folder that a definition names.
#[derive(Debug, Clone, PartialEq)]
pub struct NamedSource {
    /// The field that names it.
    pub field: FieldPath,
    /// The path, as it is written.
    pub path: String,
    /// The tools that the skills of a folder may disclose; `None` for a memory file.
    pub tools: Option<Vec<String>>,
}

impl AgentDefinition {
    /// Returns the files and folders that the definition and its subagents name as skills and memory.
    pub fn named_sources(&self) -> Vec<NamedSource> {
        let mut all = of_fields(&FieldPath::default(), &self.skills, &self.skill_tools, &self.memory);
        all.extend(of_policies(&FieldPath::of(["middleware"]), &self.middleware));
        let general = FieldPath::of(["general_purpose_subagent"]).then("middleware");
        all.extend(of_policies(&general, &self.general_purpose_subagent.middleware));
        for (field, subagent) in self.subagents_with_fields() {
            all.extend(of_fields(
                &field,
                &subagent.skills,
                &subagent.skill_tools,
                &subagent.memory,
            ));
            all.extend(of_policies(&field.then("middleware"), &subagent.middleware));
        }
        all
    }
}

fn of_fields(field: &FieldPath, skills: &[SkillSource], tools: &[String], memory: &[String]) -> Vec<NamedSource> {
    let mut all = entries(&field.then("skills"), skills.iter().map(SkillSource::path), Some(tools));
    all.extend(entries(&field.then("memory"), memory.iter().map(String::as_str), None));
    all
}

/// Returns the files and folders that listed policies name.
fn of_policies(list: &FieldPath, policies: &[Policy]) -> Vec<NamedSource> {
    let mut all = vec![];
    for (at, policy) in policies.iter().enumerate() {
        let values = ListedSettings::of(std::slice::from_ref(policy));
        let field = list.then(at).then("sources");
        if let Some((sources, tools)) = &values.skills {
            all.extend(entries(&field, sources.iter().map(SkillSource::path), Some(tools)));
        }
        all.extend(entries(
            &field,
            values.memory.iter().flatten().map(String::as_str),
            None,
        ));
    }
    all
}

/// Returns the entries of one list of files or folders.
fn entries<'a>(list: &FieldPath, paths: impl Iterator<Item = &'a str>, tools: Option<&[String]>) -> Vec<NamedSource> {
    let entry = |(at, path): (usize, &str)| NamedSource {
        field: list.then(at),
        path: path.to_owned(),
        tools: tools.map(<[String]>::to_vec),
    };
    paths.enumerate().map(entry).collect()
}
