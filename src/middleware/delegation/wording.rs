//! The texts for the model about delegation: the argument names of each dialect, and texts built from the list of
//! subagents.

use serde_json::{Map, Value, json};

use super::{INSTRUCTIONS_TOOL, SubagentList, TASK};
use crate::definition::TaskDialect;
use crate::model::ToolSpec;

/// The placeholder for the list of subagents.
const PLACEHOLDER: &str = "{available_agents}";

const STANDARD_TEXT: &str = "Hands a piece of work to a subagent and waits for its report.\n\n\
    {available_agents}\n\n\
    A subagent begins with an empty conversation. It knows nothing of yours, so the {order} must say everything: \
    what is to be done, with which facts, and what the report shall contain. It shares your files. You see its last \
    message and nothing else, and the user sees nothing of it unless you pass it on. You cannot talk to it while it \
    works, and it is gone when it has reported.\n\n\
    Delegate work that takes many steps or much reading and of which you need only the outcome. Do simple things \
    yourself. Pieces that do not depend on each other can run at the same time: put several calls into one message.";

const UNLISTED: &str = "Which subagents there are for the present work, you are told when they are needed. Do not guess a \
    name; wait until you are directed to one.";

/// The addition to the description of a subagent that continues the conversation.
const FORK: &str = " (It knows this conversation, so the order need not repeat it.)";

const IN_PROMPT: &str = "The subagents are listed in your instructions.";

/// The text about the instructions tool, for models that have the list of subagents.
const HINT: &str = "Before you delegate to one marked with *, read how with `get_task_instructions`.";

/// The argument names of a dialect, and the texts that use them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptTexts {
    /// The name of the argument with the task's description.
    pub(super) order: &'static str,
    /// The name of the argument with the subagent's name.
    pub(super) subagent: &'static str,
    /// The name of the argument with instructions for the general-purpose subagent, if the dialect has one.
    pub(super) prompt: Option<&'static str>,
    dialect: TaskDialect,
}

impl PromptTexts {
    pub(super) fn of(dialect: TaskDialect) -> Self {
        let (order, subagent, prompt) = match dialect {
            TaskDialect::Deepagents => ("description", "subagent_type", None),
            TaskDialect::Synaptic => ("description", "agent_type", None),
            TaskDialect::Sagents => ("instructions", "task_name", Some("system_prompt")),
        };
        Self {
            order,
            subagent,
            prompt,
            dialect,
        }
    }

    /// Returns all argument names.
    pub(super) fn all(self) -> Vec<&'static str> {
        [self.order, self.subagent].into_iter().chain(self.prompt).collect()
    }

    /// Returns the specification of the `task` tool.
    pub(super) fn task_spec(self, list: &SubagentList) -> ToolSpec {
        let mut properties = Map::new();
        let order = json!({"type": "string", "description": "The whole work order: all that the subagent is told."});
        properties.insert(self.order.to_owned(), order);
        properties.insert(self.subagent.to_owned(), subagent_schema(list));
        let mut required = vec![self.order];
        let optional = self.dialect == TaskDialect::Synaptic && list.general.is_some();
        if !optional {
            required.push(self.subagent);
        }
        if let Some(prompt) = self.prompt
            && let Some(general) = &list.general
        {
            let about = format!("Instructions in place of the standard ones; for `{general}` only.");
            properties.insert(prompt.to_owned(), json!({"type": "string", "description": about}));
        }
        let parameters = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        ToolSpec {
            name: TASK.to_owned(),
            description: self.description(list),
            parameters,
        }
    }

    fn description(self, list: &SubagentList) -> String {
        if let Some(own) = &list.task_description {
            return own.replace(PLACEHOLDER, &subagent_lines(list));
        }
        let about = match self.dialect {
            _ if list.unlisted => UNLISTED.to_owned(),
            TaskDialect::Deepagents | TaskDialect::Synaptic => format!("Subagents:\n{}", subagent_lines(list)),
            TaskDialect::Sagents => IN_PROMPT.to_owned(),
        };
        STANDARD_TEXT
            .replace("{order}", self.order)
            .replace(PLACEHOLDER, &about)
    }

    /// Returns the specification of the instructions tool.
    pub(super) fn instructions_spec(self, instructions: &[(String, String)]) -> ToolSpec {
        let names: Vec<&String> = instructions.iter().map(|(name, _)| name).collect();
        let parameters = json!({
            "type": "object",
            "properties": {self.subagent: {"type": "string", "enum": names, "description": "Which subagent."}},
            "required": [self.subagent],
            "additionalProperties": false,
        });
        let description = "Tells how work for a subagent is to be described. Read it before you delegate to it.";
        ToolSpec {
            name: INSTRUCTIONS_TOOL.to_owned(),
            description: description.to_owned(),
            parameters,
        }
    }

    /// Returns the text added to the agent's instructions.
    pub(super) fn prompt(self, list: &SubagentList) -> Option<String> {
        let section = match (&list.task_system_prompt, self.dialect) {
            (None, TaskDialect::Sagents) if !list.unlisted => format!("## Available Tasks\n\n{}", subagent_lines(list)),
            (None, _) => return None,
            (Some(text), _) if list.unlisted => text.clone(),
            (Some(text), _) => format!("{text}\n\nSubagents you can give work to:\n{}", subagent_lines(list)),
        };
        Some(section)
    }
}

fn subagent_schema(list: &SubagentList) -> Value {
    let about = match &list.general {
        Some(general) if list.falls_back() => format!("Which subagent does it; `{general}` if none fits."),
        Some(_) | None => "Which subagent does it.".to_owned(),
    };
    let mut schema = json!({"type": "string", "description": about});
    if !list.falls_back() {
        let names: Vec<&String> = list.subagents.iter().map(|card| &card.name).collect();
        schema["enum"] = json!(names);
    }
    schema
}

/// Returns one line for each subagent; empty if they are not listed.
fn subagent_lines(list: &SubagentList) -> String {
    if list.unlisted {
        return String::new();
    }
    let mut lines: Vec<String> = vec![];
    for card in &list.subagents {
        let mark = if card.instructions.is_some() { "*" } else { "" };
        let fork = if card.is_fork { FORK } else { "" };
        lines.push(format!("- {}{mark}: {}{fork}", card.name, card.description));
    }
    if list.subagents.iter().any(|card| card.instructions.is_some()) {
        lines.extend(["".to_owned(), HINT.to_owned()]);
    }
    lines.join("\n")
}

/// The maximum length of instructions that a model may give to a subagent, in characters: the limit of the dialect.
const MAX_PROMPT_CHARS: usize = 10_000;

/// Phrases that try to override other instructions.
const OVERRIDES: [&str; 7] = [
    "ignore previous instructions",
    "ignore all previous",
    "ignore the above",
    "disregard previous",
    "disregard the above",
    "forget your instructions",
    "override your system prompt",
];

/// Returns the error in instructions that a model wrote for a subagent.
pub(super) fn prompt_error(prompt: &str) -> Option<String> {
    if prompt.trim().is_empty() {
        return Some("must not be blank; leave it out for the standard instructions".to_owned());
    }
    if prompt.chars().count() > MAX_PROMPT_CHARS {
        return Some(format!("must have at most {MAX_PROMPT_CHARS} characters"));
    }
    let plain = prompt.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let phrase = OVERRIDES.into_iter().find(|phrase| plain.contains(phrase))?;
    Some(format!("must not undo other instructions (`{phrase}`)"))
}
