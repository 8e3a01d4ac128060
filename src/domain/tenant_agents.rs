//! The agents that exist for a tenant.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::identity::Tenant;
use super::name_patterns::NamePatterns;

/// The tenants of the agents that clients defined, by `graph_id`. Other agents are there for all tenants.
pub type AgentOwners = BTreeMap<String, Tenant>;

/// The agents that exist for a tenant: agents of files and agents that clients of the tenant defined, as far as the
/// settings of the tenant allow them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantAgents {
    tenant: Tenant,
    /// The agents that the settings of the tenant allow.
    allowed: NamePatterns,
    owners: Arc<AgentOwners>,
}

impl TenantAgents {
    /// Creates the set from the settings of a tenant and the owners of all agents.
    pub fn new(tenant: Tenant, allowed: NamePatterns, owners: Arc<AgentOwners>) -> Self {
        Self {
            tenant,
            allowed,
            owners,
        }
    }

    /// Returns whether an agent of this name exists for the tenant, if it exists at all.
    pub fn contains(&self, graph_id: &str) -> bool {
        self.allowed.allows(graph_id) && !self.is_of_another(graph_id)
    }

    /// Returns whether a client of another tenant defined the agent of this name.
    pub fn is_of_another(&self, graph_id: &str) -> bool {
        self.owners.get(graph_id).is_some_and(|owner| *owner != self.tenant)
    }

    /// Returns whether the settings of the tenant allow an agent of this name.
    pub fn is_allowed(&self, graph_id: &str) -> bool {
        self.allowed.allows(graph_id)
    }

    /// Returns the list of names that the settings of the tenant allow; none if they allow all.
    pub fn allowed_names(&self) -> Option<&[String]> {
        self.allowed.list()
    }

    /// Returns the names of the agents that clients of other tenants defined.
    pub fn of_others(&self) -> impl Iterator<Item = &str> {
        let others = self.owners.iter().filter(|(_, owner)| **owner != self.tenant);
        others.map(|(graph_id, _)| graph_id.as_str())
    }

    /// Returns whether all agents exist for the tenant.
    pub fn are_all(&self) -> bool {
        self.allowed.list().is_none() && self.of_others().next().is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::stored(name.to_owned())
    }

    fn agents_of(name: &str, allowed: Option<&[&str]>) -> TenantAgents {
        let owners = AgentOwners::from([("acme-1".to_owned(), tenant("acme"))]);
        let allowed = allowed.map(|all| all.iter().map(|one| (*one).to_owned()).collect());
        TenantAgents::new(tenant(name), NamePatterns::of(allowed), Arc::new(owners))
    }

    #[test]
    fn an_agent_of_a_client_exists_for_its_own_tenant_only() {
        let acme = agents_of("acme", None);
        assert!(acme.contains("acme-1") && acme.contains("of a file") && acme.are_all());
        let other = agents_of("other", None);
        assert!(!other.contains("acme-1") && other.contains("of a file") && !other.are_all());
        assert!(other.is_allowed("acme-1") && other.is_of_another("acme-1"));
        assert_eq!(other.of_others().collect::<Vec<_>>(), ["acme-1"]);
    }

    #[test]
    fn an_agent_of_the_tenant_exists_only_if_its_settings_allow_the_name() {
        let acme = agents_of("acme", Some(&["b"]));
        assert!(!acme.contains("acme-1") && acme.contains("b") && !acme.are_all());
        assert!(!acme.is_allowed("acme-1") && !acme.is_of_another("acme-1"));
    }
}
