use secrecy::ExposeSecret;

use super::*;

#[test]
fn settings_refer_to_secrets() {
    let config = "\
        [secrets.crm]\n\
        command = [\"printf\", \"from-%s\", \"a-program\"]\n\
        [secrets.hook]\n\
        file = \"keys/hook\"\n\
        [tools.find]\n\
        description = \"Finds.\"\n\
        parameters = { type = \"object\" }\n\
        url = \"https://crm.example.org/find\"\n\
        headers = { authorization = \"Bearer ${secrets.crm}\" }\n\
        [providers.lab]\n\
        kind = \"openai\"\n\
        api_key = \"${secrets.crm}\"\n\
        [webhooks]\n\
        secret = \"${secrets.hook}\"\n\
        headers = { x-key = \"${secrets.hook}\" }\n\
        [peers.headers.\"https://peer.example.org\"]\n\
        x-key = \"${secrets.hook}\"\n\
        [mcp_servers.hub]\n\
        url = \"https://hub.example.org/mcp\"\n\
        headers = { x-key = \"${secrets.hook}\" }\n\
        [agents.a]\n\
        model = \"scripted:x\"\n\
        subagents = [{ name = \"far\", description = \"Far.\", graph_id = \"b\", url = \"https://far.example.org\", \
        headers = { x-key = \"${secrets.hook}\" } }]\n";
    let directory = Directory::with(&[("adjutant.toml", config), ("keys/hook", " from-a-file\n")]);
    let config = directory.load().config;
    assert_eq!(config.tools["find"].headers.0["authorization"], "Bearer from-a-program");
    let key = config.providers["lab"].api_key.as_ref().expect("a key");
    assert_eq!(key.expose_secret(), "from-a-program");
    let secret = config.webhooks.secret.as_ref().expect("a secret");
    assert_eq!(secret.expose_secret(), "from-a-file");
    assert_eq!(config.webhooks.headers["x-key"].expose_secret(), "from-a-file");
    let headers = [
        &config.peers.headers["https://peer.example.org"],
        &config.mcp_servers["hub"].headers,
        &config.agents["a"].subagents[0].headers,
    ];
    for headers in headers {
        assert_eq!(headers.0["x-key"], "from-a-file");
    }
    assert!(!format!("{config:?}").contains("from-a-"), "{config:?}");
}

#[test]
fn mistakes_of_secrets_are_reported() {
    let agent = "[agents.a]\nmodel = \"scripted:x\"\n";
    for (lines, expected) in [
        (
            "[secrets.a]\nenv = \"X\"\nfile = \"y\"",
            "secrets.a.env: must be given, or `file`, or `command`, and only one of them",
        ),
        (
            "[secrets.a]",
            "secrets.a.env: must be given, or `file`, or `command`, and only one of them",
        ),
        (
            "[secrets.a]\nenv = \"a b\"",
            "secrets.a.env: must be the name of an environment variable",
        ),
        (
            "[secrets.a]\ncommand = [\" \"]",
            "secrets.a.command: must begin with the name of a program",
        ),
        (
            "[secrets.a]\nenv = \"X\"\ncommand_s = 0",
            "secrets.a.command_s: must be from 0.01 to 600 seconds",
        ),
        (
            "[secrets.\"a b\"]\nenv = \"X\"",
            "must be 1 to 64 letters, digits, `_` or `-`",
        ),
        (
            "[webhooks]\nsecret = \"${secrets.none}\"",
            "webhooks.secret: there is no section `[secrets.none]`",
        ),
        (
            "[secrets.a]\nfile = \"no-such-file\"\n[webhooks]\nsecret = \"${secrets.a}\"",
            "webhooks.secret: the secret of `[secrets.a]` cannot be read:",
        ),
    ] {
        let found = complaints(&format!("{lines}\n{agent}"));
        assert!(found.contains(expected), "{lines}\n{found}");
    }
    assert_eq!(
        complaints(&format!("[secrets.unused]\nfile = \"no-such-file\"\n{agent}")),
        ""
    );
}
