//! Access rules: what an identity may do to which resource. Pure; the facts come from the database.
//!
//! Every request is one [`Action`]. The roles of the identity say how far the action reaches ([`Reach`]): over nothing,
//! over what the caller owns, over what is assigned to the caller, or over the whole tenant. [`may_access`] decides
//! about one resource, and [`scope_of`] gives the filter of a search that finds the same resources.

use serde_json::{Map, Value};

use super::approvers::Approvers;
use super::filter::MetadataFilter;
use super::identity::{Identity, Tenant, UserId, UserRole};
use super::ruling::{RowCondition, Ruling};

pub use super::action::Action;
pub use super::identity::Ownership;
pub use super::ruling::ResourceFacts;

/// The reach of an action of an identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// Over nothing.
    Nothing,
    /// Over what is assigned to the caller: interrupts.
    Assigned,
    /// Over what the caller owns, and what is shared with the tenant.
    Own,
    /// Over everything of the tenant.
    Tenant,
    /// Over everything of the server. Only a server without authentication allows that.
    Server,
}

/// The resources that their owners share with the tenant: those whose metadata contain a value.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct SharingRule {
    /// Metadata of resources that the whole tenant may read.
    pub read: Option<MetadataFilter>,
    /// Metadata of resources that the whole tenant may read and change, but not delete.
    pub write: Option<MetadataFilter>,
}

impl SharingRule {
    /// Returns the filters, one of which the metadata of a resource must match for the action.
    pub fn filters(&self, action: Action) -> impl Iterator<Item = &MetadataFilter> {
        let read = self.read.iter().filter(move |_| action.is_read());
        let write = self.write.iter().filter(move |_| action.verb() != "delete");
        read.chain(write)
    }

    fn shares(&self, action: Action, metadata: &Map<String, Value>) -> bool {
        self.filters(action).any(|filter| filter.matches(metadata))
    }
}

/// The resources that a search may find.
#[derive(Debug, Clone, PartialEq)]
pub enum AccessScope {
    /// All of the server.
    Server,
    /// None.
    Nothing,
    /// All of this tenant.
    Tenant(Tenant),
    /// The rows of this owner, and the rows whose metadata match one of the filters.
    Own {
        /// The owner.
        ownership: Ownership,
        /// The filters of [`SharingRule`].
        shared: Vec<MetadataFilter>,
    },
    /// The rows of a tenant that access policies leave.
    Ruled {
        /// The tenant.
        tenant: Tenant,
        /// The rows that the roles allow.
        base: Box<Self>,
        /// The rows that the policies permit of the tenant, and forbid of all.
        ruling: Ruling,
    },
}

/// The caller of a search for interrupts that may be assigned to the caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignee {
    /// The tenant.
    pub tenant: Tenant,
    /// The user.
    pub user: UserId,
    /// The user's roles.
    pub roles: Vec<UserRole>,
}

impl Assignee {
    /// The caller as one to whom interrupts are assigned.
    pub fn of(identity: &Identity) -> Self {
        Self {
            tenant: identity.tenant.clone(),
            user: identity.user.clone(),
            roles: identity.roles.clone(),
        }
    }
}

/// The interrupts that a caller may find.
#[derive(Debug, Clone, PartialEq)]
pub struct InterruptScope {
    /// The interrupts of the threads in this scope.
    pub threads: AccessScope,
    /// The caller whose assigned interrupts are included; none if the threads contain them.
    pub assigned: Option<Assignee>,
    /// The threads of which none is found, assigned or not.
    pub forbids: RowCondition,
}

/// Returns how far an action of this identity reaches.
pub fn reach(identity: &Identity, action: Action) -> Reach {
    if identity.is_unrestricted() {
        return Reach::Server;
    }
    if !is_in_scopes(identity, action) {
        return Reach::Nothing;
    }
    let reaches = identity.roles.iter().map(|role| reach_of_role(*role, identity, action));
    reaches.max().unwrap_or(Reach::Nothing)
}

