//! The sections `[tenants.NAME]` of the configuration file, and their validation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use url::Url;

use super::secrets::References;
use super::sections::{NamedEntries, ProviderSection};
use super::shared_checks::{host_problem, origin_problem, provider_problems};
use super::{Config, PeersSection};
use crate::definition::mcp::McpReference;
use crate::definition::provider::PROVIDERS;
use crate::definition::{AgentDefinition, Diagnostic, FieldPath, Headers, ValidationContext};
use crate::domain::Invalid;
use crate::domain::identity::Tenant;
use crate::domain::name_patterns::{NamePatterns, is_pattern};
use crate::domain::tenant::{TenantSettings, Tenants};

/// `[tenants.NAME]`: what the tenant with this name may use, and its own credentials. Everything that is left out is as
/// for all tenants. In lists of names, a name that ends in `*` is a prefix. Sections below it are
/// `[tenants.NAME.providers.PROVIDER]`, with the keys of `[providers.NAME]`, and
/// `[tenants.NAME.headers."https://host"]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct TenantSection {
    /// The agents that the tenant may see and run, by `graph_id`; all if absent.
    pub agents: Option<Vec<String>>,
    /// The tools of `[tools]`, of MCP servers (as `server/tool`) and of the embedding program that its agents may use; all
    /// if absent. The built-in tools are not restricted.
    pub tools: Option<Vec<String>>,
    /// The models that its agents may use, as in `openai:gpt-5` or `openai:*`; all if absent.
    pub models: Option<Vec<String>>,
    /// The model providers for which it has a key of its own, by name.
    #[cfg_attr(test, schemars(skip))]
    pub providers: NamedEntries<ProviderSection>,
    /// Headers that its agents send to tools over HTTP and to MCP servers, by scheme, host and port of their address.
    /// They replace those of the tool or the server with the same name.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, BTreeMap<String, String>>"))]
    pub headers: BTreeMap<String, Headers>,
    /// The secret that signs its webhook deliveries; that of `[webhooks]` if absent.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub webhook_secret: Option<SecretString>,
    /// The web origins whose pages may act for its users; those of `[server]` if absent.
    pub cors_origins: Option<Vec<String>>,
    /// The host names that its users may use, and no other tenant; those of `[server]` if absent.
    pub hosts: Option<Vec<String>>,
}

impl TenantSection {
    fn settings(&self) -> TenantSettings {
        TenantSettings {
            agents: NamePatterns::of(self.agents.clone()),
            tools: NamePatterns::of(self.tools.clone()),
            models: NamePatterns::of(self.models.clone()),
            headers: self.headers.clone(),
            cors_origins: self.cors_origins.clone(),
            hosts: self.hosts.clone(),
        }
    }
}

impl Config {
    /// Returns the tenants that have a section, each with it.
    ///
    /// # Errors
    /// Returns the rule of names that a section breaks; a loaded configuration keeps it.
    pub fn tenant_sections(&self) -> Result<BTreeMap<Tenant, &TenantSection>, Invalid> {
        let mut sections = BTreeMap::new();
        for (name, section) in &self.tenants {
            sections.insert(Tenant::new("tenants", name)?, section);
        }
        Ok(sections)
    }

    /// Returns the settings of all tenants.
    ///
    /// # Errors
    /// As [`Config::tenant_sections`].
    pub fn tenant_settings(&self) -> Result<Tenants, Invalid> {
        let sections = self.tenant_sections()?.into_iter();
        let all = sections.map(|(tenant, section)| (tenant, section.settings()));
        Ok(Tenants::new(all.collect(), self.auth.is_some()))
    }
}

/// Resolves the files that sections of tenants name, relative to the folder of the configuration.
pub(super) fn settle_files(config: &mut Config, beside: &Path) {
    for section in config.tenants.values_mut() {
        for provider in section.providers.values_mut() {
            provider.api_key_file = provider.api_key_file.take().map(|path| beside.join(path));
        }
    }
}

