//! The table of the policies of the server and of their tools.
//!
//! The tools and state fields of a policy, and its settings in definitions, stand here once; the checks, the reserved
//! names and the policies themselves read it. A policy that only takes settings where it is listed needs no row: see
//! [`super::RegisteredPolicy`].

/// The list of things to do.
pub const TODOS: &str = "TodoListMiddleware";
/// The tools for the Store. Those that only read come first.
pub const STORE: &str = "StoreMiddleware";
/// Skills.
pub const SKILLS: &str = "SkillsMiddleware";
/// Memory in files.
pub const MEMORY: &str = "MemoryMiddleware";
/// Questions to the user.
pub const ASK_USER: &str = "AskUserMiddleware";
/// Approvals.
pub const APPROVAL: &str = "HumanInTheLoopMiddleware";
/// The work ends with a certain tool.
pub const UNTIL: &str = "UntilToolMiddleware";
/// The limit on model calls.
pub const MODEL_CALLS: &str = "ModelCallLimitMiddleware";
/// The limit on tool calls.
pub const TOOL_CALLS: &str = "ToolCallLimitMiddleware";
/// The file tools.
pub const FILES: &str = "FilesystemMiddleware";
/// Delegation to subagents.
pub const SUBAGENTS: &str = "SubAgentMiddleware";
/// Results for calls that have none.
pub const REPAIR: &str = "PatchToolCallsMiddleware";
/// Work in the background.
pub const BACKGROUND: &str = "AsyncSubAgentMiddleware";
/// Final answers of a given form.
pub const STRUCTURED: &str = "StructuredOutputMiddleware";
/// The limits of a run.
pub const LIMITS: &str = "LimitsMiddleware";
/// Summaries of long conversations.
pub const SUMMARIZATION: &str = crate::domain::summarization::NODE;
/// Content that the model cannot take.
pub const UNSUPPORTED_CONTENT: &str = "UnsupportedContentMiddleware";
/// Calls that fail again and again.
pub const REPEATED_FAILURES: &str = "RepeatedFailuresMiddleware";

/// Rules for tool calls.
pub const PERMISSIONS: &str = "PermissionsMiddleware";

/// Calls that failed are made again.
pub const TOOL_RETRY: &str = "ToolRetryMiddleware";
/// Personal data is removed.
pub const PII: &str = "PIIMiddleware";

/// The settings that have another name in LangChain, which is understood as well: the policy, the name there, and the name
/// here.
pub const OTHER_NAMES: [(&str, &str, &str); 4] = [
    (TOOL_CALLS, "tool_name", "tool"),
    (TOOL_RETRY, "initial_delay", "initial_delay_s"),
    (TOOL_RETRY, "max_delay", "max_delay_s"),
    (PII, "pii_type", "type"),
];

/// Policies of LangChain whose work has another place here, and that place.
pub const ELSEWHERE: [(&str, &str); 7] = [
    (
        "ModelFallbackMiddleware",
        "give several models, `model = [\"…\", \"…\"]`",
    ),
    ("ModelRetryMiddleware", "set `max_retries` in `[providers.NAME]`"),
    (
        "ToolErrorMiddleware",
        "errors of tools are results unless `on_error` of the tool says otherwise",
    ),
    ("SummarizationToolMiddleware", "set `tool = true` in `summarization`"),
    ("ShellToolMiddleware", "use `execute`"),
    (
        "FilesystemFileSearchMiddleware",
        "give the agent a `workspace`, for its tools `glob` and `grep`",
    ),
    (
        "AnthropicPromptCachingMiddleware",
        "prompts are cached as `prompt_caching` of the provider says",
    ),
];

/// A policy of the server.
#[derive(Debug)]
pub struct Builtin {
    /// The name.
    pub name: &'static str,
    /// The tools that it contributes.
    pub tools: &'static [&'static str],
    /// The fields of the state that it maintains.
    pub state_fields: &'static [&'static str],
    /// The way in which definitions refer to it.
    pub listing: Listing,
    /// True if a program may register another policy in its place. Policies that restrict an agent cannot be replaced.
    pub is_replaceable: bool,
}

/// The way in which definitions refer to a policy of the server.
#[derive(Debug)]
pub enum Listing {
    /// By name in a list, or by a field.
    Listed {
        /// The field that has the same meaning as the settings, if there is one.
        field: Option<&'static str>,
        /// The settings that become fields of the definition. If there are none, the policy reads its settings itself.
        settings: &'static [&'static str],
        /// The settings that must be given.
        required: &'static [&'static str],
    },
    /// A definition cannot refer to the policy, for this reason.
    Always(&'static str),
    /// A definition cannot list the policy, since other fields imply it.
    Implied,
}

/// A row without tools, fields and settings.
const PLAIN: Builtin = Builtin {
    name: "",
    tools: &[],
    state_fields: &[],
    listing: Listing::Implied,
    is_replaceable: true,
};

