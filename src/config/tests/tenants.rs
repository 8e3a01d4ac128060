use super::*;
use crate::domain::identity::Tenant;

/// Returns a configuration with authentication, an agent, a tool, an MCP server and a provider, and these lines.
fn with(lines: &str) -> String {
    format!(
        "[auth]\n[agents.a]\nmodel = \"lab:x\"\n[providers.lab]\nkind = \"openai\"\nbase_url = \"http://x/v1\"\n\
         [mcp_servers.docs]\nurl = \"https://mcp.example.org/mcp\"\n\
         [tools.find]\ndescription = \"Finds.\"\nurl = \"https://crm.example.org/find\"\n\
         parameters = {{ type = \"object\" }}\n{lines}"
    )
}

#[test]
fn a_section_says_what_a_tenant_may_use_and_others_may_use_everything() {
    let text = "[tenants.acme]\nagents = [\"a\", \"b-*\"]\ntools = [\"find\", \"docs/*\"]\nmodels = [\"lab:*\"]\n\
                cors_origins = [\"https://acme.example\"]\nhosts = [\"*.acme.example\"]";
    let config = Directory::with(&[("adjutant.toml", &with(text))]).load().config;
    let tenants = config.tenant_settings().unwrap();
    let acme = tenants.of(&Tenant::stored("acme".to_owned()));
    assert!(acme.agents.allows("b-1") && !acme.agents.allows("c"));
    assert!(acme.tools.allows("docs/search") && !acme.tools.allows("other/search"));
    assert!(acme.models.allows("lab:y") && !acme.models.allows("openai:gpt-5"));
    assert_eq!(acme.hosts.as_deref(), Some(&["*.acme.example".to_owned()][..]));
    assert!(tenants.of(&Tenant::default()).agents.allows("c"));
}

#[test]
fn references_to_secrets_are_filled_in_and_never_printed() {
    let text = "[secrets.acme]\ncommand = [\"printf\", \"hush-%s\", \"quietly\"]\n\
                [tenants.acme]\nwebhook_secret = \"${secrets.acme}\"\n\
                [tenants.acme.providers.lab]\napi_key = \"${secrets.acme}\"\n\
                [tenants.acme.headers.\"https://crm.example.org\"]\nauthorization = \"Bearer ${secrets.acme}\"";
    let config = Directory::with(&[("adjutant.toml", &with(text))]).load().config;
    let acme = &config.tenants["acme"];
    assert_eq!(acme.webhook_secret.as_ref().unwrap().expose_secret(), "hush-quietly");
    let key = acme.providers["lab"].api_key.as_ref().unwrap();
    assert_eq!(key.expose_secret(), "hush-quietly");
    let headers = &acme.headers["https://crm.example.org"];
    assert_eq!(headers.0["authorization"], "Bearer hush-quietly");
    let printed = format!("{config:?} {:?}", config.tenant_settings().unwrap());
    assert!(
        printed.contains("acme") && !printed.contains("hush-quietly"),
        "{printed}"
    );
}

#[test]
fn a_key_file_of_a_tenant_is_beside_the_configuration() {
    let text = "[tenants.acme.providers.lab]\napi_key_file = \"keys/acme\"";
    let directory = Directory::with(&[("adjutant.toml", &with(text))]);
    let config = directory.load().config;
    let file = config.tenants["acme"].providers["lab"].api_key_file.as_ref().unwrap();
    assert_eq!(file, &directory.0.path().join("keys/acme"));
}

#[test]
fn mistakes_in_sections_of_tenants_are_named_with_their_place() {
    for (lines, expected) in [
        ("[tenants.Acme]", "must be the name of a tenant"),
        (
            "[tenants.acme]\nagents = [\"b\"]",
            "tenants.acme.agents[0]: there is no agent `b`",
        ),
        (
            "[tenants.acme]\nagents = [\"a*b\"]",
            "tenants.acme.agents[0]: `a*b` must be a name",
        ),
        (
            "[tenants.acme]\ntools = [\"fnd\"]",
            "tenants.acme.tools[0]: there is no tool `fnd`",
        ),
        (
            "[tenants.acme]\ntools = [\"find\", \"wiki/*\"]",
            "tenants.acme.tools[1]: there is no server `wiki` of tools",
        ),
        (
            "[tenants.acme]\nmodels = [\"gpt\"]",
            "tenants.acme.models[0]: `gpt` must be `provider:model`",
        ),
        (
            "[tenants.acme]\nmodels = [\"labs:x\"]",
            "tenants.acme.models[0]: there is no provider `labs`",
        ),
        (
            "[tenants.acme.providers.labs]\napi_key = \"k\"",
            "tenants.acme.providers.labs: there is no provider `labs`",
        ),
        (
            "[tenants.acme.providers.lab]\nkind = \"openai\"",
            "tenants.acme.providers.lab.api_key: must be given",
        ),
        (
            "[tenants.acme.providers.lab]\napi_key = \"k\"\nbase_url = \"x\"",
            "tenants.acme.providers.lab.base_url: is no address",
        ),
        (
            "[tenants.acme.headers.\"https://elsewhere.example\"]\nx-key = \"k\"",
            "no tool and no server of tools of this configuration is at `https://elsewhere.example`",
        ),
        (
            "[tenants.acme.headers.\"https://crm.example.org/\"]\nx-key = \"k\"",
            "must be the scheme, host and port of a server",
        ),
        (
            "[tenants.acme.headers.\"https://crm.example.org\"]\nhost = \"k\"",
            "is set by the connection itself",
        ),
        (
            "[tenants.acme]\nwebhook_secret = \" \"",
            "tenants.acme.webhook_secret: must not be blank",
        ),
        (
            "[tenants.acme]\nwebhook_secret = \"${secrets.none}\"",
            "tenants.acme.webhook_secret: there is no section `[secrets.none]`",
        ),
        (
            "[tenants.acme]\ncors_origins = [\"*\"]",
            "tenants.acme.cors_origins[0]: must be origins or `loopback`",
        ),
        (
            "[tenants.acme]\ncors_origins = [\"acme.example\"]",
            "tenants.acme.cors_origins[0]: `acme.example` must be an origin",
        ),
        (
            "[tenants.acme]\nhosts = [\"*\"]",
            "tenants.acme.hosts[0]: must be names",
        ),
        (
            "[tenants.acme]\nhosts = [\"a:1\"]",
            "tenants.acme.hosts[0]: `a:1` must be a name without a port",
        ),
        ("[tenants.acme]\nagent = [\"a\"]", "tenants.acme.agent"),
    ] {
        let found = complaints(&with(lines));
        assert!(found.contains(expected), "{lines}\n{found}");
    }
}

#[test]
fn a_section_of_a_tenant_needs_authentication() {
    let text = "[agents.a]\nmodel = \"scripted:x\"\n[tenants.acme]\nagents = [\"a\"]";
    let found = complaints(text);
    assert!(found.contains("tenants.acme: needs the section `[auth]`"), "{found}");
}

#[test]
fn an_agent_that_clients_may_define_can_be_named() {
    let text = with("[agents_api]\nenabled = true\n[tenants.acme]\nagents = [\"later\"]");
    assert_eq!(complaints(&text), "");
}
