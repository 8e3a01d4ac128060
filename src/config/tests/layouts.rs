//! Tests of folders in the layouts of other programs.

use super::*;
use crate::definition::{ApprovalRule, SkillSource};

fn subagents(agent: &AgentDefinition) -> Vec<(&str, &str, &str)> {
    let subagents = agent.subagents.iter();
    subagents
        .map(|s| {
            (
                &*s.name,
                &*s.description,
                s.system_prompt.parts().pop().unwrap_or_default(),
            )
        })
        .collect()
}

const DEPLOY: &str = "[agent]\nname = \"Writer\"\ndescription = \"Writes.\"\nmodel = \"scripted:x\"\n";

#[test]
fn a_folder_with_a_deepagents_toml_is_an_agent() {
    let directory = Directory::with(&[
        ("agents/writer/deepagents.toml", DEPLOY),
        ("agents/writer/AGENTS.md", "# You write.\n"),
        (
            "agents/writer/subagents/scout/deepagents.toml",
            "[agent]\nname = \"finder\"\ndescription = \"Finds and weighs sources.\"\n",
        ),
        ("agents/writer/subagents/scout/AGENTS.md", "You find."),
        ("agents/writer/subagents/.cache/x.txt", ""),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let writer = &loaded.config.agents["writer"];
    assert_eq!(writer.name.as_deref(), Some("Writer"));
    assert_eq!(writer.description.as_deref(), Some("Writes."));
    assert_eq!(writer.model.first(), "scripted:x");
    assert_eq!(writer.system_prompt.parts(), vec!["# You write."]);
    assert_eq!(
        subagents(writer),
        [("finder", "Finds and weighs sources.", "You find.")]
    );
    assert_eq!(writer.subagents[0].model, None, "it thinks with its parent's model");
}

#[test]
fn a_deepagents_toml_without_a_model_has_the_default_of_its_layout() {
    let directory = Directory::with(&[
        ("agents/w/deepagents.toml", "[agent]\nname = \"w\"\n"),
        ("agents/w/AGENTS.md", "You write."),
    ]);
    assert_eq!(
        directory.load().config.agents["w"].model,
        "anthropic:claude-sonnet-4-6".into()
    );
}

#[test]
fn platform_sections_of_a_deepagents_toml_are_warnings() {
    let idle = "[sandbox]\nprovider = \"none\"\n[auth]\nprovider = \"anonymous\"\n[frontend]\nenabled = false\n";
    let used = "[sandbox]\nprovider = \"modal\"\nscope = \"thread\"\n[auth]\nprovider = \"clerk\"\n\
        [memories]\nbackend = \"hub\"\n[frontend]\nenabled = true\n";
    let problems = |sections: &str| {
        let text = format!("{DEPLOY}{sections}");
        Directory::with(&[("agents/w/deepagents.toml", text.as_str()), ("agents/w/AGENTS.md", "x")]).complaints()
    };
    assert_eq!(problems(idle), "");
    let warnings: Vec<String> = problems(used)
        .lines()
        .map(|line| line.chars().take(49).collect())
        .collect();
    assert_eq!(
        warnings,
        [
            "agents/w/deepagents.toml:5:2: warning: sandbox: i",
            "agents/w/deepagents.toml:8:2: warning: auth: is n",
            "agents/w/deepagents.toml:10:2: warning: memories:",
            "agents/w/deepagents.toml:12:2: warning: frontend:",
        ]
    );
}

#[test]
fn errors_in_a_deepagents_toml_have_their_positions() {
    let directory = Directory::with(&[
        (
            "agents/w/deepagents.toml",
            "[agent]\ndescription = \"\"\ntools = []\n[sandbox]\ncpu = 1\n[cloud]\n",
        ),
        ("agents/w/AGENTS.md", "x"),
        (
            "agents/w/subagents/a/deepagents.toml",
            "[agent]\nname = \"a\"\n[auth]\n",
        ),
        ("agents/w/subagents/a/AGENTS.md", "x"),
        (
            "agents/w/subagents/b/deepagents.toml",
            "[agent]\nname = \"b\"\ndescription = \"Is without instructions.\"\n",
        ),
    ]);
    assert_eq!(
        directory.complaints(),
        "\
agents/w/deepagents.toml:1:2: error: agent.name: must be given
agents/w/deepagents.toml:2:1: error: description: must not be blank; leave it out for the default
agents/w/deepagents.toml:3:1: error: agent.tools: unknown key; allowed are: name, description, model
agents/w/deepagents.toml:5:1: error: sandbox.cpu: unknown key; allowed are: provider, template, image, scope
agents/w/deepagents.toml:6:2: error: cloud: unknown section; allowed are: agent, sandbox, auth, memories, frontend
agents/w/subagents/a/deepagents.toml:1:2: error: description: must be given: the delegating model chooses by it
agents/w/subagents/a/deepagents.toml:3:2: error: auth: a subagent has a section `[agent]` and no other
agents/w/subagents/b: error: has deepagents.toml, but no AGENTS.md with the instructions"
    );
}

const TOOLS: &str = r#"{"tools": [
    {"name": "lookup", "mcp_server_url": "https://example.com/mcp", "mcp_server_name": "s", "display_name": "Look up"}],
    "interrupt_config": {"https://example.com/mcp::lookup::s": true, "https://example.com/mcp::other": false}}"#;