/// Returns whether the scopes of the caller's credential contain the action.
fn is_in_scopes(identity: &Identity, action: Action) -> bool {
    let covers = |scopes: &Vec<String>| scopes.iter().any(|scope| action.is_covered_by(scope));
    identity.scopes.as_ref().is_none_or(covers)
}

/// Returns what the policies permit to this caller. They do not widen the scopes of a credential, and the metrics, which
/// count for all tenants, stay with those who run the server.
pub fn permits<'a>(identity: &Identity, action: Action, ruling: &'a Ruling) -> &'a RowCondition {
    let is_of_all = action == Action::MetricsRead && identity.tenant != Tenant::default();
    if is_in_scopes(identity, action) && !is_of_all {
        &ruling.permits
    } else {
        &RowCondition::NEVER
    }
}

#[expect(clippy::match_same_arms, reason = "one rule a line; their order counts")]
fn reach_of_role(role: UserRole, identity: &Identity, action: Action) -> Reach {
    // The metrics count for all tenants, so they are for those who run the server.
    if action == Action::MetricsRead {
        let runs_server = matches!(role, UserRole::Admin | UserRole::Operator) && identity.tenant == Tenant::default();
        return if runs_server { Reach::Tenant } else { Reach::Nothing };
    }
    match (role, action.resource()) {
        (_, "server" | "tickets") | (UserRole::Admin, _) => Reach::Tenant,
        (_, "keys" | "audit" | "users") => Reach::Nothing,
        (UserRole::Approver, "interrupts") => Reach::Assigned,
        (UserRole::Approver, _) => Reach::Nothing,
        (UserRole::Developer, "agents" | "assistants") => Reach::Tenant,
        (_, "agents") if !action.is_read() => Reach::Nothing,
        (_, "agents") | (UserRole::Operator, _) => Reach::Tenant,
        (UserRole::Developer | UserRole::User, _) => Reach::Own,
    }
}

/// Returns whether the identity may do this to a resource: what the policies forbid, nobody may, and what they permit of the
/// tenant, the caller may beyond the roles.
pub fn may_access(
    identity: &Identity,
    action: Action,
    facts: &ResourceFacts,
    sharing: &SharingRule,
    ruling: &Ruling,
) -> bool {
    if identity.is_unrestricted() {
        return true;
    }
    if facts.is_forbidden_by(&ruling.forbids) {
        return false;
    }
    let permitted = permits(identity, action, ruling);
    let is_permitted = facts.ownership.tenant == identity.tenant && facts.is_permitted_by(permitted);
    is_permitted || may_by_roles(identity, action, facts, sharing)
}

/// Returns whether the roles of the identity allow this.
fn may_by_roles(identity: &Identity, action: Action, facts: &ResourceFacts, sharing: &SharingRule) -> bool {
    let reach = reach(identity, action);
    let ownership = &facts.ownership;
    if ownership.is_of_server() {
        // Resources of the server are changed by its operators: the admins of the default tenant.
        let runs_server = identity.tenant == Tenant::default() && identity.has(UserRole::Admin);
        return reach > Reach::Assigned && (action.is_read() || runs_server);
    }
    if ownership.tenant != identity.tenant {
        return false;
    }
    match reach {
        Reach::Nothing => false,
        Reach::Assigned => facts.is_assigned,
        Reach::Own => ownership.owner == identity.user || facts.is_assigned || sharing.shares(action, &facts.metadata),
        Reach::Tenant | Reach::Server => true,
    }
}

/// Returns whether the identity may give runs a priority above 0.
pub fn may_prioritise(identity: &Identity) -> bool {
    let roles = [UserRole::Developer, UserRole::Operator, UserRole::Admin];
    identity.is_unrestricted() || roles.into_iter().any(|role| identity.has(role))
}

/// Returns the filter of a search: the resources for which [`may_access`] is true.
pub fn scope_of(identity: &Identity, action: Action, sharing: &SharingRule, ruling: &Ruling) -> AccessScope {
    if identity.is_unrestricted() {
        return AccessScope::Server;
    }
    let base = scope_by_roles(identity, action, sharing);
    let permits = permits(identity, action, ruling);
    match (permits, &ruling.forbids) {
        (_, RowCondition::Is(true)) => AccessScope::Nothing,
        (RowCondition::Is(false), RowCondition::Is(false)) => base,
        (RowCondition::Is(false), _) if base == AccessScope::Nothing => base,
        (_, _) => AccessScope::Ruled {
            tenant: identity.tenant.clone(),
            base: Box::new(base),
            ruling: Ruling {
                permits: permits.clone(),
                forbids: ruling.forbids.clone(),
            },
        },
    }
}

