use super::*;
use crate::domain::identity::Tenant;

/// Returns a configuration with an agent that has all tools of the service `crm`, and these lines in its section.
fn with(lines: &str) -> String {
    format!(
        "[auth]\n[secrets.crm]\ncommand = [\"printf\", \"from-%s\", \"a-program\"]\n\
         [agents.a]\nmodel = \"scripted:x\"\ntools = [\"crm/*\"]\ninterrupt_on = {{ \"crm/send_email\" = true }}\n\
         [tool_servers.crm]\n{lines}"
    )
}

#[test]
fn a_service_may_be_named_by_agents_and_tenants_and_refers_to_secrets() {
    let text = with(
        "url = \"https://crm.example.org/tools\"\nheaders = { authorization = \"Bearer ${secrets.crm}\" }\n\
         [tenants.acme]\ntools = [\"crm/search\"]\n\
         [tenants.acme.headers.\"https://crm.example.org\"]\nauthorization = \"Bearer own\"",
    );
    let config = Directory::with(&[("adjutant.toml", &text)]).load().config;
    let service = &config.tool_servers["crm"];
    assert_eq!(service.headers.0["authorization"], "Bearer from-a-program");
    assert!(!format!("{config:?}").contains("from-a-program"));
    let tenants = config.tenant_settings().unwrap();
    let acme = tenants.of(&Tenant::stored("acme".to_owned()));
    assert!(acme.tools.allows("crm/search") && !acme.tools.allows("crm/send_email"));
    let headers = acme.headers_for(&service.url, &service.headers).unwrap();
    assert_eq!(headers.0["authorization"], "Bearer own");
}

#[test]
fn mistakes_of_services_are_reported() {
    for (lines, expected) in [
        ("", "tool_servers.crm.url: must be given"),
        (
            "url = \"ftp://crm.example.org\"",
            "tool_servers.crm.url: must begin with http:// or https://",
        ),
        (
            "url = \"https://crm.example.org\"\nmax_retries = 11",
            "tool_servers.crm.max_retries: must be at most 10",
        ),
        (
            "url = \"https://crm.example.org\"\nretries = 1",
            "tool_servers.crm.retries",
        ),
        (
            "url = \"https://crm.example.org\"\n[mcp_servers.crm]\nurl = \"https://mcp.example.org\"",
            "tool_servers.crm: is the name of an MCP server, too",
        ),
        (
            "url = \"https://crm.example.org\"\n[agents.b]\nmodel = \"scripted:x\"\ntools = [\"cmr/*\"]",
            "agents.b.tools[0]: there is no server `cmr` of tools; did you mean `crm`?",
        ),
    ] {
        let found = complaints(&with(lines));
        assert!(found.contains(expected), "{lines}\n{found}");
    }
}