#[test]
fn a_folder_with_an_agent_json_is_an_agent() {
    let directory = Directory::with(&[
        (
            "agents/w/agent.json",
            r#"{"name": "my-agent", "description": "Helps.", "model": "scripted:x", "backend": {"type": "state"},
                "agent_id": "0", "extras": {"team": "x"}}"#,
        ),
        ("agents/w/AGENTS.md", "You help."),
        ("agents/w/tools.json", TOOLS),
        (
            "agents/w/subagents/scout/agent.json",
            r#"{"description": "Finds and weighs sources.", "model_id": "scripted:y"}"#,
        ),
        ("agents/w/subagents/scout/AGENTS.md", "You find."),
        ("agents/w/subagents/scout/tools.json", r#"{"tools": []}"#),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let agent = &loaded.config.agents["w"];
    assert_eq!(agent.name.as_deref(), Some("my-agent"));
    assert_eq!(agent.model.first(), "scripted:x");
    assert_eq!(agent.tools, ["s/lookup"]);
    let rule = (&"s/lookup".to_owned(), &ApprovalRule::Switch(true));
    assert_eq!(agent.interrupt_on.iter().collect::<Vec<_>>(), [rule]);
    assert_eq!(agent.mcp_servers["s"].url.as_deref(), Some("https://example.com/mcp"));
    assert_eq!(subagents(agent), [("scout", "Finds and weighs sources.", "You find.")]);
    let scout = &agent.subagents[0];
    assert_eq!(scout.model, Some("scripted:y".into()));
    assert_eq!(scout.tools.as_deref(), Some([].as_slice()));
}

#[test]
fn defaults_and_platform_fields_of_an_agent_json_are_warnings() {
    let directory = Directory::with(&[
        (
            "agents/w/agent.json",
            r#"{"name": "w", "backend": {"type": "sandbox", "sandbox_config": {"scope": "thread"}},
                "permissions": {"identity": "personal"}}"#,
        ),
        ("agents/w/AGENTS.md", "You help."),
        ("agents/w/subagents/scout/agent.json", "{}"),
        (
            "agents/w/subagents/scout/AGENTS.md",
            "\n# Finds a great many sources\n\nYou find.",
        ),
    ]);
    let loaded = directory.load();
    let problems: Vec<&str> = loaded.warnings.0.iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(problems, ["model", "backend", "permissions", "description"]);
    assert_eq!(loaded.config.agents["w"].model, "anthropic:claude-sonnet-4-6".into());
    assert_eq!(
        loaded.config.agents["w"].subagents[0].description,
        "Finds a great many sources"
    );
    let runtime = r#"{"name": "w", "runtime": {"model": {"model_id": "scripted:r"}}}"#;
    let directory = Directory::with(&[("agents/w/agent.json", runtime), ("agents/w/AGENTS.md", "You help.")]);
    assert_eq!(directory.load().config.agents["w"].model, "scripted:r".into());
}

#[test]
fn errors_in_an_agent_json_name_the_file_and_the_field() {
    let directory = Directory::with(&[
        (
            "agents/w/agent.json",
            r#"{"model": "scripted:x", "runtime": {}, "tools": [], "backend": {"type": "vm"}}"#,
        ),
        ("agents/w/AGENTS.md", "x"),
        (
            "agents/w/tools.json",
            r#"{"tools": [{"name": "nope", "mcp_server_url": "u"}, {"name": "x"}],
                "interrupt_config": {"x": true, "http://a.b::x": true, "http://a.b::y": false}, "more": 1}"#,
        ),
        ("agents/v/agent.json", "{\n  \"name\": nope}"),
        ("agents/v/AGENTS.md", "x"),
        ("agents/u/agent.json", "{\"name\": \"u\", \"model\": \"scripted:x\"}"),
        ("agents/t/agent.json", "{}"),
        ("agents/t/deepagents.toml", ""),
    ]);
    assert_eq!(
        directory.complaints(),
        "\
agents/t: error: has both deepagents.toml and agent.json, which are two layouts; keep one of them
agents/u: error: has agent.json, but no AGENTS.md with the instructions
agents/v/agent.json:2:12: error: is not JSON: expected ident
agents/w/agent.json: error: tools: unknown key; allowed are: name, description, agent_id, model, runtime, backend, permissions, extras
agents/w/agent.json: error: name: must be given
agents/w/agent.json: error: runtime: cannot be combined with `model`: both name the model
agents/w/agent.json: error: backend.type: must be `state` or `sandbox`
agents/w/tools.json: error: tools[0].mcp_server_url: is no address (relative URL without a base): it must begin with http:// or https:// and name a host
agents/w/tools.json: error: tools[1]: must have a `name` and an `mcp_server_url`
agents/w/tools.json: error: interrupt_config.x: must be `<server url>::<tool>`
agents/w/tools.json: error: interrupt_config.http://a.b::x: names a server of which no tool is listed
agents/w/tools.json: error: more: unknown key; allowed are: tools, interrupt_config"
    );
}

