//! Accounts: on whose behalf runs work, for quotas and for turns in the queue.

use sha2::{Digest, Sha256};

use super::access::Ownership;
use super::identity::{Identity, Tenant, UserId};

/// The number of bytes of a digest that a name keeps.
const DIGEST_BYTES: usize = 16;

/// The part of an account in the place of a user or an API key that there is not.
const NOBODY: &str = "-";

/// The user, and the API key if there is one, on whose behalf a run works.
///
/// It is stored as `TENANT/USER/KEY/`, where users and keys are digests, so that every account has a bounded text
/// without spaces. The accounts of one user, and those of one tenant, begin with the same text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Account(String);

/// The kind of account whose use of the server a quota limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaLevel {
    /// One API key.
    Key,
    /// One user of a tenant, with all keys and tokens.
    User,
    /// One tenant, with all its users.
    Tenant,
}

impl QuotaLevel {
    /// All levels, narrowest first.
    pub const ALL: [Self; 3] = [Self::Key, Self::User, Self::Tenant];

    /// Returns the name of the level in settings and errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Key => "per_key",
            Self::User => "per_user",
            Self::Tenant => "per_tenant",
        }
    }
}

impl Account {
    /// Returns the account of a caller.
    pub fn of(identity: &Identity) -> Self {
        let key = identity.credential.api_key().unwrap_or_default();
        Self::of_names(&identity.tenant, &identity.user, key)
    }

    /// Returns the account of an owner, for whom the server works without a request.
    pub fn of_owner(owner: &Ownership) -> Self {
        Self::of_names(&owner.tenant, &owner.owner, "")
    }

    /// Returns the account of a key of a user; the key is empty if there is none.
    fn of_names(tenant: &Tenant, user: &UserId, key: &str) -> Self {
        let tenant = tenant.as_str();
        let digits = 2 * DIGEST_BYTES;
        let mut text = String::with_capacity(tenant.len() + 2 * digits + 3);
        text.push_str(tenant);
        for name in [user.as_str(), key] {
            text.push('/');
            push_digest(&mut text, name);
        }
        text.push('/');
        Self(text)
    }

    /// Reads an account from the database. It is not validated again.
    pub fn stored(text: String) -> Self {
        Self(text)
    }

    /// Returns the account as it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the name of the tenant.
    pub fn tenant(&self) -> &str {
        self.part(0)
    }

    /// Returns the text with which all accounts of the tenant, the user or the key begin; `None` if there is no user or
    /// no key.
    pub fn subject(&self, level: QuotaLevel) -> Option<&str> {
        let parts = match level {
            QuotaLevel::Tenant => 1,
            QuotaLevel::User => 2,
            QuotaLevel::Key => 3,
        };
        let has_part = level == QuotaLevel::Tenant || self.part(parts - 1) != NOBODY;
        let end = self.0.match_indices('/').nth(parts - 1).map(|(at, _)| at + 1);
        end.filter(|_| has_part).and_then(|end| self.0.get(..end))
    }

    fn part(&self, at: usize) -> &str {
        self.0.split('/').nth(at).unwrap_or_default()
    }
}

/// Returns the text before which all accounts that begin with `subject` are.
pub fn end_of_subject(subject: &str) -> String {
    // `0` follows `/`.
    format!("{}0", subject.strip_suffix('/').unwrap_or(subject))
}

/// Adds a text of bounded length for a name; [`NOBODY`] for the empty one.
fn push_digest(text: &mut String, name: &str) {
    if name.is_empty() {
        text.push_str(NOBODY);
    } else {
        text.push_str(&hex::encode(&Sha256::digest(name.as_bytes())[..DIGEST_BYTES]));
    }
}

/// The highest priority of a run.
pub const MAX_PRIORITY: u8 = 9;

/// The place of a run in the queue: its account and its priority. Runs with the same place take their turns by age.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RunQueue {
    /// The account.
    pub account: Account,
    /// The priority among the runs of the tenant, from 0 to [`MAX_PRIORITY`].
    pub priority: u8,
}

impl RunQueue {
    /// Creates the place of a run; a higher priority than [`MAX_PRIORITY`] counts as that.
    pub fn new(account: Account, priority: u8) -> Self {
        Self {
            account,
            priority: priority.min(MAX_PRIORITY),
        }
    }

    /// Reads a place from the database: the account, with the priority behind it. It is not validated again.
    pub fn stored(mut text: String) -> Self {
        let priority = text.pop().and_then(|digit| digit.to_digit(10)).unwrap_or(0);
        Self::new(Account::stored(text), u8::try_from(priority).unwrap_or(0))
    }

    /// Returns the text under which the database stores the place.
    pub fn text(&self) -> String {
        format!("{}{}", self.account.as_str(), self.priority)
    }
}

impl Default for RunQueue {
    /// The place of a run of the tenant `default`, of nobody in particular.
    fn default() -> Self {
        Self::new(Account::of_owner(&Ownership::default()), 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::identity::Credential;

    fn account(tenant: &str, user: &str, key: Option<&str>) -> Account {
        Account::of(&Identity {
            tenant: Tenant::stored(tenant.to_owned()),
            user: UserId::stored(user.to_owned()),
            credential: key.map_or(Credential::Hook, |key| Credential::ApiKey(key.to_owned())),
            ..Identity::unauthenticated()
        })
    }

    #[test]
    fn the_accounts_of_a_user_and_of_a_tenant_begin_with_the_same_text() {
        let laptop = account("acme", "ann", Some("1"));
        let phone = account("acme", "ann", Some("2"));
        let bob = account("acme", "bob", Some("1"));
        assert_eq!(laptop.tenant(), "acme");
        assert_eq!(laptop.subject(QuotaLevel::Tenant), Some("acme/"));
        assert_eq!(laptop.subject(QuotaLevel::User), phone.subject(QuotaLevel::User));
        assert_ne!(laptop.subject(QuotaLevel::Key), phone.subject(QuotaLevel::Key));
        assert_ne!(laptop.subject(QuotaLevel::User), bob.subject(QuotaLevel::User));
        let all = |text: &str| text >= "acme/" && text < end_of_subject("acme/").as_str();
        assert!(all(laptop.as_str()) && all(bob.as_str()));
        assert!(!all(account("acme-2", "ann", None).as_str()));
    }

    #[test]
    fn without_a_key_or_a_user_there_is_nothing_to_limit() {
        let by_token = account("acme", "ann", None);
        assert_eq!(by_token.subject(QuotaLevel::Key), None);
        assert!(by_token.subject(QuotaLevel::User).is_some());
        let nobody = Account::of(&Identity::unauthenticated());
        assert_eq!(nobody.subject(QuotaLevel::User), None);
        assert_eq!(nobody.subject(QuotaLevel::Tenant), Some("default/"));
        assert_eq!(nobody, Account::of_owner(&Ownership::default()));
    }

    #[test]
    fn an_account_has_the_text_under_which_databases_have_it() {
        let text = concat!(
            "acme/49915e0d7d4b402e3017d010bc1c0e83/",
            "6b86b273ff34fce19d6b804eff5a3f57/"
        );
        assert_eq!(account("acme", "ann", Some("1")).as_str(), text);
    }

    #[test]
    fn a_place_is_stored_and_read_again() {
        let place = RunQueue::new(account("acme", "ann", Some("1")), 7);
        assert_eq!(RunQueue::stored(place.text()), place);
        assert_eq!(RunQueue::default().text(), "default/-/-/0");
        assert_eq!(RunQueue::stored("default/-/-/0".to_owned()), RunQueue::default());
    }
}
