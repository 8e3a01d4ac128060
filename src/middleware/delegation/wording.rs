//! What the model reads about delegation: the words of each dialect, and the texts that are built from the menu.

use serde_json::{Map, Value, json};

use super::{INSTRUCTIONS_TOOL, SubagentList, TASK};
use crate::definition::TaskDialect;
use crate::model::ToolSpec;

/// Where the list of subagents goes in a text.
const SLOT: &str = "{available_agents}";

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

/// What is added to the description of a subagent that begins with the conversation.
const FORK: &str = " (It knows this conversation, so the order need not repeat it.)";

const IN_PROMPT: &str = "The subagents are listed in your instructions.";

/// A text about the guide, for models that are shown the list.
const HINT: &str = "Before you delegate to one marked with *, read how with `get_task_instructions`.";

/// The names of the arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PromptTexts {
    /// What is to be done.
    pub(super) order: &'static str,
    /// Who shall do it.
    pub(super) subagent: &'static str,
    /// Instructions for the general-purpose subagent, if a model may give them.
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

    /// All of them.
    pub(super) fn all(self) -> Vec<&'static str> {
        [self.order, self.subagent].into_iter().chain(self.prompt).collect()
    }

    /// The `task` tool as the model sees it.
    pub(super) fn task_spec(self, menu: &SubagentList) -> ToolSpec {
        let mut properties = Map::new();
        let order = json!({"type": "string", "description": "The whole work order: all that the subagent is told."});
        properties.insert(self.order.to_owned(), order);
        properties.insert(self.subagent.to_owned(), subagent_schema(menu));
        let mut required = vec![self.order];
        let optional = self.dialect == TaskDialect::Synaptic && menu.general.is_some();
        if !optional {
            required.push(self.subagent);
        }
        if let (Some(prompt), Some(general)) = (self.prompt, &menu.general) {
            let about = format!("Instructions in place of the standard ones; for `{general}` only.");
            properties.insert(prompt.to_owned(), json!({"type": "string", "description": about}));
        }
        let parameters = json!({
            "type": "object", "properties": properties, "required": required, "additionalProperties": false,
        });
        ToolSpec {
            name: TASK.to_owned(),
            description: self.description(menu),
            parameters,
        }
    }

    fn description(self, menu: &SubagentList) -> String {
        if let Some(own) = &menu.task_description {
            return own.replace(SLOT, &list(menu));
        }
        let about = match self.dialect {
            _ if menu.unlisted => UNLISTED.to_owned(),
            TaskDialect::Deepagents | TaskDialect::Synaptic => format!("Subagents:\n{}", list(menu)),
            TaskDialect::Sagents => IN_PROMPT.to_owned(),
        };
        STANDARD_TEXT.replace("{order}", self.order).replace(SLOT, &about)
    }

    /// The tool that tells what is written about a task.
    pub(super) fn guide_spec(self, instructions: &[(String, String)]) -> ToolSpec {
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

    /// What is added to the instructions of the agent.
    pub(super) fn prompt(self, menu: &SubagentList) -> Option<String> {
        let section = match (&menu.task_system_prompt, self.dialect) {
            (None, TaskDialect::Sagents) if !menu.unlisted => format!("## Available Tasks\n\n{}", list(menu)),
            (None, _) => return None,
            (Some(text), _) if menu.unlisted => text.clone(),
            (Some(text), _) => format!("{text}\n\nSubagents you can give work to:\n{}", list(menu)),
        };
        Some(section)
    }
}

fn subagent_schema(menu: &SubagentList) -> Value {
    let about = match &menu.general {
        Some(general) if menu.falls_back() => format!("Which subagent does it; `{general}` if none fits."),
        Some(_) | None => "Which subagent does it.".to_owned(),
    };
    let mut schema = json!({"type": "string", "description": about});
    if !menu.falls_back() {
        let names: Vec<&String> = menu.subagents.iter().map(|card| &card.name).collect();
        schema["enum"] = json!(names);
    }
    schema
}

/// One line for each subagent; empty if they are not to be listed.
fn list(menu: &SubagentList) -> String {
    if menu.unlisted {
        return String::new();
    }
    let mut lines: Vec<String> = vec![];
    for card in &menu.subagents {
        let mark = if card.instructions.is_some() { "*" } else { "" };
        let fork = if card.is_fork { FORK } else { "" };
        lines.push(format!("- {}{mark}: {}{fork}", card.name, card.description));
    }
    if menu.subagents.iter().any(|card| card.instructions.is_some()) {
        lines.extend(["".to_owned(), HINT.to_owned()]);
    }
    lines.join("\n")
}

/// The longest instructions that a model may give to a subagent, in characters: the limit of the dialect.
const LONGEST_PROMPT: usize = 10_000;

/// Phrases by which one text tries to undo another.
const OVERRIDES: [&str; 7] = [
    "ignore previous instructions",
    "ignore all previous",
    "ignore the above",
    "disregard previous",
    "disregard the above",
    "forget your instructions",
    "override your system prompt",
];

/// What is wrong with instructions that a model wrote for a subagent.
pub(super) fn prompt_problem(prompt: &str) -> Option<String> {
    if prompt.trim().is_empty() {
        return Some("must not be blank; leave it out for the standard instructions".to_owned());
    }
    if prompt.chars().count() > LONGEST_PROMPT {
        return Some(format!("must have at most {LONGEST_PROMPT} characters"));
    }
    let plain = prompt.split_whitespace().collect::<Vec<_>>().join(" ").to_lowercase();
    let phrase = OVERRIDES.into_iter().find(|phrase| plain.contains(phrase))?;
    Some(format!("must not undo other instructions (`{phrase}`)"))
}
