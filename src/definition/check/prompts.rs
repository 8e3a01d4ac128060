//! Checks the instructions of an agent and its subagents.

use crate::definition::agent::AgentDefinition;
use crate::definition::diagnostic::{Diagnostic, FieldPath};

impl AgentDefinition {
    /// Checks the instructions of the agent and its subagents.
    pub(super) fn check_prompts(&self) -> Vec<Diagnostic> {
        let top = FieldPath::default();
        let general = self.general_purpose_subagent.system_prompt.as_ref();
        let general = general.map(|own| own.check(&top.then("general_purpose_subagent").then("system_prompt")));
        let subagents = self.subagents.iter().enumerate();
        let of_subagent = |at: usize| FieldPath::of(["subagents"]).then(at).then("system_prompt");
        let own = self
            .system_prompt
            .check(&top.then("system_prompt"))
            .into_iter()
            .chain(general.unwrap_or_default());
        own.chain(subagents.flat_map(|(at, subagent)| subagent.system_prompt.check(&of_subagent(at))))
            .collect()
    }
}
