//! Tests of agents in the configuration and of their problems.

use super::*;

#[test]
fn a_subagent_needs_a_name_and_a_description() {
    assert_eq!(
        agent_complaints("[[agents.a.subagents]]\nname = \"\"\n"),
        "adjutant.toml:5:1: error: agents.a.subagents[0].description: must be given: the delegating model chooses by it\n\
         adjutant.toml:6:1: error: agents.a.subagents[0].name: must be given: the name it is called by"
    );
}

#[test]
fn two_subagents_must_not_have_one_name() {
    let text = "\
[[agents.a.subagents]]
name = \"critic\"
description = \"Finds what is wrong with a text.\"
[[agents.a.subagents]]
name = \"critic\"
description = \"Finds what is right with a text.\"
";
    assert_eq!(
        agent_complaints(text),
        "adjutant.toml:9:1: error: agents.a.subagents[1].name: `critic` is already the name of subagents[0]"
    );
}

#[test]
fn a_subagent_may_replace_the_general_purpose_one() {
    let text = "\
[[agents.a.subagents]]
name = \"general-purpose\"
description = \"Does whatever has to be done.\"
";
    assert_eq!(agent_complaints(text), "");
}

#[test]
fn short_or_equal_descriptions_are_warnings() {
    let text = "\
[[agents.a.subagents]]
name = \"one\"
description = \"Does what is needed\"
[[agents.a.subagents]]
name = \"two\"
description = \"Does what is needed\"
[[agents.a.subagents]]
name = \"three\"
description = \"Does what is needed.\"
";
    assert_eq!(
        agent_complaints(text),
        "adjutant.toml:7:1: warning: agents.a.subagents[0].description: has less than 20 characters: a model can \
         hardly choose by it\n\
         adjutant.toml:10:1: warning: agents.a.subagents[1].description: is the same as that of subagents[0], so that no \
         model can choose"
    );
}

#[test]
fn instructions_may_be_blocks_and_errors_name_the_block() {
    let blocks = |kind: &str| {
        format!(
            "system_prompt = [\n  {{ type = \"text\", text = \"a\", cache_control = {{ type = \"ephemeral\" }} }},\n  \
             {{ type = \"{kind}\", text = \"b\" }},\n]\n"
        )
    };
    assert_eq!(agent_complaints(&blocks("text")), "");
    let reported = agent_complaints(&blocks("picture"));
    let expected = "agents.a.system_prompt[1].type: `picture` is not allowed; allowed are: text";
    assert!(
        reported.starts_with("adjutant.toml:7:") && reported.contains(expected),
        "{reported}"
    );
}

#[test]
fn the_examples_have_no_warnings() {
    for example in [
        "coming-from/deepagents",
        "coming-from/synaptic",
        "coming-from/sagents",
        "demo/adjutant",
    ] {
        let file = format!("{}/examples/{example}.toml", env!("CARGO_MANIFEST_DIR"));
        assert_eq!(complaints(&fs::read_to_string(&file).unwrap()), "", "{example}");
    }
}

#[test]
fn approvals_name_existing_tools_and_allow_some_decision() {
    assert_eq!(
        agent_complaints(
            "tools = [\"lookup\"]\ninterrupt_on = { lookup = { allowed_decisions = [] }, lokup = true }\n"
        ),
        "adjutant.toml:6:29: error: agents.a.interrupt_on.lookup.allowed_decisions: must name at least one of approve, \
         edit, reject, respond\n\
         adjutant.toml:6:55: error: agents.a.interrupt_on.lokup: the agent has no tool `lokup`; did you mean `lookup`? \
         it has: lookup"
    );
}

#[test]
fn an_unknown_decision_is_an_error() {
    assert_eq!(
        agent_complaints("tools = [\"lookup\"]\ninterrupt_on.lookup.allowed_decisions = [\"aprove\"]\n"),
        "adjutant.toml:6:42: error: agents.a.interrupt_on.lookup.allowed_decisions[0]: `aprove` is not allowed; did you \
         mean `approve`? allowed are: approve, edit, reject, respond"
    );
}

#[test]
fn approvals_may_name_shared_tools_of_subagents() {
    let text = "\
interrupt_on = { lookup = true, write_file = true }
[[agents.a.subagents]]
name = \"researcher\"
description = \"Researches one question.\"
tools = [\"lookup\"]
";
    assert_eq!(agent_complaints(text), "");
}

#[test]
fn approvals_may_name_the_tools_of_any_subagent() {
    let text = "\
interrupt_on = { lookup = true }
[[agents.a.subagents]]
name = \"researcher\"
description = \"Researches one question.\"
tools = [\"lookup\"]
interrupt_on = { lookup = false }
";
    assert_eq!(agent_complaints(text), "");
    let general = "interrupt_on = { lookup = true }\n[agents.a.general_purpose_subagent]\ntools = [\"lookup\"]\n";
    assert_eq!(agent_complaints(general), "");
    let off = agent_complaints(&format!("{general}enabled = false\n"));
    assert!(
        off.contains("agents.a.interrupt_on.lookup: the agent has no tool `lookup`"),
        "{off}"
    );
}

#[test]
fn deprecated_defaults_may_name_tools_of_deprecated_defaults() {
    let text =
        |switch: &str| format!("{switch}default_tools = [\"lookup\"]\ndefault_interrupt_on = {{ lookup = true }}\n");
    for switch in ["", "general_purpose_agent = false\n", "general_purpose_agent = true\n"] {
        let reported = agent_complaints(&text(switch));
        assert!(
            !reported.contains("error") && reported.contains("deprecated"),
            "{switch}: {reported}"
        );
    }
}

#[test]
fn a_response_format_must_be_the_schema_of_an_object() {
    assert_eq!(
        agent_complaints("response_format = { type = \"object\", properties = { n = { type = \"numbr\" } } }\n"),
        "adjutant.toml:5:59: error: agents.a.response_format.properties.n.type: is not valid in a JSON Schema: \"numbr\" \
         is not valid under any of the schemas listed in the 'anyOf' keyword"
    );
    assert_eq!(
        agent_complaints("response_format = { type = \"string\" }\n"),
        "adjutant.toml:5:1: error: agents.a.response_format: must be a JSON Schema of an object: `type = \"object\"`, \
         `properties`, …"
    );
}

#[test]
fn a_tool_must_be_described_and_reachable_and_have_a_name_of_its_own() {
    let text = "\
[agents.a]
model = \"scripted:x\"
[tools.task]
kind = \"http\"
url = \"ftp://example.org\"
parameters = { type = \"array\" }
timeout_s = 0
[tools.\"a b\"]
kind = \"builtin\"
builtin = \"publsh\"
";
    assert_eq!(
        complaints(text),
        "\
adjutant.toml:3:8: error: tools.task: the name `task` belongs to a tool of the server; choose another
adjutant.toml:3:8: error: tools.task.description: must be given: the model chooses by it
adjutant.toml:5:1: error: tools.task.url: must begin with http:// or https:// and name a host
adjutant.toml:6:1: error: tools.task.parameters: must be a JSON Schema of an object: `type = \"object\"`, `properties`, …
adjutant.toml:7:1: error: tools.task.timeout_s: must be from 0.01 to 86400 seconds
adjutant.toml:8:8: error: tools.\"a b\": the tool name `a b` must be 1 to 64 of A-Z, a-z, 0-9, `_` and `-`
adjutant.toml:10:1: error: tools.\"a b\".builtin: there is no built-in tool `publsh`; did you mean `publish`? there are: lookup, publish"
    );
}
