use serde_json::json;

use super::*;
use crate::definition::check::RegisteredPolicy;
use crate::definition::{ClientRules, validate};

fn context() -> ValidationContext {
    let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    ValidationContext {
        tools: set(&["lookup", "publish"]),
        providers: set(&["scripted"]),
        middleware: [
            ("audit".to_owned(), RegisteredPolicy::default()),
            ("limit".to_owned(), limit()),
        ]
        .into(),
        clients: ClientRules::everything(),
        ..ValidationContext::default()
    }
}

/// Returns a policy with settings, of which several with different tools can be listed.
fn limit() -> RegisteredPolicy {
    RegisteredPolicy::new(|_| Some(vec![])).distinguished_by(Some("tool"))
}

fn findings(mut body: Value) -> Vec<String> {
    body["model"] = json!("scripted:x");
    validate("a", body, &context())
        .findings
        .iter()
        .map(ToString::to_string)
        .collect()
}

fn resolved(body: Value) -> AgentDefinition {
    let agent: AgentDefinition = serde_json::from_value(body).expect("a definition");
    assert_eq!(agent.resolved().resolved(), agent.resolved(), "once is enough");
    agent.resolved()
}

#[test]
fn a_policy_is_written_as_its_name_or_with_its_settings_and_stays_as_it_is_written() {
    let list = json!(["audit", {"name": "StoreMiddleware", "read_only": true}, "TodoListMiddleware"]);
    let policies: Vec<Policy> = serde_json::from_value(list.clone()).expect("policies");
    assert_eq!(policies[1].name.as_str(), STORE);
    assert_eq!(&policies[1].settings["read_only"], &json!(true));
    assert_eq!(serde_json::to_value(&policies).expect("JSON"), list);
}

#[test]
fn settings_may_have_the_names_of_langchain() {
    let list = json!([{"name": "ToolCallLimitMiddleware", "tool_name": "lookup", "run_limit": 1},
        {"name": "ToolRetryMiddleware", "initial_delay": 0.5, "max_delay": 2.0},
        {"name": "PIIMiddleware", "pii_type": "email"},
        {"name": "ToolCallLimitMiddleware", "tool": "lookup", "tool_name": "publish"}, {"name": "audit", "max_delay": 1}]);
    let policies: Vec<Policy> = serde_json::from_value(list).expect("policies");
    let understood = json!([{"name": "ToolCallLimitMiddleware", "tool": "lookup", "run_limit": 1},
        {"name": "ToolRetryMiddleware", "initial_delay_s": 0.5, "max_delay_s": 2.0},
        {"name": "PIIMiddleware", "type": "email"},
        {"name": "ToolCallLimitMiddleware", "tool": "lookup", "tool_name": "publish"}, {"name": "audit", "max_delay": 1}]);
    assert_eq!(serde_json::to_value(&policies).expect("JSON"), understood);
}

#[test]
fn a_policy_whose_work_has_another_place_is_refused_with_the_place() {
    let found = findings(json!({"middleware": ["ModelFallbackMiddleware"]}));
    let expected = "middleware[0]: there is no policy `ModelFallbackMiddleware`: give several models";
    assert!(found.len() == 1 && found[0].starts_with(expected), "{found:#?}");
    assert!(ELSEWHERE.iter().all(|(name, _)| Builtin::find(name).is_none()));
}

#[test]
fn what_a_listed_policy_is_told_is_what_a_field_says() {
    let listed = resolved(json!({"limits": {"tokens": 9}, "middleware": [
        "TodoListMiddleware", {"name": "StoreMiddleware", "namespace": ["a"]},
        {"name": "SkillsMiddleware", "sources": ["/s", {"path": "/t", "label": "T"}], "tools": ["publish"]},
        {"name": "MemoryMiddleware", "sources": ["/AGENTS.md"]},
        {"name": "HumanInTheLoopMiddleware", "interrupt_on": {"lookup": true}}]}));
    let fields = resolved(
        json!({"todos": true, "store": {"namespace": ["a"]}, "memory": ["/AGENTS.md"],
        "skills": ["/s", {"path": "/t", "label": "T"}], "skill_tools": ["publish"], "interrupt_on": {"lookup": true},
        "limits": {"tokens": 9}}),
    );
    assert_eq!(
        AgentDefinition {
            middleware: vec![],
            ..listed
        },
        fields
    );
    let until =
        resolved(json!({"subagents": [{"middleware": [{"name": "UntilToolMiddleware", "tools": ["lookup"]}]}]}));
    assert_eq!(
        until.subagents[0].until_tool,
        Some(UntilTool::Any(vec!["lookup".to_owned()]))
    );
}