/// All policies. Messages list those that can be listed in this order.
pub static BUILTINS: [Builtin; 19] = [
    Builtin {
        name: TODOS,
        tools: &["write_todos"],
        state_fields: &["todos"],
        listing: Listing::Listed {
            field: Some("todos"),
            settings: &[],
            required: &[],
        },
        ..PLAIN
    },
    Builtin {
        name: STORE,
        tools: &["store_get", "store_search", "store_put", "store_delete"],
        listing: Listing::Listed {
            field: Some("store"),
            settings: &["namespace", "read_only"],
            required: &[],
        },
        ..PLAIN
    },
    Builtin {
        name: SKILLS,
        state_fields: &["skills_metadata", "pinned_skills"],
        listing: Listing::Listed {
            field: Some("skills"),
            settings: &["sources", "tools"],
            required: &["sources"],
        },
        ..PLAIN
    },
    Builtin {
        name: MEMORY,
        listing: Listing::Listed {
            field: Some("memory"),
            settings: &["sources"],
            required: &["sources"],
        },
        ..PLAIN
    },
    Builtin {
        name: ASK_USER,
        tools: &["ask_user"],
        listing: Listing::Listed {
            field: Some("ask_user"),
            settings: &[],
            required: &[],
        },
        ..PLAIN
    },
    Builtin {
        name: APPROVAL,
        listing: Listing::Listed {
            field: Some("interrupt_on"),
            settings: &["interrupt_on", "interrupt_mode"],
            required: &["interrupt_on"],
        },
        is_replaceable: false,
        ..PLAIN
    },
    Builtin {
        name: UNTIL,
        listing: Listing::Listed {
            field: Some("until_tool"),
            settings: &["tools"],
            required: &["tools"],
        },
        ..PLAIN
    },
    Builtin {
        name: MODEL_CALLS,
        listing: Listing::Listed {
            field: None,
            settings: &[],
            required: &[],
        },
        ..PLAIN
    },
    Builtin {
        name: TOOL_CALLS,
        listing: Listing::Listed {
            field: None,
            settings: &[],
            required: &[],
        },
        ..PLAIN
    },
    Builtin {
        name: FILES,
        tools: &[
            "ls",
            "read_file",
            "write_file",
            "edit_file",
            "delete",
            "glob",
            "grep",
            "execute",
        ],
        state_fields: &["files"],
        listing: Listing::Always("is there unless `files = \"none\"`"),
        ..PLAIN
    },
    Builtin {
        name: SUBAGENTS,
        tools: &["task", "get_task_instructions"],
        listing: Listing::Always(
            "is there while there are subagents; `general_purpose_subagent.enabled = false` takes one away",
        ),
        is_replaceable: false,
        ..PLAIN
    },
    Builtin {
        name: SUMMARIZATION,
        tools: &["compact_conversation"],
        state_fields: &[crate::domain::summarization::STATUS],
        listing: Listing::Always("is there unless `summarization = false`; its settings are in that field"),
        ..PLAIN
    },
    Builtin {
        name: UNSUPPORTED_CONTENT,
        listing: Listing::Always("is always there"),
        ..PLAIN
    },
    Builtin {
        name: REPAIR,
        listing: Listing::Always("is always there"),
        ..PLAIN
    },
    Builtin {
        name: BACKGROUND,
        tools: &[
            "start_async_task",
            "check_async_task",
            "update_async_task",
            "cancel_async_task",
            "list_async_tasks",
        ],
        state_fields: &["async_tasks"],
        ..PLAIN
    },
    Builtin {
        name: STRUCTURED,
        state_fields: &["structured_response"],
        ..PLAIN
    },
    Builtin {
        name: LIMITS,
        is_replaceable: false,
        ..PLAIN
    },
    Builtin {
        name: PERMISSIONS,
        is_replaceable: false,
        ..PLAIN
    },
    Builtin {
        name: REPEATED_FAILURES,
        is_replaceable: false,
        ..PLAIN
    },
];

/// The fields of every state, which no policy contributes.
const STATE_FIELDS: [&str; 2] = ["messages", "jump_to"];

impl Builtin {
    /// Returns the policy of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        BUILTINS.iter().find(|builtin| builtin.name == name)
    }

    /// Returns the policies that a definition can list.
    pub fn listed() -> impl Iterator<Item = &'static Self> {
        BUILTINS
            .iter()
            .filter(|builtin| matches!(builtin.listing, Listing::Listed { .. }))
    }

    /// Returns the field of a definition that has the same meaning as the policy of this name.
    pub fn field(name: &str) -> Option<&'static str> {
        match Self::find(name)?.listing {
            Listing::Listed { field, .. } => field,
            Listing::Always(_) | Listing::Implied => None,
        }
    }

    /// Returns the policy that contributes the tool of this name.
    pub fn with_tool(tool: &str) -> Option<&'static Self> {
        BUILTINS.iter().find(|builtin| builtin.tools.contains(&tool))
    }

    /// Returns the tools that the policy of this name contributes.
    pub fn tools_of(name: &str) -> &'static [&'static str] {
        Self::find(name).map_or(&[], |builtin| builtin.tools)
    }

    /// Returns whether a definition can list a policy of this name.
    pub fn is_listed(name: &str) -> bool {
        Self::listed().any(|builtin| builtin.name == name)
    }
}

/// Returns the tools that policies of the server contribute; no declared tool may have their names.
pub fn policy_tools() -> impl Iterator<Item = &'static str> {
    BUILTINS.iter().flat_map(|builtin| builtin.tools).copied()
}

/// Returns whether a policy of the server contributes a tool of this name.
pub fn is_policy_tool(name: &str) -> bool {
    Builtin::with_tool(name).is_some()
}

/// Returns whether a field of the state belongs to the server.
pub fn is_standard_field(name: &str) -> bool {
    let kept = BUILTINS.iter().flat_map(|builtin| builtin.state_fields);
    STATE_FIELDS.iter().chain(kept).any(|field| *field == name)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_name_is_there_twice() {
        let names: BTreeSet<&str> = BUILTINS.iter().map(|builtin| builtin.name).collect();
        assert_eq!(names.len(), BUILTINS.len());
        let tools: BTreeSet<&str> = policy_tools().collect();
        assert_eq!(tools.len(), policy_tools().count());
    }
}
