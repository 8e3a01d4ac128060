//! The settings that may refer to secrets and to environment variables.

use std::path::Path;

use super::secrets::{References, check_sections};
use super::{Config, mcp, tenants, variable};
use crate::definition::{Diagnostic, FieldPath};

/// Replaces the references in the settings that may have some. Returns what is wrong with them.
pub(super) fn fill_in(config: &mut Config, beside: &Path) -> Vec<Diagnostic> {
    let sections = config.secrets.clone();
    let mut findings = check_sections(&sections);
    if !findings.is_empty() {
        // References to a section that is wrong cannot be filled in.
        return findings;
    }
    let mut references = References::new(&sections, beside, variable);
    for (name, provider) in &mut config.providers {
        if let Some(key) = &mut provider.api_key {
            let field = FieldPath::of(["providers", name.as_str(), "api_key"]);
            references.fill_secret(field, key, &mut findings);
        }
        let field = FieldPath::of(["providers", name.as_str(), "headers"]);
        references.fill_headers(&field, &mut provider.headers, &mut findings);
    }
    if let Some(secret) = &mut config.webhooks.secret {
        references.fill_secret(FieldPath::of(["webhooks", "secret"]), secret, &mut findings);
    }
    for (name, value) in &mut config.webhooks.headers {
        let field = FieldPath::of(["webhooks", "headers", name.as_str()]);
        references.fill_secret(field, value, &mut findings);
    }
    for (name, value) in &mut config.telemetry.headers {
        let field = FieldPath::of(["telemetry", "headers", name.as_str()]);
        references.fill_secret(field, value, &mut findings);
    }
    for (address, headers) in &mut config.peers.headers {
        let field = FieldPath::of(["peers", "headers", address.as_str()]);
        references.fill_headers(&field, headers, &mut findings);
    }
    for (name, tool) in &mut config.tools {
        let field = FieldPath::of(["tools", name.as_str(), "headers"]);
        references.fill_headers(&field, &mut tool.headers, &mut findings);
    }
    for (name, service) in &mut config.sandboxes {
        let field = FieldPath::of(["sandboxes", name.as_str()]);
        references.fill(field.then("url"), &mut service.url, &mut findings);
        references.fill_headers(&field.then("headers"), &mut service.headers, &mut findings);
    }
    for (graph_id, agent) in &mut config.agents {
        let top = FieldPath::of(["agents", graph_id.as_str()]);
        references.fill_headers(&top.then("headers"), &mut agent.headers, &mut findings);
        let list = top.then("subagents");
        for (at, subagent) in agent.subagents.iter_mut().enumerate() {
            let field = list.then(at).then("headers");
            references.fill_headers(&field, &mut subagent.headers, &mut findings);
        }
    }
    findings.extend(tenants::fill_in(config, &mut references));
    findings.extend(mcp::fill_in(config, &mut references));
    findings
}