fn scope_by_roles(identity: &Identity, action: Action, sharing: &SharingRule) -> AccessScope {
    match reach(identity, action) {
        Reach::Nothing | Reach::Assigned => AccessScope::Nothing,
        Reach::Own => AccessScope::Own {
            ownership: Ownership::of(identity),
            shared: sharing.filters(action).cloned().collect(),
        },
        Reach::Tenant => AccessScope::Tenant(identity.tenant.clone()),
        Reach::Server => AccessScope::Server,
    }
}

/// Returns the filter of a search for interrupts.
pub fn interrupt_scope_of(
    identity: &Identity,
    action: Action,
    sharing: &SharingRule,
    ruling: &Ruling,
) -> InterruptScope {
    let may_be_assigned = matches!(reach(identity, action), Reach::Assigned | Reach::Own);
    InterruptScope {
        threads: scope_of(identity, action, sharing, ruling),
        assigned: may_be_assigned.then(|| Assignee::of(identity)),
        forbids: ruling.forbids.clone(),
    }
}

/// Returns whether a user with these roles, who may answer the interrupts of a thread or some of them, may answer one
/// that is assigned like this. Only its approvers and the admins of the tenant may.
pub fn is_entitled(user: &UserId, roles: &[UserRole], approvers: &Approvers) -> bool {
    approvers.is_empty() || roles.contains(&UserRole::Admin) || approvers.contains(user, roles)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::json;

    use super::*;
    use crate::domain::identity::Credential;

    fn caller(tenant: &str, user: &str, roles: &[UserRole]) -> Identity {
        Identity {
            tenant: Tenant::stored(tenant.to_owned()),
            user: UserId::stored(user.to_owned()),
            roles: roles.to_vec(),
            credential: Credential::ApiKey("k".to_owned()),
            ..Identity::unauthenticated()
        }
    }

    fn of(identity: &Identity) -> ResourceFacts {
        ResourceFacts {
            ownership: Ownership::of(identity),
            ..ResourceFacts::default()
        }
    }

    fn may(identity: &Identity, action: Action, facts: &ResourceFacts) -> bool {
        may_access(identity, action, facts, &SharingRule::default(), &Ruling::NONE)
    }

    #[test]
    fn no_role_reaches_into_another_tenant() {
        let theirs = of(&caller("other", "ann", &[UserRole::User]));
        for role in UserRole::ALL {
            let ann = caller("acme", "ann", &[role]);
            for action in Action::ALL {
                assert!(!may(&ann, *action, &theirs), "{role:?} {action}");
            }
        }
    }

    #[test]
    fn a_user_reaches_only_what_is_their_own() {
        let ann = caller("acme", "ann", &[UserRole::User]);
        let bob = caller("acme", "bob", &[UserRole::User]);
        assert!(may(&ann, Action::ThreadsDelete, &of(&ann)));
        assert!(!may(&ann, Action::ThreadsRead, &of(&bob)));
        assert!(!may(&ann, Action::AgentsPut, &of(&ann)));
    }

    #[test]
    fn an_operator_reaches_the_tenant_but_neither_its_agents_nor_its_keys() {
        let operator = caller("acme", "op", &[UserRole::Operator]);
        let theirs = of(&caller("acme", "bob", &[UserRole::User]));
        assert!(may(&operator, Action::ThreadsDelete, &theirs));
        for action in [
            Action::AgentsPut,
            Action::KeysRead,
            Action::KeysWrite,
            Action::AuditRead,
            Action::UsersExport,
            Action::UsersDelete,
        ] {
            assert!(!may(&operator, action, &theirs), "{action}");
        }
    }

    #[test]
    fn a_developer_reaches_the_agents_and_assistants_of_the_tenant_only() {
        let developer = caller("acme", "dev", &[UserRole::Developer]);
        let theirs = of(&caller("acme", "bob", &[UserRole::User]));
        for action in [
            Action::AgentsPut,
            Action::AgentsDelete,
            Action::AssistantsRead,
            Action::AssistantsUpdate,
            Action::AssistantsDelete,
        ] {
            assert!(may(&developer, action, &theirs), "{action}");
        }
        for action in [
            Action::ThreadsRead,
            Action::ThreadsUpdate,
            Action::InterruptsResolve,
            Action::CronsDelete,
            Action::DeliveriesRead,
            Action::StoreGet,
            Action::KeysRead,
            Action::KeysWrite,
            Action::AuditRead,
            Action::UsersExport,
        ] {
            assert!(!may(&developer, action, &theirs), "{action}");
        }
        assert!(may(&developer, Action::ThreadsRead, &of(&developer)));
    }

    #[test]
    fn an_approver_reaches_assigned_interrupts_only() {
        let approver = caller("acme", "eve", &[UserRole::Approver]);
        let theirs = of(&caller("acme", "bob", &[UserRole::User]));
        let assigned = ResourceFacts {
            is_assigned: true,
            ..theirs.clone()
        };
        assert!(may(&approver, Action::InterruptsResolve, &assigned));
        assert!(!may(&approver, Action::InterruptsResolve, &theirs));
        assert!(!may(&approver, Action::ThreadsRead, &of(&approver)));
    }

    #[test]
    fn scopes_limit_what_the_roles_allow() {
        let mut ann = caller("acme", "ann", &[UserRole::Admin]);
        ann.scopes = Some(vec!["threads:read".to_owned(), "store:*".to_owned()]);
        let allowed: BTreeSet<_> = Action::ALL
            .iter()
            .filter(|action| may(&ann, **action, &of(&ann)))
            .collect();
        let store = Action::ALL.iter().filter(|action| action.resource() == "store");
        assert_eq!(allowed, store.chain([&Action::ThreadsRead]).collect());
    }

    fn ruling(permits: RowCondition, forbids: RowCondition) -> Ruling {
        Ruling { permits, forbids }
    }

    #[test]
    fn what_a_policy_forbids_no_role_allows() {
        let root = caller("acme", "root", &[UserRole::Admin]);
        let of_bob = of(&caller("acme", "bob", &[UserRole::User]));
        let forbidden = ruling(
            RowCondition::ALWAYS,
            RowCondition::OwnedBy(of_bob.ownership.owner.clone()),
        );
        let none = SharingRule::default();
        assert!(!may_access(&root, Action::ThreadsRead, &of_bob, &none, &forbidden));
        assert!(may_access(&root, Action::ThreadsRead, &of(&root), &none, &forbidden));
        let everything = ruling(RowCondition::NEVER, RowCondition::ALWAYS);
        assert_eq!(
            scope_of(&root, Action::ThreadsSearch, &none, &everything),
            AccessScope::Nothing
        );
        assert_eq!(
            scope_of(&Identity::unauthenticated(), Action::ThreadsSearch, &none, &everything),
            AccessScope::Server
        );
    }

    #[test]
    fn what_is_forbidden_on_a_thread_is_forbidden_on_those_of_its_background_tasks() {
        let ann = caller("acme", "ann", &[UserRole::User]);
        let secret = Map::from_iter([("level".to_owned(), json!("secret"))]);
        let filter = MetadataFilter::new("metadata", secret.clone()).expect("a filter");
        let forbidden = ruling(RowCondition::NEVER, RowCondition::Metadata(filter));
        let none = SharingRule::default();
        let may = |facts: &ResourceFacts| may_access(&ann, Action::ThreadsRead, facts, &none, &forbidden);
        assert!(may(&of(&ann)));
        assert!(!may(&ResourceFacts {
            above: vec![Map::new(), secret],
            ..of(&ann)
        }));
    }

    #[test]
    fn metadata_that_cannot_be_read_meet_what_policies_forbid() {
        let ann = caller("acme", "ann", &[UserRole::User]);
        let unreadable = ResourceFacts {
            is_unreadable: true,
            ..of(&ann)
        };
        let secret = Map::from_iter([("level".to_owned(), json!("secret"))]);
        let filter = RowCondition::Metadata(MetadataFilter::new("metadata", secret).expect("a filter"));
        let none = SharingRule::default();
        let may = |forbids: RowCondition| {
            let ruling = ruling(RowCondition::NEVER, forbids);
            may_access(&ann, Action::ThreadsRead, &unreadable, &none, &ruling)
        };
        assert!(!may(filter.clone()));
        assert!(!may(filter.clone().negated()));
        assert!(!unreadable.is_permitted_by(&filter.negated()));
        assert!(may(RowCondition::OwnedBy(UserId::stored("bob".to_owned()))));
    }

    #[test]
    fn what_a_policy_permits_stays_within_the_tenant_and_the_scopes_of_the_key() {
        let mut ann = caller("acme", "ann", &[]);
        let of_bob = of(&caller("acme", "bob", &[UserRole::User]));
        let elsewhere = of(&caller("other", "bob", &[UserRole::User]));
        let permitted = ruling(RowCondition::ALWAYS, RowCondition::NEVER);
        let none = SharingRule::default();
        let may =
            |ann: &Identity, action: Action, facts: &ResourceFacts| may_access(ann, action, facts, &none, &permitted);
        assert!(may(&ann, Action::ThreadsRead, &of_bob));
        assert!(!may(&ann, Action::ThreadsRead, &elsewhere));
        assert!(!may(&ann, Action::MetricsRead, &of(&ann)));
        let of_server = ResourceFacts {
            ownership: Ownership::of_server(),
            ..ResourceFacts::default()
        };
        assert!(!may(&ann, Action::AssistantsUpdate, &of_server));
        ann.scopes = Some(vec!["threads:read".to_owned()]);
        assert!(may(&ann, Action::ThreadsRead, &of_bob));
        assert!(!may(&ann, Action::ThreadsDelete, &of_bob));
        assert_eq!(
            scope_of(&ann, Action::ThreadsDelete, &none, &permitted),
            AccessScope::Nothing
        );
    }

    #[test]
    fn shared_metadata_let_the_tenant_read_and_change() {
        let filter = |value: Value| {
            let Value::Object(wanted) = json!({"visibility": value}) else {
                unreachable!("an object")
            };
            MetadataFilter::new("metadata", wanted).ok()
        };
        let sharing = SharingRule {
            read: filter(json!("team")),
            write: filter(json!("open")),
        };
        let ann = caller("acme", "ann", &[UserRole::User]);
        let shared = |value: &str| ResourceFacts {
            metadata: Map::from_iter([("visibility".to_owned(), json!(value))]),
            ..of(&caller("acme", "bob", &[UserRole::User]))
        };
        let may = |action, value| may_access(&ann, action, &shared(value), &sharing, &Ruling::NONE);
        assert!(may(Action::ThreadsRead, "team"));
        assert!(!may(Action::ThreadsUpdate, "team"));
        assert!(may(Action::ThreadsUpdate, "open"));
        assert!(!may(Action::ThreadsDelete, "open"));
        assert!(!may(Action::ThreadsRead, "private"));
    }

    #[test]
    fn what_belongs_to_the_server_is_read_by_all_and_changed_by_its_admins() {
        let facts = ResourceFacts {
            ownership: Ownership::of_server(),
            ..ResourceFacts::default()
        };
        let user = caller("acme", "ann", &[UserRole::User]);
        assert!(may(&user, Action::AssistantsRead, &facts));
        assert!(!may(
            &caller("acme", "x", &[UserRole::Admin]),
            Action::AssistantsUpdate,
            &facts
        ));
        assert!(may(
            &caller(Tenant::DEFAULT, "x", &[UserRole::Admin]),
            Action::AssistantsUpdate,
            &facts
        ));
    }

    #[test]
    fn without_authentication_everything_is_allowed() {
        let anyone = Identity::unauthenticated();
        let theirs = of(&caller("other", "ann", &[UserRole::User]));
        assert!(Action::ALL.iter().all(|action| may(&anyone, *action, &theirs)));
    }
}
