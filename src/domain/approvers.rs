//! Approvers: the users and roles to which an interrupt is assigned.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::identity::{UserId, UserRole};

/// The maximum number of users and roles to which one interrupt is assigned.
pub const MAX_APPROVERS: usize = 64;

/// The users and roles to which an interrupt is assigned. With none it is assigned to nobody, and whoever may change
/// its thread may answer it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Approvers {
    /// Users of the tenant of the thread.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<UserId>,
    /// Roles: every user of the tenant with one of them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub roles: Vec<UserRole>,
}

impl Approvers {
    /// Returns whether the interrupt is assigned to nobody.
    pub fn is_empty(&self) -> bool {
        self.users.is_empty() && self.roles.is_empty()
    }

    /// Returns whether a user with these roles is one of them.
    pub fn contains(&self, user: &UserId, roles: &[UserRole]) -> bool {
        self.users.contains(user) || self.roles.iter().any(|role| roles.contains(role))
    }

    /// Returns the reason why they cannot be assigned; none if they can.
    pub fn problem(&self) -> Option<String> {
        let count = self.users.len() + self.roles.len();
        (count > MAX_APPROVERS).then(|| format!("names {count} users and roles; at most {MAX_APPROVERS} are allowed"))
    }
}

impl fmt::Display for Approvers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let users = self.users.iter().map(|user| format!("the user `{user}`"));
        let roles = self.roles.iter().map(|role| format!("the role `{}`", role.word()));
        f.write_str(&users.chain(roles).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn user(name: &str) -> UserId {
        UserId::stored(name.to_owned())
    }

    #[test]
    fn approvers_are_users_and_everybody_with_a_role() {
        let approvers: Approvers =
            serde_json::from_value(json!({"users": ["eve"], "roles": ["approver"]})).expect("approvers");
        assert!(approvers.contains(&user("eve"), &[]));
        assert!(approvers.contains(&user("bob"), &[UserRole::User, UserRole::Approver]));
        assert!(!approvers.contains(&user("bob"), &[UserRole::Operator]));
        assert_eq!(approvers.to_string(), "the user `eve`, the role `approver`");
    }

    #[test]
    fn nobody_is_among_no_approvers() {
        let nobody = Approvers::default();
        assert!(nobody.is_empty());
        assert!(!nobody.contains(&UserId::default(), &UserRole::ALL));
    }

    #[test]
    fn approvers_have_a_limit() {
        let users = |count: usize| Approvers {
            users: (0..count).map(|number| user(&number.to_string())).collect(),
            roles: vec![],
        };
        assert_eq!(users(MAX_APPROVERS).problem(), None);
        assert!(users(MAX_APPROVERS + 1).problem().is_some());
    }
}
