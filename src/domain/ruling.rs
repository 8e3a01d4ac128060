//! Rulings of access policies: which resources a policy permits or forbids to a caller. Pure; the policies themselves are
//! behind [`AccessPolicies`].
//!
//! A ruling is a condition on the rows of resources, so that the same condition decides about one resource and filters
//! searches in SQL.

use std::fmt;

use serde_json::{Map, Value};

use super::action::Action;
use super::filter::MetadataFilter;
use super::identity::{Identity, Ownership, UserId};
use super::tenant_agents::TenantAgents;

/// A condition on a resource of the caller's tenant, or of the server.
#[derive(Debug, Clone, PartialEq)]
pub enum RowCondition {
    /// True for all of these, or for none.
    Is(bool),
    /// The resource belongs to this user.
    OwnedBy(UserId),
    /// The metadata of the resource match.
    Metadata(MetadataFilter),
    /// The resource is an assistant of an agent that does not exist for a tenant.
    OtherAgent(TenantAgents),
    /// The condition is not true.
    Not(Box<Self>),
    /// All of the conditions are true.
    All(Vec<Self>),
    /// One of the conditions is true.
    Any(Vec<Self>),
}

impl RowCondition {
    /// The condition that no resource meets.
    pub const NEVER: Self = Self::Is(false);
    /// The condition that every resource meets.
    pub const ALWAYS: Self = Self::Is(true);

    /// Returns the condition of the assistants that do not exist for a tenant, which has these agents.
    pub fn outside(agents: TenantAgents) -> Self {
        match agents.are_all() {
            true => Self::NEVER,
            false => Self::OtherAgent(agents),
        }
    }

    /// Returns the negation.
    #[must_use]
    pub fn negated(self) -> Self {
        match self {
            Self::Is(truth) => Self::Is(!truth),
            Self::Not(inner) => *inner,
            Self::OwnedBy(_) | Self::Metadata(_) | Self::OtherAgent(_) | Self::All(_) | Self::Any(_) => {
                Self::Not(Box::new(self))
            }
        }
    }

    /// Returns the condition that all of these are true.
    pub fn all(conditions: impl IntoIterator<Item = Self>) -> Self {
        let mut rest = vec![];
        for condition in conditions {
            if let Self::Is(is_met) = condition {
                if !is_met {
                    return Self::NEVER;
                }
            } else {
                rest.push(condition);
            }
        }
        match rest.pop() {
            None => Self::ALWAYS,
            Some(only) if rest.is_empty() => only,
            Some(last) => {
                rest.push(last);
                Self::All(rest)
            }
        }
    }

    /// Returns the condition that one of these is true. What two of them say alike, such as which agents do not exist for the
    /// tenant, is in it once.
    pub fn any(conditions: impl IntoIterator<Item = Self>) -> Self {
        let mut rest = vec![];
        for condition in conditions {
            if let Self::Is(is_met) = condition {
                if is_met {
                    return Self::ALWAYS;
                }
            } else if !rest.contains(&condition) {
                rest.push(condition);
            }
        }
        match rest.pop() {
            None => Self::NEVER,
            Some(only) if rest.is_empty() => only,
            Some(last) => {
                rest.push(last);
                Self::Any(rest)
            }
        }
    }

    /// Returns whether the condition asks for metadata.
    pub fn asks_metadata(&self) -> bool {
        match self {
            Self::Is(_) | Self::OwnedBy(_) | Self::OtherAgent(_) => false,
            Self::Metadata(_) => true,
            Self::Not(inner) => inner.asks_metadata(),
            Self::All(conditions) | Self::Any(conditions) => conditions.iter().any(Self::asks_metadata),
        }
    }

    /// Returns whether a resource of this owner, with these metadata, meets the condition. `graph_id` names the agent of an
    /// assistant.
    pub fn is_met(&self, ownership: &Ownership, metadata: &Map<String, Value>, graph_id: Option<&str>) -> bool {
        match self {
            Self::Is(truth) => *truth,
            Self::OwnedBy(user) => ownership.owner == *user,
            Self::Metadata(filter) => filter.matches(metadata),
            Self::OtherAgent(agents) => graph_id.is_some_and(|graph_id| !agents.contains(graph_id)),
            Self::Not(inner) => !inner.is_met(ownership, metadata, graph_id),
            Self::All(all) => all.iter().all(|one| one.is_met(ownership, metadata, graph_id)),
            Self::Any(any) => any.iter().any(|one| one.is_met(ownership, metadata, graph_id)),
        }
    }
}

/// The conditions that access policies set for an action of a caller.
#[derive(Debug, Clone, PartialEq)]
pub struct Ruling {
    /// The resources of the caller's tenant that they permit, beyond what the roles allow.
    pub permits: RowCondition,
    /// The resources that they forbid, whatever the roles and other policies allow.
    pub forbids: RowCondition,
}

impl Ruling {
    /// The ruling when no policy applies.
    pub const NONE: Self = Self {
        permits: RowCondition::NEVER,
        forbids: RowCondition::NEVER,
    };

    /// Returns the ruling about resources that a search finds and shows, given the rulings about searching and about
    /// reading: what is forbidden in one way is not found, and what is permitted in one way only is not, either.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            permits: RowCondition::all([self.permits, other.permits]),
            forbids: RowCondition::any([self.forbids, other.forbids]),
        }
    }

    /// Returns the ruling about an action on resources that are there, given the ruling about reading them: what may not
    /// be read may not be changed either.
    #[must_use]
    pub fn on_readable(self, reading: Self) -> Self {
        Self {
            permits: self.permits,
            forbids: RowCondition::any([self.forbids, reading.forbids]),
        }
    }
}