#[test]
fn a_file_can_hold_all_subagents_by_name() {
    let yaml = "scout:\n  description: Finds and weighs sources.\n  system_prompt: You find.\n  tools: [lookup]\n\
        critic:\n  description: Finds what is wrong.\n  model: scripted:y\n";
    let directory = Directory::with(&[
        ("adjutant.toml", LOOKUP),
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/subagents.yaml", yaml),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let agent = &loaded.config.agents["w"];
    assert_eq!(
        subagents(agent),
        [
            ("scout", "Finds and weighs sources.", "You find."),
            ("critic", "Finds what is wrong.", "")
        ]
    );
    assert_eq!(
        agent.subagents[0].tools.as_deref(),
        Some(["lookup".to_owned()].as_slice())
    );
    let wrong = "scout: x\ncritic:\n  description: Finds what is wrong.\n  tools: [nope]\n  colour: red\n";
    let directory = Directory::with(&[("agents/w/AGENTS.md", AGENT), ("agents/w/subagents.yaml", wrong)]);
    assert_eq!(
        shortened(&directory.complaints()),
        "\
agents/w/subagents.yaml:1:1: error: scout: must be a table with `description`, `system_prompt`, `model` and `tools`
agents/w/subagents.yaml:2:1: error: tools[0]: there is no tool `nope`; declared are: none
agents/w/subagents.yaml:2:1: error: colour: unknown key; allowed are: name, …"
    );
    let directory = Directory::with(&[("agents/w/AGENTS.md", AGENT), ("agents/w/subagents.yaml", "a: [\n")]);
    assert!(
        directory.complaints().starts_with("agents/w/subagents.yaml:"),
        "{}",
        directory.complaints()
    );
}

#[test]
fn subagents_of_a_project_belong_to_its_agent() {
    let one = "---\ndescription: Finds and weighs sources.\n---\nYou find.";
    let directory = Directory::with(&[
        ("adjutant.toml", "[agents.main]\nmodel = \"scripted:x\"\n"),
        (".deepagents/agents/scout/AGENTS.md", one),
        (
            ".deepagents/agents/critic/AGENTS.md",
            "---\nname: reviewer\ndescription: Finds what is wrong.\nmodel: scripted:y\n---\n",
        ),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let main = &loaded.config.agents["main"];
    assert_eq!(
        subagents(main),
        [
            ("reviewer", "Finds what is wrong.", ""),
            ("scout", "Finds and weighs sources.", "You find.")
        ]
    );
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/.deepagents/agents/scout/AGENTS.md", one),
    ]);
    assert_eq!(directory.load().config.agents["w"].subagents.len(), 1);
    let two = "[agents.a]\nmodel = \"scripted:x\"\n[agents.b]\nmodel = \"scripted:x\"\n";
    let directory = Directory::with(&[("adjutant.toml", two), (".deepagents/agents/scout/AGENTS.md", one)]);
    assert!(
        directory
            .complaints()
            .contains("belong to the only agent, or to the one called `agent`")
    );
}

#[test]
fn unusable_subagents_of_a_project_are_ignored_with_a_warning() {
    let directory = Directory::with(&[
        (
            "adjutant.toml",
            "[agents.main]\nmodel = \"scripted:x\"\n[[agents.main.subagents]]\nname = \"own\"\ndescription = \"Is the own of the agent.\"\n",
        ),
        (
            ".deepagents/agents/a/AGENTS.md",
            "---\ndescription: The first of the name.\nname: twin\n---\nFirst.",
        ),
        (
            ".deepagents/agents/b/AGENTS.md",
            "---\ndescription: The last of the name.\nname: twin\n---\nLast.",
        ),
        (
            ".deepagents/agents/blank/AGENTS.md",
            "---\nname: \"\"\ndescription: Has a name that is blank.\n---\n",
        ),
        (".deepagents/agents/broken/AGENTS.md", "---\nname: [\n---\n"),
        (
            ".deepagents/agents/loose.md",
            "---\ndescription: Lies about in the folder.\n---\n",
        ),
        (".deepagents/agents/mute/AGENTS.md", "Speak."),
        (
            ".deepagents/agents/odd/AGENTS.md",
            "---\ndescription: Has a key that is odd.\ncolour: red\n---\n",
        ),
        (
            ".deepagents/agents/own/AGENTS.md",
            "---\ndescription: Belongs to the project.\n---\n",
        ),
        (".deepagents/agents/wrong/agents.md.txt", ""),
    ]);
    let loaded = directory.load();
    assert_eq!(
        subagents(&loaded.config.agents["main"]),
        [
            ("own", "Is the own of the agent.", ""),
            ("twin", "The last of the name.", "Last.")
        ]
    );
    let problems = loaded.warnings.to_string();
    assert_eq!(
        problems
            .lines()
            .map(|line| line.chars().take(104).collect())
            .collect::<Vec<String>>()
            .len(),
        8,
        "{problems}"
    );
    for part in [
        "agents/b: warning: overrides another subagent of the same name",
        "agents/blank/AGENTS.md: warning: is ignored: `name` must be a text that is not blank",
        "agents/broken/AGENTS.md: warning: is ignored: the settings at the top cannot be read as YAML",
        "agents/loose.md: warning: is ignored: a subagent is a folder",
        "agents/mute/AGENTS.md: warning: is ignored: `description` must be",
        "agents/odd/AGENTS.md: warning: is ignored: colour: unknown key",
        "agents/own: warning: is ignored: the agent declares a subagent of this name",
        "agents/wrong: warning: is ignored: it has no AGENTS.md",
    ] {
        assert!(problems.contains(part), "{part} is missing in\n{problems}");
    }
}

#[test]
fn names_that_differ_only_in_case_are_refused() {
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", AGENT),
        (
            "agents/w/subagents/Scout.md",
            "---\ndescription: Finds and weighs sources.\n---\n",
        ),
        (
            "agents/w/subagents/scout.md",
            "---\ndescription: Finds other sources.\n---\n",
        ),
    ]);
    assert!(
        directory
            .complaints()
            .contains("the subagents `Scout` and `scout` differ only in case")
    );
}

