//! The parts that single tenants have of their own: the keys of providers, the headers of tools, the secrets of webhooks.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::anyhow;
use reqwest::Client;
use secrecy::{ExposeSecret, SecretString};

use super::{api_key, context_windows, http_tool, request_settings};
use crate::agent::assemble::TenantParts;
use crate::config::{Config, ProviderSection, TenantSection};
use crate::definition::{ToolDefinition, ToolKind};
use crate::domain::identity::Tenant;
use crate::domain::tenant::{TenantSettings, Tenants};
use crate::model::providers::{ProviderOverride, Providers};
use crate::tool::Tool;

/// Creates the parts of the agents of all tenants that have a section.
pub(super) fn parts(
    config: &Config,
    tenants: &Tenants,
    providers: &Arc<Providers>,
    tools: &BTreeMap<String, Arc<dyn Tool>>,
    client: &Client,
) -> anyhow::Result<BTreeMap<Tenant, TenantParts>> {
    let mut all = BTreeMap::new();
    for (tenant, section) in config.tenant_sections()? {
        let settings = tenants.of(&tenant);
        let parts = TenantParts {
            providers: Arc::new(providers_of(providers, section, settings)),
            tools: Arc::new(tools_of(config, settings, tools, client)?),
            agents: settings.agents.clone(),
        };
        all.insert(tenant, parts);
    }
    Ok(all)
}

/// Returns the providers of a tenant: those of the server, with the tenant's keys and its restrictions.
pub(super) fn providers_of(
    providers: &Arc<Providers>,
    section: &TenantSection,
    settings: &TenantSettings,
) -> Providers {
    providers.for_tenant(overrides(section), settings.models.clone())
}

/// Returns the providers for which a tenant has a key of its own.
fn overrides(section: &TenantSection) -> BTreeMap<String, ProviderOverride> {
    let one = |own: &ProviderSection| ProviderOverride {
        kind: own.kind,
        base_url: own.base_url.clone(),
        api_key: api_key(own),
        windows: context_windows(own),
        requests: request_settings(own),
    };
    let all = section.providers.iter();
    all.map(|(name, own)| (name.clone(), one(own))).collect()
}

/// Returns the tools that a tenant may use. Those that get headers of the tenant are made anew.
fn tools_of(
    config: &Config,
    settings: &TenantSettings,
    tools: &BTreeMap<String, Arc<dyn Tool>>,
    client: &Client,
) -> anyhow::Result<BTreeMap<String, Arc<dyn Tool>>> {
    let mut all = BTreeMap::new();
    for (name, shared) in tools.iter().filter(|(name, _)| settings.tools.allows(name)) {
        let definition = config.tools.get(name);
        let definition = definition.filter(|definition| definition.kind == ToolKind::Http);
        let own = definition.and_then(|definition| {
            let headers = settings.headers_for(&definition.url, &definition.headers)?;
            Some(ToolDefinition {
                headers,
                ..definition.clone()
            })
        });
        let tool = match own {
            Some(own) => http_tool(config, name, &own, client)?,
            None => Arc::clone(shared),
        };
        all.insert(name.clone(), tool);
    }
    Ok(all)
}

/// Returns the secrets that sign the webhook deliveries of tenants.
pub(super) fn webhook_secrets(config: &Config) -> anyhow::Result<BTreeMap<Tenant, SecretString>> {
    let sections = config.tenant_sections().map_err(|invalid| anyhow!("{invalid}"))?;
    let secret = |(tenant, section): (Tenant, &TenantSection)| {
        let secret = section.webhook_secret.as_ref()?;
        Some((tenant, secret.expose_secret().to_owned().into()))
    };
    Ok(sections.into_iter().filter_map(secret).collect())
}
