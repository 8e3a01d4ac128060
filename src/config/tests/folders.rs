//! Tests of agents in folders.

use super::*;

#[test]
fn a_folder_is_an_agent() {
    let directory = Directory::with(&[
        (
            "agents/writer/AGENTS.md",
            "---\nmodel: scripted:x\ndescription: Writes.\n---\n\nYou write.\n",
        ),
        ("agents/writer/agent.toml", "todos = true\n"),
        (
            "agents/writer/subagents/critic.md",
            "---\ndescription: Finds what is wrong.\n---\nYou criticise.",
        ),
        (
            "agents/writer/subagents/scout/AGENTS.md",
            "---\nname: finder\ndescription: Finds and weighs sources.\n---\nYou find.",
        ),
        ("agents/.hidden/AGENTS.md", "nothing"),
    ]);
    let loaded = directory.load();

    assert_eq!(loaded.warnings, Problems::default());
    let agents: Vec<&String> = loaded.config.agents.keys().collect();
    assert_eq!(agents, ["writer"]);
    let writer = &loaded.config.agents["writer"];
    assert_eq!(writer.name.as_deref(), None);
    assert!(writer.todos);
    assert_eq!(writer.system_prompt.parts(), vec!["You write."]);
    let subagents: Vec<_> = writer
        .subagents
        .iter()
        .map(|s| (&*s.name, s.system_prompt.text()))
        .collect();
    assert_eq!(
        subagents,
        [
            ("critic", "You criticise.".to_owned()),
            ("finder", "You find.".to_owned())
        ]
    );
}

#[test]
fn problems_in_folders_are_reported_with_file_and_line() {
    let directory = Directory::with(&[
        (
            "agents/w/AGENTS.md",
            "---\nname:\nmodel: scripted:x\ntools: [nope]\nfoo: 1\n---\nText",
        ),
        ("agents/w/agent.toml", "model = \"x\"\n"),
        ("agents/w/subagents/bad.md", "---\nname: bad\n  x: [\n---\n"),
        ("agents/w/subagents/endless.md", "---\nname: bad\n"),
        ("agents/w/subagents/mute/AGENTS.md", "Speak."),
        ("agents/w/subagents/mute/subagents/x.md", ""),
        (
            "agents/w/subagents/twice.md",
            "---\ndescription: Says everything twice.\nsystem_prompt: A\n---\nB",
        ),
    ]);
    assert_eq!(
        shortened(&directory.complaints()),
        "\
agents/w/AGENTS.md:2:1: error: name: must not be blank; leave it out for the default
agents/w/AGENTS.md:4:1: error: tools[0]: there is no tool `nope`; declared are: none
agents/w/AGENTS.md:5:1: error: foo: unknown key; allowed are: name, …
agents/w/agent.toml:1:1: error: model: is also given in the AGENTS.md beside this file
agents/w/subagents/bad.md:3:4: error: the settings at the top cannot be read as YAML: mapping values are not allowed in this context
agents/w/subagents/endless.md:1:1: error: the settings at the top must end with a line `---`
agents/w/subagents/mute/AGENTS.md: error: description: must be given: the delegating model chooses by it
agents/w/subagents/mute/subagents: error: a subagent has no subagents of its own; put them beside it
agents/w/subagents/twice.md:3:1: error: system_prompt: must not be given, since the text of the file is the system prompt"
    );
}

#[test]
fn a_subagent_named_by_its_file_may_not_have_a_blank_name() {
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", AGENT),
        (
            "agents/w/subagents/critic.md",
            "---\nname: \"\"\ndescription: Finds what is wrong.\n---\n",
        ),
    ]);
    assert_eq!(
        directory.complaints(),
        "agents/w/subagents/critic.md:2:1: error: name: must be given: the name it is called by"
    );
}

#[test]
fn an_agent_defined_twice_is_an_error_that_names_both_places() {
    let directory = Directory::with(&[
        ("adjutant.toml", "[agents.w]\nmodel = \"scripted:x\"\n"),
        ("agents/w/AGENTS.md", AGENT),
    ]);
    assert_eq!(
        directory.complaints(),
        "adjutant.toml:1:9: error: agents.w: is also defined in agents/w"
    );
}
