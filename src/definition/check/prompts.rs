//! Checks the instructions of an agent and its subagents.

use crate::definition::agent::AgentDefinition;
use crate::definition::diagnostic::{Diagnostic, FieldPath};
use crate::definition::prompt::SystemPrompt;

impl AgentDefinition {
    /// Returns the instructions of the agent and its subagents, each with its field.
    pub(super) fn prompts(&self) -> impl Iterator<Item = (FieldPath, &SystemPrompt)> {
        let top = FieldPath::default();
        let own = (top.then("system_prompt"), &self.system_prompt);
        let field = top.then("general_purpose_subagent").then("system_prompt");
        let general = self.general_purpose_subagent.system_prompt.as_ref();
        let general = general.map(|prompt| (field, prompt));
        let below = self.subagents_with_fields();
        let below = below.map(|(field, subagent)| (field.then("system_prompt"), &subagent.system_prompt));
        std::iter::once(own).chain(general).chain(below)
    }

    /// Checks the instructions of the agent and its subagents.
    pub(super) fn check_prompts(&self) -> Vec<Diagnostic> {
        self.prompts()
            .flat_map(|(field, prompt)| prompt.check(&field))
            .collect()
    }
}