#[test]
fn what_cannot_be_listed_is_refused_with_what_can() {
    let body = json!({"todos": true, "middleware": [
        "TodosListMiddleware", "TodoListMiddleware", "audit", "audit", "SubAgentMiddleware",
        {"name": "audit2"}, {"read_only": true}]});
    let reported = findings(body);
    assert!(
        reported[0].contains("there is no policy `TodosListMiddleware`; did you mean `TodoListMiddleware`? there are:")
    );
    assert_eq!(
        reported[1],
        "middleware[1]: `TodoListMiddleware` is also given as the field `todos`"
    );
    assert_eq!(reported[2], "middleware[3]: `audit` is listed twice");
    assert!(reported[3].contains("it is there while there are subagents; `general_purpose_subagent.enabled = false`"));
    assert!(
        reported[4].contains("there is no policy `audit2`; did you mean `audit`?"),
        "{reported:#?}"
    );
    assert!(
        reported[5].starts_with("middleware[6]: must have a `name`"),
        "{reported:#?}"
    );
}

#[test]
fn a_policy_is_listed_several_times_where_a_setting_tells_them_apart() {
    let listed = |tools: [&str; 2]| {
        let limits = tools.map(|tool| json!({"name": "limit", "tool": tool}));
        findings(json!({"middleware": limits}))
    };
    assert_eq!(listed(["lookup", "publish"]), [""; 0]);
    assert_eq!(
        listed(["lookup", "lookup"]),
        ["middleware[1]: `limit` is listed twice with the same `tool`"]
    );
}

#[test]
fn settings_that_a_policy_does_not_have_or_lacks_are_told_with_their_place() {
    let reported = findings(json!({"middleware": [
        {"name": "StoreMiddleware", "readonly": true}, {"name": "SkillsMiddleware", "sources": ["skills"]},
        {"name": "MemoryMiddleware"}, {"name": "audit", "level": 3},
        {"name": "UntilToolMiddleware", "tools": ["lookup"]}]}));
    for part in [
        "middleware[0].readonly: unknown key; did you mean `read_only`? allowed are: namespace, read_only",
        "middleware[1].sources[0]: `skills` is relative",
        "middleware[2].sources: must be given",
        "middleware[3]: `audit` is the program's and takes no settings",
        "middleware[4]: `UntilToolMiddleware` is for subagents",
    ] {
        assert!(
            reported.iter().any(|reported| reported.starts_with(part)),
            "{part} is missing in {reported:#?}"
        );
    }
}

#[test]
fn a_subagent_has_from_its_parent_what_it_asks_for_and_is_not_blocked() {
    let parent = |subagent: Value| {
        let body = json!({"system_prompt": "Be kind.", "memory": ["/p.md"], "todos": true,
            "middleware": ["audit", {"name": "limit", "tool": "a"}, {"name": "limit", "tool": "b"}],
            "interrupt_on": {"lookup": true}, "store": true, "subagents": [subagent]});
        resolved(body).subagents.remove(0)
    };
    let plain = parent(json!({"name": "a"}));
    assert_eq!(plain.system_prompt.text().as_str(), "");
    assert!(!plain.todos);
    assert_eq!(plain.memory.len(), 0);
    assert_eq!(plain.limits, None);
    let all = parent(json!({"name": "a", "system_prompt": "Be brief.", "memory": ["/a.md"],
        "inherit": {"prompt": true, "memory": true, "middleware": true}}));
    assert_eq!(all.system_prompt.text().as_str(), "Be kind.\n\nBe brief.");
    assert!(all.todos);
    assert_eq!(all.memory, ["/p.md", "/a.md"]);
    let names: Vec<&str> = all.middleware.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, ["TodoListMiddleware", "audit", "limit", "limit"]);
    let some = parent(
        json!({"name": "a", "inherit": {"middleware": ["audit", "TodoListMiddleware"]},
        "middleware": [{"name": "limit", "tool": "c"}],
        "block_middleware": ["TodoListMiddleware", "StoreMiddleware", "HumanInTheLoopMiddleware"]}),
    );
    let names: Vec<&str> = some.middleware.iter().map(|policy| policy.name.as_str()).collect();
    assert_eq!(names, vec!["audit", "limit"]);
    assert!(!some.todos);
    assert_eq!(some.store, Some(StoreRule::Switch(false)));
    assert_eq!(some.interrupt_on.map(|rules| rules.len()), Some(0));
}

#[test]
fn the_general_purpose_subagent_has_what_it_asks_for() {
    let general = |settings: Value| {
        let body = json!({"system_prompt": "Be kind.", "skills": ["/s"], "skill_tools": ["publish"], "todos": true,
            "memory": ["/p.md"], "general_purpose_subagent": settings, "subagents": [{"name": "b"}]});
        resolved(body).delegates().remove(0)
    };
    let plain = general(json!({}));
    assert!(plain.system_prompt.text().starts_with("You work on one task") && !plain.todos && plain.memory.is_empty());
    assert_eq!(plain.name.as_str(), "general-purpose");
    assert_eq!(plain.skills.len(), 1);
    assert_eq!(plain.skill_tools.len(), 1);
    let reported = general(json!({"inherit": {"prompt": true, "memory": true, "middleware": ["TodoListMiddleware"]}}));
    assert_eq!(reported.system_prompt.text().as_str(), "Be kind.");
    assert!(reported.todos);
    assert_eq!(reported.memory.len(), 1);
    let both =
        general(json!({"system_prompt": "Be brief.", "inherit": {"prompt": true}, "block_middleware": [SKILLS]}));
    assert_eq!(both.system_prompt.text().as_str(), "Be kind.\n\nBe brief.");
    assert_eq!(both.skills.len(), 0);
    assert_eq!(general(json!({"enabled": false})).name, "b");
    assert_eq!(general(json!({"name": "b"})).name, "b");
}