/// The facts about a resource on which a decision depends.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ResourceFacts {
    /// The owner and the tenant.
    pub ownership: Ownership,
    /// Its metadata, for sharing. Empty for kinds that cannot be shared.
    pub metadata: Map<String, Value>,
    /// True if the resource is an interrupt that is assigned to the caller.
    pub is_assigned: bool,
    /// The metadata of the threads above the thread of a background task, if policies may ask for them.
    pub above: Vec<Map<String, Value>>,
    /// True if some of the metadata cannot be read, or are gone.
    pub is_unreadable: bool,
    /// The `graph_id` of the agent, if the resource is an assistant.
    pub graph_id: Option<String>,
}

impl ResourceFacts {
    /// Returns whether the resource meets the condition of what policies forbid. What they forbid on a thread, they forbid
    /// on the threads of its background tasks, too. Metadata that cannot be read may be any.
    pub fn is_forbidden_by(&self, forbids: &RowCondition) -> bool {
        let graph_id = self.graph_id.as_deref();
        let is_met = |metadata: &Map<String, Value>| forbids.is_met(&self.ownership, metadata, graph_id);
        let may_be_met = self.is_unreadable && forbids.asks_metadata();
        may_be_met || is_met(&self.metadata) || self.above.iter().any(is_met)
    }

    /// Returns whether the resource certainly meets the condition of what policies permit.
    pub fn is_permitted_by(&self, permits: &RowCondition) -> bool {
        let is_known = !self.is_unreadable || !permits.asks_metadata();
        is_known && permits.is_met(&self.ownership, &self.metadata, self.graph_id.as_deref())
    }
}

/// The access policies of a server. They do no I/O.
pub trait AccessPolicies: fmt::Debug + Send + Sync {
    /// Returns what the policies say about an action of this caller. A policy that cannot be evaluated forbids everything
    /// if it forbids, and permits nothing if it permits.
    fn ruling(&self, identity: &Identity, action: Action) -> Ruling;

    /// Returns the ids of policies that forbid an action on a resource, for the audit.
    fn forbidding(&self, identity: &Identity, action: Action, facts: &ResourceFacts) -> Vec<String>;
}

/// No access policies: the roles decide alone.
#[derive(Debug)]
pub struct NoPolicies;

impl AccessPolicies for NoPolicies {
    fn ruling(&self, _: &Identity, _: Action) -> Ruling {
        Ruling::NONE
    }

    fn forbidding(&self, _: &Identity, _: Action, _: &ResourceFacts) -> Vec<String> {
        vec![]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::identity::Tenant;

    fn owned_by(user: &str) -> RowCondition {
        RowCondition::OwnedBy(UserId::stored(user.to_owned()))
    }

    fn of(user: &str) -> Ownership {
        Ownership {
            tenant: Tenant::default(),
            owner: UserId::stored(user.to_owned()),
        }
    }

    #[test]
    fn constants_vanish_from_conditions() {
        let ann = owned_by("ann");
        assert_eq!(RowCondition::all([]), RowCondition::ALWAYS);
        assert_eq!(RowCondition::any([]), RowCondition::NEVER);
        assert_eq!(RowCondition::all([RowCondition::ALWAYS, ann.clone()]), ann);
        assert_eq!(
            RowCondition::any([ann.clone(), RowCondition::ALWAYS]),
            RowCondition::ALWAYS
        );
        assert_eq!(
            RowCondition::all([ann.clone(), RowCondition::NEVER]),
            RowCondition::NEVER
        );
        assert_eq!(ann.clone().negated().negated(), ann);
    }

    #[test]
    fn what_two_conditions_say_alike_is_asked_once() {
        let ann = owned_by("ann");
        assert_eq!(RowCondition::any([ann.clone(), ann.clone()]), ann);
        let both = RowCondition::any([ann.clone(), owned_by("bob"), ann]);
        assert!(matches!(&both, RowCondition::Any(all) if all.len() == 2), "{both:?}");
    }

    #[test]
    fn a_condition_looks_at_the_owner_and_the_metadata() {
        let Value::Object(wanted) = json!({"secret": "yes"}) else {
            unreachable!("an object")
        };
        let secret = RowCondition::Metadata(MetadataFilter::new("metadata", wanted.clone()).expect("a filter"));
        let condition = RowCondition::all([owned_by("ann").negated(), secret]);
        assert!(condition.is_met(&of("bob"), &wanted, None));
        assert!(!condition.is_met(&of("ann"), &wanted, None));
        assert!(!condition.is_met(&of("bob"), &Map::new(), None));
    }

    #[test]
    fn what_may_not_be_read_may_not_be_changed() {
        let change = Ruling {
            permits: owned_by("ann"),
            forbids: owned_by("mia"),
        };
        let read = Ruling {
            permits: RowCondition::NEVER,
            forbids: owned_by("bob"),
        };
        let ruling = change.on_readable(read);
        assert_eq!(ruling.permits, owned_by("ann"));
        assert!(ruling.forbids.is_met(&of("bob"), &Map::new(), None));
        assert!(ruling.forbids.is_met(&of("mia"), &Map::new(), None));
        assert!(!ruling.forbids.is_met(&of("ann"), &Map::new(), None));
    }

    #[test]
    fn a_search_finds_what_may_be_searched_for_and_read() {
        let search = Ruling {
            permits: RowCondition::ALWAYS,
            forbids: RowCondition::NEVER,
        };
        let read = Ruling {
            permits: owned_by("ann"),
            forbids: owned_by("bob"),
        };
        assert_eq!(search.and(read.clone()), read);
    }
}
