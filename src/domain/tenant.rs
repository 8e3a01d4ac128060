//! The settings of single tenants: what they may use, and where their requests come from.

use std::collections::BTreeMap;

use url::Url;

use super::headers::Headers;
use super::identity::Tenant;
use super::name_patterns::NamePatterns;

/// The settings of one tenant. Those of a tenant without settings restrict nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantSettings {
    /// The agents that it may see and run, by `graph_id`. Those that clients of other tenants defined are not among them,
    /// whatever their names: see [`TenantAgents`](super::tenant_agents::TenantAgents).
    pub agents: NamePatterns,
    /// The declared tools that its agents may use, by name; those of MCP servers as `server/tool`.
    pub tools: NamePatterns,
    /// The models that its agents may use, as `provider:model`.
    pub models: NamePatterns,
    /// The headers that tools over HTTP and MCP servers get from its agents, by the origin of their address.
    pub headers: BTreeMap<String, Headers>,
    /// The web origins whose pages may act for its users; those of the server if there is no list.
    pub cors_origins: Option<Vec<String>>,
    /// The host names that its users may use; those of the server if there is no list.
    pub hosts: Option<Vec<String>>,
}

impl TenantSettings {
    /// Returns the headers for a server at this address: `given`, and the tenant's in their place. None if the tenant has
    /// none for it.
    pub fn headers_for(&self, url: &str, given: &Headers) -> Option<Headers> {
        let origin = Url::parse(url).ok()?.origin().ascii_serialization();
        let own = self.headers.get(&origin)?;
        let is_replaced = |name: &String| own.0.keys().any(|other| other.eq_ignore_ascii_case(name));
        let kept = given.0.iter().filter(|(name, _)| !is_replaced(name));
        let all = kept.chain(&own.0).map(|(name, value)| (name.clone(), value.clone()));
        Some(Headers(all.collect()))
    }
}

/// The settings of all tenants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tenants {
    by_name: BTreeMap<Tenant, TenantSettings>,
    /// The settings of all other tenants, which restrict nothing.
    otherwise: TenantSettings,
    /// True if the server knows the tenants of its callers.
    are_known: bool,
}

impl Tenants {
    /// Creates the settings of these tenants. `are_known` is true if the server knows the tenants of its callers: it has
    /// authentication.
    pub fn new(by_name: BTreeMap<Tenant, TenantSettings>, are_known: bool) -> Self {
        Self {
            by_name,
            otherwise: TenantSettings::default(),
            are_known,
        }
    }

    /// Returns whether the server knows the tenants of its callers. Otherwise every caller may do everything, and what
    /// belongs to single tenants is there for all.
    pub fn are_known(&self) -> bool {
        self.are_known
    }

    /// Returns the settings of a tenant.
    pub fn of(&self, tenant: &Tenant) -> &TenantSettings {
        self.by_name.get(tenant).unwrap_or(&self.otherwise)
    }

    /// Returns the tenants that have settings.
    pub fn iter(&self) -> impl Iterator<Item = (&Tenant, &TenantSettings)> {
        self.by_name.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(all: &[(&str, &str)]) -> Headers {
        let all = all.iter();
        Headers(
            all.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect(),
        )
    }

    #[test]
    fn headers_of_a_tenant_replace_those_of_the_definition() {
        let acme = TenantSettings {
            headers: BTreeMap::from([("https://crm.example.org".to_owned(), headers(&[("X-Key", "acme")]))]),
            ..TenantSettings::default()
        };
        let given = headers(&[("x-key", "ours"), ("x-more", "1")]);
        assert_eq!(
            acme.headers_for("https://crm.example.org/find?q=1", &given),
            Some(headers(&[("X-Key", "acme"), ("x-more", "1")]))
        );
        assert_eq!(acme.headers_for("https://crm.example.org:8443/find", &given), None);
        assert_eq!(acme.headers_for("http://crm.example.org/find", &given), None);
    }

    #[test]
    fn a_tenant_without_settings_may_use_everything() {
        let only_a = TenantSettings {
            agents: NamePatterns::of(Some(vec!["a".to_owned()])),
            ..TenantSettings::default()
        };
        let acme = Tenant::stored("acme".to_owned());
        let tenants = Tenants::new(BTreeMap::from([(acme.clone(), only_a)]), true);
        assert!(!tenants.of(&acme).agents.allows("b"));
        assert!(tenants.of(&Tenant::default()).agents.allows("b"));
    }
}