#[test]
fn what_nobody_can_hand_down_or_block_is_refused() {
    let reported = findings(json!({"middleware": ["audit"],
        "general_purpose_subagent": {"inherit": {"middleware": ["audit", "TodoListMiddleware"]}},
        "subagents": [{"name": "b", "description": "Does this and all of that.",
            "block_middleware": ["FilesystemMiddleware", "nope"], "inherit": {"middleware": 3}}]}));
    for part in [
        "general_purpose_subagent.inherit.middleware[1]: the agent has no policy `TodoListMiddleware` to hand down",
        "subagents[0].block_middleware[0]: `FilesystemMiddleware` cannot be blocked: it is there unless",
        "subagents[0].block_middleware[1]: there is no policy `nope`",
        "subagents[0].inherit.middleware: must be true, false or a list",
    ] {
        assert!(
            reported.iter().any(|reported| reported.starts_with(part)),
            "{part} is missing in {reported:#?}"
        );
    }
}

#[test]
fn a_policy_that_names_a_tool_which_the_agent_lacks_is_reported() {
    let with_setting = |setting| RegisteredPolicy::new(|_| Some(vec![])).with_tools_setting(Some(setting));
    let settings = [
        ("LLMToolSelectorMiddleware", "always_include"),
        ("LLMToolEmulator", "tools"),
        ("RubricMiddleware", "tools"),
        ("ToolCallLimitMiddleware", "tool"),
        ("ToolRetryMiddleware", "tools"),
        ("ContextEditingMiddleware", "exclude_tools"),
    ];
    let own = RegisteredPolicy::default().with_tools(["own_tool".to_owned()]);
    let mut middleware: BTreeMap<String, RegisteredPolicy> = settings
        .map(|(name, setting)| (name.to_owned(), with_setting(setting)))
        .into();
    middleware.insert("Own".to_owned(), own);
    let context = ValidationContext {
        middleware,
        mcp_servers: ["docs".to_owned()].into(),
        ..context()
    };
    let reported = |middleware: Value, subagents: Value| {
        let body = json!({"model": "scripted:x", "tools": ["lookup", "docs/*"], "middleware": middleware,
            "subagents": subagents});
        let findings = validate("a", body, &context).findings;
        findings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let fine = json!([{"name": "RubricMiddleware", "tools": ["read_file", "lookup", "docs/search", "docs/*"]},
        {"name": "LLMToolSelectorMiddleware", "always_include": ["task", "write_todos"]}, "TodoListMiddleware",
        {"name": "ToolCallLimitMiddleware", "tool": "docs/search"}, {"name": "ToolRetryMiddleware"},
        {"name": "ContextEditingMiddleware", "exclude_tools": ["lookup", "own_tool"]}, "Own"]);
    assert_eq!(reported(fine, json!([])), [""; 0]);
    let of_delegation = json!([{"name": "ToolCallLimitMiddleware", "tool": "get_task_instructions"}]);
    let mut guided = json!([{"name": "reader", "description": "Reads what others have written."}]);
    assert_eq!(reported(of_delegation.clone(), guided.clone()).len(), 1);
    guided[0]["use_instructions"] = json!("Name the file.");
    assert_eq!(reported(of_delegation, guided), [""; 0]);
    let wrong = json!([{"name": "LLMToolEmulator", "tools": ["lookup", "publish"]},
        {"name": "RubricMiddleware", "tools": ["store_get"]}, {"name": "ToolCallLimitMiddleware", "tool": "lokup"},
        {"name": "ToolRetryMiddleware", "tools": ["publish"]},
        {"name": "ContextEditingMiddleware", "exclude_tools": ["lookup", "publish"]}]);
    let reader = json!([{"name": "reader", "description": "Reads what others have written.", "tools": ["publish"],
        "middleware": [{"name": "RubricMiddleware", "tools": ["lookup"]}]}]);
    let found = reported(wrong, reader);
    let places = [
        "middleware[0].tools[1]: the agent has no tool `publish`",
        "middleware[1].tools[0]: the agent has no tool `store_get`",
        "middleware[2].tool: the agent has no tool `lokup`, so that the name is without effect; did you mean `lookup`?",
        "middleware[3].tools[0]: the agent has no tool `publish`",
        "middleware[4].exclude_tools[1]: the agent has no tool `publish`",
        "subagents[0].middleware[0].tools[0]: the agent has no tool `lookup`",
    ];
    assert_eq!(found.len(), places.len(), "{found:#?}");
    for (reported, place) in found.iter().zip(places) {
        assert!(reported.starts_with(place), "{found:#?}");
    }
}