#[cfg(unix)]
#[test]
fn links_are_followed_only_within_the_folder_of_the_agents() {
    use std::os::unix::fs::symlink;

    let directory = Directory::with(&[
        ("secret/AGENTS.md", AGENT),
        ("agents/w/AGENTS.md", AGENT),
        ("agents/shared/AGENTS.md", AGENT),
        (
            "agents/shared/subagents/scout.md",
            "---\ndescription: Finds and weighs sources.\n---\n",
        ),
        ("agents/x/agent.toml", "model = \"scripted:x\"\n"),
    ]);
    let at = |path: &str| directory.0.path().join(path);
    symlink(at("agents/shared/subagents"), at("agents/w/subagents")).unwrap();
    assert_eq!(directory.load().config.agents["w"].subagents.len(), 1);

    symlink(at("secret"), at("agents/stolen")).unwrap();
    symlink(at("secret/AGENTS.md"), at("agents/x/AGENTS.md")).unwrap();
    symlink(at("nowhere"), at("agents/dangling")).unwrap();
    let problems = directory.complaints();
    for part in [
        "agents/dangling: error: is a link that leads nowhere",
        "agents/stolen: error: leads out of the folder of the agents",
        "agents/x/AGENTS.md: error: leads out of the folder of the agents",
    ] {
        assert!(problems.contains(part), "{part} is missing in\n{problems}");
    }
}

