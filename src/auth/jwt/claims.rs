//! The meaning of a token's claims.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::domain::identity::{Tenant, UserRole};

/// The longest name of a user that is taken from a token, in characters.
const MAX_DISPLAY_CHARS: usize = 255;

/// The rules by which claims become an identity. A claim is named by its name, or by a path with dots.
#[derive(Debug, Clone)]
pub struct ClaimRules {
    /// The claim with the user.
    pub user: String,
    /// The claim with the tenant.
    pub tenant_claim: Option<String>,
    /// The tenant, if no claim has it.
    pub tenant: Tenant,
    /// The claim with the roles: a text with words, or a list.
    pub roles_claim: Option<String>,
    /// The words of the claim, and the roles that they mean. If empty, the words are names of roles.
    pub role_words: BTreeMap<String, UserRole>,
    /// The roles of a token that gives none.
    pub default_roles: Vec<UserRole>,
    /// The claim with the name for people.
    pub display_name: String,
    /// The claims that agents and tools see.
    pub kept: Vec<String>,
}

impl ClaimRules {
    /// Returns a claim that is a text.
    pub(super) fn text<'c>(&self, claims: &'c Map<String, Value>, name: &str) -> Option<&'c str> {
        find(claims, name).and_then(Value::as_str)
    }

    /// Returns the roles that a token gives. Words that mean no role are left out: issuers have groups for other
    /// things.
    pub(super) fn roles(&self, claims: &Map<String, Value>) -> Vec<UserRole> {
        let claim = self.roles_claim.as_deref().and_then(|name| find(claims, name));
        let words: Vec<&str> = match claim {
            Some(Value::String(text)) => text.split_whitespace().collect(),
            Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
            Some(Value::Null | Value::Bool(_) | Value::Number(_) | Value::Object(_)) | None => vec![],
        };
        let role = |word: &str| match self.role_words.is_empty() {
            true => word.parse().ok(),
            false => self.role_words.get(word).copied(),
        };
        let mut roles: Vec<UserRole> = words.into_iter().filter_map(role).collect();
        if roles.is_empty() {
            roles.clone_from(&self.default_roles);
        }
        UserRole::distinct(roles)
    }

    /// Returns the name for people.
    pub(super) fn display_name(&self, claims: &Map<String, Value>) -> Option<String> {
        let name = self.text(claims, &self.display_name)?;
        let name: String = name
            .chars()
            .filter(|c| !c.is_control())
            .take(MAX_DISPLAY_CHARS)
            .collect();
        (!name.is_empty()).then_some(name)
    }

    /// Returns the claims that agents and tools see.
    pub(super) fn kept_claims(&self, claims: &Map<String, Value>) -> Map<String, Value> {
        let kept = self.kept.iter();
        kept.filter_map(|name| Some((name.clone(), find(claims, name)?.clone())))
            .collect()
    }
}

/// Returns the claim with this name, or at this path. A name may contain dots itself, as in
/// `https://example.org/roles`.
fn find<'c>(claims: &'c Map<String, Value>, name: &str) -> Option<&'c Value> {
    if let Some(value) = claims.get(name) {
        return Some(value);
    }
    let mut parts = name.split('.');
    let first = claims.get(parts.next()?)?;
    parts.try_fold(first, |value, part| value.get(part))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rules(roles_claim: &str, words: &[&str]) -> ClaimRules {
        ClaimRules {
            user: "sub".to_owned(),
            tenant_claim: None,
            tenant: Tenant::default(),
            roles_claim: Some(roles_claim.to_owned()),
            role_words: words.iter().map(|word| ((*word).to_owned(), UserRole::Admin)).collect(),
            default_roles: vec![UserRole::User],
            display_name: "name".to_owned(),
            kept: vec!["email".to_owned()],
        }
    }

    fn claims(value: Value) -> Map<String, Value> {
        match value {
            Value::Object(claims) => claims,
            other => unreachable!("{other} is no object"),
        }
    }

    #[test]
    fn roles_are_found_by_name_and_by_path() {
        let token = claims(json!({"realm": {"roles": ["developer"]}, "https://example.org/roles": "operator user"}));
        assert_eq!(rules("realm.roles", &[]).roles(&token), [UserRole::Developer]);
        assert_eq!(
            rules("https://example.org/roles", &[]).roles(&token),
            [UserRole::Operator, UserRole::User]
        );
    }

    #[test]
    fn with_a_map_only_its_words_give_roles() {
        let token = claims(json!({"groups": ["admin", "Chiefs", "developer"]}));
        assert_eq!(rules("groups", &["Chiefs"]).roles(&token), [UserRole::Admin]);
        assert_eq!(rules("groups", &["Others"]).roles(&token), [UserRole::User]);
    }

    #[test]
    fn a_token_without_roles_has_the_default_ones() {
        let token = claims(json!({"roles": {"admin": true}}));
        assert_eq!(rules("roles", &[]).roles(&token), [UserRole::User]);
        assert_eq!(rules("nosuch.path", &[]).roles(&token), [UserRole::User]);
    }

    #[test]
    fn only_the_named_claims_are_kept() {
        let token = claims(json!({"email": "a@example.org", "phone": "1"}));
        assert_eq!(
            Value::Object(rules("roles", &[]).kept_claims(&token)),
            json!({"email": "a@example.org"})
        );
    }
}