/// Replaces the references in sections of tenants. Returns what is wrong with them.
pub(super) fn fill_in(config: &mut Config, references: &mut References<'_>) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, section) in &mut config.tenants {
        let top = FieldPath::of(["tenants", name.as_str()]);
        for (provider, own) in &mut section.providers {
            if let Some(key) = &mut own.api_key {
                let field = top.then("providers").then(provider.as_str()).then("api_key");
                references.fill_secret(field, key, &mut findings);
            }
            let field = top.then("providers").then(provider.as_str()).then("headers");
            references.fill_headers(&field, &mut own.headers, &mut findings);
        }
        for (address, headers) in &mut section.headers {
            let field = top.then("headers").then(address.as_str());
            references.fill_headers(&field, headers, &mut findings);
        }
        if let Some(secret) = &mut section.webhook_secret {
            references.fill_secret(top.then("webhook_secret"), secret, &mut findings);
        }
    }
    findings
}

/// Validates the sections of all tenants.
pub(super) fn check(config: &Config, validation_context: &ValidationContext) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, section) in &config.tenants {
        let mut check = Check {
            config,
            validation_context,
            top: FieldPath::of(["tenants", name.as_str()]),
            findings: vec![],
        };
        check.section(name, section);
        findings.extend(check.findings);
    }
    findings
}

/// The validation of one section.
struct Check<'a> {
    config: &'a Config,
    validation_context: &'a ValidationContext,
    /// The field of the section.
    top: FieldPath,
    findings: Vec<Diagnostic>,
}