#[test]
fn other_entries_of_a_folder_are_reported() {
    let directory = Directory::with(&[
        ("agents/README.txt", ""),
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/memories/x.md", ""),
        ("agents/w/notes.txt", ""),
        ("agents/w/tools.json", "{}"),
        ("agents/x/.keep", ""),
    ]);
    assert_eq!(
        directory.complaints(),
        "\
agents/README.txt: warning: is not read: an agent is a folder with an AGENTS.md
agents/w/memories: warning: is not read: data that outlives a thread is kept in the Store
agents/w/notes.txt: warning: is not read
agents/w/tools.json: warning: is not read: it belongs to an agent.json
agents/x: error: has neither an AGENTS.md nor an agent.toml"
    );
}

#[test]
fn a_file_that_is_too_large_is_refused() {
    let long = format!("{AGENT}{}", "x".repeat(1024 * 1024));
    let directory = Directory::with(&[("agents/w/AGENTS.md", long.as_str())]);
    assert!(
        directory
            .complaints()
            .ends_with("agents/w/AGENTS.md: error: has more than 1048576 bytes")
    );
}

const SKILL: &str = "---\nname: digging\ndescription: Dig well.\n---\nBend.";

fn skills(sources: &[SkillSource]) -> Vec<&str> {
    sources.iter().map(SkillSource::path).collect()
}

#[test]
fn skills_beside_an_agent_belong_to_it_in_every_layout() {
    let directory = Directory::with(&[
        ("agents/own/AGENTS.md", AGENT),
        ("agents/own/skills/digging/SKILL.md", SKILL),
        ("agents/own/skills/digging/.git/x", "not read"),
        ("agents/own/skills/README.md", "not read"),
        ("agents/deploy/deepagents.toml", DEPLOY),
        ("agents/deploy/AGENTS.md", "x"),
        ("agents/deploy/skills/digging/SKILL.md", SKILL),
        (
            "agents/deploy/subagents/a/deepagents.toml",
            "[agent]\nname = \"b\"\ndescription = \"Does this and all of that.\"\n",
        ),
        ("agents/deploy/subagents/a/AGENTS.md", "x"),
        ("agents/deploy/subagents/a/skills/digging/SKILL.md", SKILL),
        ("agents/managed/agent.json", r#"{"name": "m", "model": "scripted:x"}"#),
        ("agents/managed/AGENTS.md", "x"),
        ("agents/managed/skills/digging/SKILL.md", SKILL),
        ("agents/managed/skills/digging/more.txt", "More."),
    ]);
    let loaded = directory.load();
    assert_eq!(loaded.warnings, Problems::default());
    let [own, deploy, managed] = ["own", "deploy", "managed"].map(|name| &loaded.config.agents[name]);
    assert_eq!(skills(&own.skills), ["skills"]);
    assert_eq!(
        own.enclosed.all_paths().collect::<Vec<_>>(),
        ["/.agent/skills/digging/SKILL.md"]
    );
    assert_eq!(skills(&deploy.skills), vec!["skills"]);
    assert_eq!(skills(&deploy.subagents[0].skills), vec!["subagents/a/skills"]);
    assert_eq!(deploy.enclosed.len(), 2);
    assert_eq!(skills(&managed.skills), vec!["skills"]);
    assert_eq!(managed.enclosed.len(), 2);
}

#[test]
fn paths_in_a_definition_are_relative_to_its_folder() {
    let named = "---\nmodel: scripted:x\nmemory: [NOTES.md, none.md]\nskills: [{path: know/how, label: Ours}]\n---\nx";
    let sub = "---\ndescription: Does this and all of that.\nmemory: [own.md]\n---\nx";
    let directory = Directory::with(&[
        (
            "adjutant.toml",
            "[agents.t]\nmodel = \"scripted:x\"\nskills = [\"shared/\", \"/in/thread\"]\n",
        ),
        ("shared/digging/SKILL.md", SKILL),
        ("agents/w/AGENTS.md", named),
        ("agents/w/NOTES.md", "Likes tea."),
        ("agents/w/know/how/digging/SKILL.md", SKILL),
        ("agents/w/subagents/a/AGENTS.md", sub),
        ("agents/w/subagents/a/own.md", "Likes milk."),
    ]);
    let loaded = directory.load();
    assert_eq!(
        loaded.warnings.to_string(),
        "agents/w/AGENTS.md:3:1: warning: memory[1]: there is no file `none.md`, so the agent starts without this memory"
    );
    let paths = |agent: &str| {
        loaded.config.agents[agent]
            .enclosed
            .all_paths()
            .cloned()
            .collect::<Vec<_>>()
    };
    assert_eq!(paths("t"), ["/.agent/shared/digging/SKILL.md"]);
    let own = ["NOTES.md", "know/how/digging/SKILL.md", "subagents/a/own.md"].map(|path| format!("/.agent/{path}"));
    assert_eq!(paths("w"), own);
    assert_eq!(loaded.config.agents["w"].subagents[0].memory, ["subagents/a/own.md"]);
}

#[test]
fn problems_of_skills_and_memory_are_reported_at_their_fields() {
    let directory = Directory::with(&[
        (
            "adjutant.toml",
            "[agents.t]\nmodel = \"scripted:x\"\nskills = [\"none\", \"../out\", \"one/digging\", \"link\", \"odd\"]\n",
        ),
        ("one/digging/SKILL.md", SKILL),
        (
            "odd/Odd_Name/SKILL.md",
            &SKILL
                .replace("digging", "Odd_Name")
                .replace("\n---\nB", "\nmetadata: {include_tools: lookup}\n---\nB"),
        ),
        ("odd/broken/SKILL.md", "Dig."),
    ]);
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("x")).unwrap();
    std::os::unix::fs::symlink(outside.path(), directory.0.path().join("link")).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", directory.0.path().join("one/digging/secret")).unwrap();
    let problems = directory.complaints();
    for part in [
        "adjutant.toml:3:11: error: agents.t.skills[0]: there is no `none` in the folder of the definition",
        "agents.t.skills[1]: `../out` is not allowed: it must not contain ..",
        "warning: agents.t.skills[2]: `one/digging` is a skill itself; name the folder around it",
        "error: agents.t.skills[3]: `link` leads out of the folder of the definition and is not followed",
        "warning: agents.t.skills[4]: `odd/Odd_Name/SKILL.md`: its `name` should be 1 to 64",
        "`odd/Odd_Name/SKILL.md` includes the tool `lookup`, which is not in `skill_tools`",
        "`odd/broken/SKILL.md` is ignored: it must begin with settings",
    ] {
        assert!(problems.contains(part), "{part} is missing in\n{problems}");
    }
}

#[test]
fn a_skill_has_no_files_outside_its_folder_or_beyond_the_limits() {
    let large = "x".repeat(1024 * 1024 + 1);
    let directory = Directory::with(&[
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/skills/digging/SKILL.md", SKILL),
        ("agents/w/skills/digging/large.txt", &large),
    ]);
    std::os::unix::fs::symlink("/etc/passwd", directory.0.path().join("agents/w/skills/digging/secret")).unwrap();
    let problems = directory.complaints();
    assert!(
        problems.contains("error: skills[0]: `skills/digging/secret` leads out of the folder"),
        "{problems}"
    );
    assert!(
        problems.contains("error: skills[0]: `skills/digging/large.txt` has more than 1048576 bytes"),
        "{problems}"
    );
    let half = "x".repeat(1024 * 1024);
    let files: Vec<(String, &str)> = (0..5)
        .map(|at| (format!("agents/w/skills/digging/{at}.txt"), half.as_str()))
        .collect();
    let mut files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
    files.extend([
        ("agents/w/AGENTS.md", AGENT),
        ("agents/w/skills/digging/SKILL.md", SKILL),
    ]);
    let problems = Directory::with(&files).complaints();
    assert_eq!(
        problems.matches("have more than 4194304 bytes together").count(),
        1,
        "{problems}"
    );
}