impl Check<'_> {
    fn section(&mut self, name: &str, section: &TenantSection) {
        if let Err(invalid) = Tenant::new("tenant", name) {
            self.error(self.top.clone(), invalid.reason);
        }
        if self.config.auth.is_none() {
            let message = "needs the section `[auth]`: without authentication the server does not know the tenants of its \
                           callers";
            self.error(self.top.clone(), message);
        }
        self.names("agents", section.agents.as_ref(), Self::agent_problem);
        self.names("tools", section.tools.as_ref(), Self::tool_problem);
        self.names("models", section.models.as_ref(), Self::model_problem);
        for (provider, own) in &section.providers {
            self.provider(provider, own);
        }
        let headers = self.top.then("headers");
        self.findings
            .extend(PeersSection::header_problems(&headers, &section.headers));
        let addresses = self.addresses();
        for address in section.headers.keys().filter(|address| !addresses.contains(*address)) {
            let message = format!("no tool and no server of tools of this configuration is at `{address}`");
            self.error(headers.then(address.as_str()), message);
        }
        let is_blank = |secret: &SecretString| secret.expose_secret().trim().is_empty();
        if section.webhook_secret.as_ref().is_some_and(is_blank) {
            let message = "must not be blank; leave it out for that of `[webhooks]`";
            self.error(self.top.then("webhook_secret"), message);
        }
        self.origins(section.cors_origins.as_deref().unwrap_or_default());
        for (at, host) in section.hosts.iter().flatten().enumerate() {
            let problem = match host.as_str() {
                "*" => Some("must be names: `*` would take the names of all tenants".to_owned()),
                _ => host_problem(host),
            };
            let field = self.top.then("hosts").then(at);
            problem
                .into_iter()
                .for_each(|problem| self.error(field.clone(), problem));
        }
    }

    fn error(&mut self, field: FieldPath, message: impl Into<String>) {
        self.findings.push(Diagnostic::error(field, message));
    }

    /// Checks a list of names.
    fn names(&mut self, list: &str, names: Option<&Vec<String>>, problem: fn(&Self, &str) -> Option<String>) {
        for (at, name) in names.into_iter().flatten().enumerate() {
            let found = match is_pattern(name) {
                true => problem(self, name),
                false => Some(format!(
                    "`{name}` must be a name, or the beginning of names with a `*` after it"
                )),
            };
            let field = self.top.then(list).then(at);
            found.into_iter().for_each(|found| self.error(field.clone(), found));
        }
    }

    /// Returns the reason why a name cannot be that of an agent.
    fn agent_problem(&self, name: &str) -> Option<String> {
        // Clients may define it later.
        let is_known =
            name.ends_with('*') || self.config.agents_api.enabled || self.validation_context.agents.contains(name);
        (!is_known).then(|| format!("there is no agent `{name}` in this configuration"))
    }

    /// Returns the reason why a name cannot be that of a tool.
    fn tool_problem(&self, name: &str) -> Option<String> {
        if name.ends_with('*') && !name.contains('/') || self.validation_context.tools.contains(name) {
            return None;
        }
        let Some(reference) = McpReference::read(name) else {
            let message = "in this configuration; built-in tools are not restricted, and those of servers are written \
                           `server/tool`";
            return Some(format!("there is no tool `{name}` {message}"));
        };
        let is_own = |agent: &AgentDefinition| {
            let below = agent.subagents.iter().map(|subagent| &subagent.mcp_servers);
            [&agent.mcp_servers]
                .into_iter()
                .chain(below)
                .any(|servers| servers.contains_key(reference.server))
        };
        let is_known =
            self.validation_context.mcp_servers.contains(reference.server) || self.config.agents.values().any(is_own);
        (!is_known).then(|| {
            format!(
                "there is no server `{}` of tools in this configuration",
                reference.server
            )
        })
    }

    /// Returns the reason why a name cannot be that of a model.
    fn model_problem(&self, name: &str) -> Option<String> {
        if name == "*" {
            return None;
        }
        let Some((provider, _)) = name.split_once(':') else {
            return Some(format!(
                "`{name}` must be `provider:model`, as in `openai:gpt-5` or `openai:*`"
            ));
        };
        let is_known = self.validation_context.providers.contains(provider);
        (!is_known).then(|| format!("there is no provider `{provider}` in this configuration"))
    }

    /// Checks a provider for which the tenant has a key of its own.
    fn provider(&mut self, name: &str, own: &ProviderSection) {
        let field = self.top.then("providers").then(name);
        let is_built_in = PROVIDERS.iter().any(|traits| traits.is_built_in && traits.word == name);
        if !is_built_in && !self.config.providers.contains_key(name) {
            let message = format!("there is no provider `{name}` in this configuration; `[providers.{name}]` adds one");
            self.error(field, message);
            return;
        }
        self.findings.extend(provider_problems(&field, own));
        let has_key = own.api_key.is_some() || own.api_key_env.is_some() || own.api_key_file.is_some();
        if !has_key && own.base_url.is_none() {
            let message = "must be given, or `api_key_env`, `api_key_file` or `base_url`: the key of the server is not that \
                           of the tenant";
            self.error(field.then("api_key"), message);
        }
    }

    fn origins(&mut self, origins: &[String]) {
        for (at, origin) in origins.iter().enumerate() {
            let problem = match origin.as_str() {
                "*" => Some("must be origins or `loopback`: `*` would let all pages act for the tenant".to_owned()),
                "loopback" if self.config.server.cors_credentials => Some(
                    "must be origins: with `[server] cors_credentials`, other pages of this machine could act for a visitor"
                        .to_owned(),
                ),
                _ => origin_problem(origin),
            };
            let field = self.top.then("cors_origins").then(at);
            problem
                .into_iter()
                .for_each(|problem| self.error(field.clone(), problem));
        }
    }

    /// Returns the origins of the addresses of all tools and servers of tools.
    fn addresses(&self) -> BTreeSet<String> {
        let tools = self.config.tools.values().map(|tool| tool.url.as_str());
        let shared = self.config.mcp_servers.values();
        let of_agents = self.config.agents.values().flat_map(|agent| {
            let below = agent
                .subagents
                .iter()
                .flat_map(|subagent| subagent.mcp_servers.values());
            agent.mcp_servers.values().chain(below)
        });
        let servers = shared.chain(of_agents).filter_map(|server| server.url.as_deref());
        let services = self.config.tool_servers.values().map(|server| server.url.as_str());
        tools
            .chain(servers)
            .chain(services)
            .filter_map(|url| Url::parse(url).ok())
            .map(|url| url.origin().ascii_serialization())
            .collect()
    }
}
