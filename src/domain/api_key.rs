//! API keys: secrets with which programs prove an identity, and the rule which keys an identity may create. Stream
//! tickets are stored in the same way.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use super::Invalid;
use super::access::Action;
use super::identity::{Credential, Identity, Tenant, UserId, UserRole};
use super::time::Timestamp;

/// The first part of the text of every API key.
const PREFIX: &str = "adj";
/// The length of the id of a key, in hexadecimal digits.
const ID_DIGITS: usize = 16;
/// The length of the secret of a key, in hexadecimal digits: 256 bits.
const SECRET_DIGITS: usize = 64;
/// The longest name of a key, in characters.
const MAX_NAME_CHARS: usize = 128;
/// The most scopes of a key.
const MAX_SCOPES: usize = 64;
/// The shortest time between two recorded uses of a key.
pub const USE_INTERVAL: Duration = Duration::from_mins(1);

/// The id of an API key: 16 hexadecimal digits. It is the public part of the text of the key.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiKeyId(Arc<str>);

impl ApiKeyId {
    /// Makes an id of random bytes.
    pub fn of_random(bytes: [u8; ID_DIGITS / 2]) -> Self {
        Self(hex::encode(bytes).into())
    }

    /// Reads an id; `None` if the text cannot be one.
    pub fn read(text: &str) -> Option<Self> {
        is_hexadecimal(text, ID_DIGITS).then(|| Self(text.into()))
    }

    /// Reads an id from the database. It is not validated again.
    pub fn stored(text: String) -> Self {
        Self(text.into())
    }

    /// Returns the digits.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApiKeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The SHA-256 digest of a secret, which is stored instead of the secret.
///
/// A slow hash protects passwords, because people choose passwords that can be guessed. The secrets here are random and
/// have 256 bits, so nobody can guess one, however fast the hash is; and a fast hash keeps requests cheap.
#[derive(Clone, Copy)]
pub struct SecretDigest([u8; 32]);

impl SecretDigest {
    /// Computes the digest of a secret.
    pub fn of(secret: &str) -> Self {
        Self(Sha256::digest(secret.as_bytes()).into())
    }

    /// Reads a digest from the database; `None` if the length is wrong.
    pub fn stored(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// Returns the bytes for the database.
    pub fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Returns whether two digests are equal. The time does not depend on where they differ.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

/// The parts of the text of an API key: `adj_<id>_<secret>`.
#[derive(Clone)]
pub struct PresentedKey {
    /// The id of the key.
    pub id: ApiKeyId,
    /// The digest of the secret.
    pub digest: SecretDigest,
}

impl PresentedKey {
    /// Reads the text of a key; `None` if it does not have the form of a key.
    pub fn read(text: &str) -> Option<Self> {
        let rest = text.strip_prefix(PREFIX)?.strip_prefix('_')?;
        let parts = rest.split_once('_')?;
        let id = ApiKeyId::read(parts.0)?;
        let digest = is_hexadecimal(parts.1, SECRET_DIGITS).then(|| SecretDigest::of(parts.1))?;
        Some(Self { id, digest })
    }

    /// Writes the text of a key with a secret of random bytes.
    pub fn text(id: &ApiKeyId, secret: [u8; SECRET_DIGITS / 2]) -> String {
        format!("{PREFIX}_{id}_{}", hex::encode(secret))
    }
}

fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// An API key without its secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// The id.
    pub id: ApiKeyId,
    /// The name, for people.
    pub name: String,
    /// The tenant of the identity.
    pub tenant: Tenant,
    /// The user of the identity.
    pub user: UserId,
    /// The roles of the identity.
    pub roles: Vec<UserRole>,
    /// The permissions that limit what the roles allow; `None` for no limit.
    pub scopes: Option<Vec<String>>,
    /// The time of its creation.
    pub created_at: Timestamp,
    /// The time from which it is refused, if it expires.
    pub expires_at: Option<Timestamp>,
    /// The time of its last use, to the minute.
    pub last_used_at: Option<Timestamp>,
    /// The time when it got a new secret.
    pub rotated_at: Option<Timestamp>,
    /// The time when it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// An API key with the digests of its secrets.
#[derive(Clone)]
pub struct StoredApiKey {
    /// The key.
    pub key: ApiKey,
    /// The digest of the secret.
    pub digest: SecretDigest,
    /// The secret before the last rotation, which is valid for a while.
    pub previous: Option<PreviousSecret>,
}

/// A secret that was replaced by another.
#[derive(Clone)]
pub struct PreviousSecret {
    /// The digest.
    pub digest: SecretDigest,
    /// The time until which the secret is accepted.
    pub valid_until: Timestamp,
}

impl StoredApiKey {
    /// Returns whether this is the secret of the key, now or before its last rotation.
    pub fn has_secret(&self, digest: &SecretDigest, now: Timestamp) -> bool {
        let is_current = self.digest.is_same(digest);
        let previous = self.previous.iter().filter(|previous| now < previous.valid_until);
        let is_previous = previous.fold(false, |found, previous| found | previous.digest.is_same(digest));
        is_current | is_previous
    }
}

impl ApiKey {
    /// Returns whether the key is neither revoked nor expired.
    pub fn is_valid(&self, now: Timestamp) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|end| now < end)
    }

    /// Returns the identity that the key proves.
    pub fn identity(&self) -> Identity {
        Identity {
            tenant: self.tenant.clone(),
            user: self.user.clone(),
            roles: self.roles.clone(),
            scopes: self.scopes.clone(),
            credential: Credential::ApiKey(self.id.to_string()),
            expires_at: self.expires_at,
            ..Identity::unauthenticated()
        }
    }

    /// Returns the rights of the key.
    pub fn rights(&self) -> KeyRights<'_> {
        KeyRights {
            roles: &self.roles,
            scopes: self.scopes.as_deref(),
            expires_at: self.expires_at,
        }
    }
}

/// A key, and the tenant to which it must belong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyRef {
    /// The id of the key.
    pub id: ApiKeyId,
    /// The tenant; `None` for any, which only operators on the command line may ask for.
    pub tenant: Option<Tenant>,
}

impl KeyRef {
    /// Returns whether this is the key, and of the tenant.
    pub fn names(&self, key: &ApiKey) -> bool {
        self.id == key.id && self.tenant.as_ref().is_none_or(|tenant| *tenant == key.tenant)
    }
}

/// A new secret for a key.
#[derive(Clone)]
pub struct KeyRotation {
    /// The key.
    pub key: KeyRef,
    /// The digest of the new secret.
    pub digest: SecretDigest,
    /// The time until which the old secret is accepted.
    pub previous_until: Timestamp,
    /// The time of the change.
    pub now: Timestamp,
}

/// A stream ticket, of which only the digest is stored.
#[derive(Clone)]
pub struct StoredTicket {
    /// The digest of the ticket's text.
    pub digest: SecretDigest,
    /// The identity for which the ticket stands.
    pub identity: Identity,
    /// The time from which the ticket is refused.
    pub expires_at: Timestamp,
}

/// An API key that shall be created.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewApiKey {
    /// The name, for people.
    pub name: String,
    /// The tenant.
    pub tenant: Tenant,
    /// The user.
    pub user: UserId,
    /// The roles.
    pub roles: Vec<UserRole>,
    /// The permissions that limit what the roles allow.
    pub scopes: Option<Vec<String>>,
    /// The time from which the key is refused.
    pub expires_at: Option<Timestamp>,
}

impl NewApiKey {
    /// Checks the fields.
    ///
    /// # Errors
    /// Names the invalid field.
    pub fn check(&self, now: Timestamp) -> Result<(), Invalid> {
        let chars = self.name.chars().count();
        if chars == 0 || chars > MAX_NAME_CHARS || self.name.chars().any(char::is_control) {
            let reason = format!("must have 1 to {MAX_NAME_CHARS} characters and no control characters");
            return Err(Invalid::new("name", reason));
        }
        if self.roles.is_empty() {
            return Err(Invalid::new("roles", "must have at least one role"));
        }
        if let Some(scopes) = &self.scopes {
            check_scopes("scopes", scopes)?;
        }
        if self.expires_at.is_some_and(|end| end <= now) {
            return Err(Invalid::new("expires_at", "must be in the future"));
        }
        Ok(())
    }

    /// Returns the rights of the key.
    pub fn rights(&self) -> KeyRights<'_> {
        KeyRights {
            roles: &self.roles,
            scopes: self.scopes.as_deref(),
            expires_at: self.expires_at,
        }
    }
}

/// Checks a list of permissions: actions such as `threads:read`, `threads:*`, or `*`.
///
/// # Errors
/// Names the permission that does not exist.
pub fn check_scopes(field: &str, scopes: &[String]) -> Result<(), Invalid> {
    if scopes.len() > MAX_SCOPES {
        return Err(Invalid::new(field, format!("must have at most {MAX_SCOPES} entries")));
    }
    for (at, scope) in scopes.iter().enumerate() {
        let is_known = Action::ALL.iter().any(|action| action.is_covered_by(scope));
        if !is_known {
            let reason = "is no permission; permissions are actions such as `threads:read`, all actions on a kind of \
                          resource as in `threads:*`, and `*`";
            return Err(Invalid::new(format!("{field}[{at}]"), reason));
        }
    }
    Ok(())
}

/// The rights of an API key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyRights<'k> {
    /// The roles.
    pub roles: &'k [UserRole],
    /// The permissions that limit what the roles allow.
    pub scopes: Option<&'k [String]>,
    /// The time from which the key is refused.
    pub expires_at: Option<Timestamp>,
}

/// Checks that an identity has all rights of a key before the identity creates the key or gets a new secret for it.
///
/// # Errors
/// Names the field of the key that goes beyond the rights of the identity.
pub fn check_grant(by: &Identity, rights: KeyRights<'_>) -> Result<(), Invalid> {
    let may_grant = |role: &&UserRole| !by.has(UserRole::Admin) && !by.has(**role);
    if let Some(role) = rights.roles.iter().find(may_grant) {
        let reason = format!("`{}` is not one of your own roles, so you cannot grant it", role.word());
        return Err(Invalid::new("roles", reason));
    }
    if let Some(own) = &by.scopes {
        check_scopes_within(own, rights.scopes)?;
    }
    // A token expires with its session and is renewed. A key that expires is meant to end.
    let own_end = by.expires_at.filter(|_| matches!(by.credential, Credential::ApiKey(_)));
    if let Some(end) = own_end
        && rights.expires_at.is_none_or(|wanted| wanted > end)
    {
        let reason = format!("must be given and not later than {end}, when your own key expires");
        return Err(Invalid::new("expires_at", reason));
    }
    Ok(())
}

/// Checks that all actions that `wanted` covers are covered by `own`, too.
fn check_scopes_within(own: &[String], wanted: Option<&[String]>) -> Result<(), Invalid> {
    let Some(wanted) = wanted else {
        let reason = "must be given, since your own credentials are limited to scopes";
        return Err(Invalid::new("scopes", reason));
    };
    let is_own = |action: &Action| own.iter().any(|scope| action.is_covered_by(scope));
    for (at, scope) in wanted.iter().enumerate() {
        let mut covered = Action::ALL.iter().filter(|action| action.is_covered_by(scope));
        if !covered.all(is_own) {
            let reason = "goes beyond the scopes of your own credentials";
            return Err(Invalid::new(format!("scopes[{at}]"), reason));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(roles: &[UserRole], scopes: Option<&[&str]>) -> NewApiKey {
        NewApiKey {
            name: "ci".to_owned(),
            tenant: Tenant::default(),
            user: UserId::stored("ci".to_owned()),
            roles: roles.to_vec(),
            scopes: scopes.map(|scopes| scopes.iter().map(|scope| (*scope).to_owned()).collect()),
            expires_at: None,
        }
    }

    fn caller(roles: &[UserRole], scopes: Option<&[&str]>) -> Identity {
        Identity {
            roles: roles.to_vec(),
            scopes: key(roles, scopes).scopes,
            credential: Credential::ApiKey("0011223344556677".to_owned()),
            ..Identity::unauthenticated()
        }
    }

    fn refused_field(by: &Identity, key: &NewApiKey) -> Option<String> {
        check_grant(by, key.rights()).err().map(|refusal| refusal.field)
    }

    #[test]
    fn the_text_of_a_key_is_read_back() {
        let id = ApiKeyId::of_random([7; 8]);
        let text = PresentedKey::text(&id, [250; 32]);
        let read = PresentedKey::read(&text).expect("a key");
        assert_eq!(read.id, id);
        let secret = text.rsplit('_').next().expect("a secret");
        assert!(read.digest.is_same(&SecretDigest::of(secret)));
    }

    #[test]
    fn a_text_of_another_form_is_no_key() {
        let secret = "a".repeat(64);
        for text in [
            String::new(),
            "adj".to_owned(),
            "adj__".to_owned(),
            format!("adj_00112233_{secret}"),
            format!("adj_0011223344556677_{}", "a".repeat(63)),
            format!("adj_0011223344556677_{}", "A".repeat(64)),
            format!("adj_0011223344556677_{secret}_"),
            format!("ADJ_0011223344556677_{secret}"),
        ] {
            assert!(PresentedKey::read(&text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_previous_secret_is_valid_until_its_time() {
        let stored = StoredApiKey {
            key: ApiKey {
                id: ApiKeyId::of_random([1; 8]),
                name: "ci".to_owned(),
                tenant: Tenant::default(),
                user: UserId::default(),
                roles: vec![UserRole::User],
                scopes: None,
                created_at: Timestamp(0),
                expires_at: None,
                last_used_at: None,
                rotated_at: Some(Timestamp(0)),
                revoked_at: None,
            },
            digest: SecretDigest::of("new"),
            previous: Some(PreviousSecret {
                digest: SecretDigest::of("old"),
                valid_until: Timestamp(10),
            }),
        };
        assert!(stored.has_secret(&SecretDigest::of("old"), Timestamp(9)));
        assert!(!stored.has_secret(&SecretDigest::of("old"), Timestamp(10)));
        assert!(stored.has_secret(&SecretDigest::of("new"), Timestamp(10)));
        assert!(!stored.has_secret(&SecretDigest::of("other"), Timestamp(9)));
    }

    #[test]
    fn nobody_grants_roles_beyond_their_own() {
        let developer = caller(&[UserRole::Developer], None);
        assert_eq!(refused_field(&developer, &key(&[UserRole::Developer], None)), None);
        assert_eq!(
            refused_field(&developer, &key(&[UserRole::Admin], None)).as_deref(),
            Some("roles")
        );
        let admin = caller(&[UserRole::Admin], None);
        assert_eq!(refused_field(&admin, &key(&UserRole::ALL, None)), None);
    }

    #[test]
    fn nobody_grants_scopes_beyond_their_own() {
        let limited = caller(&[UserRole::Admin], Some(&["keys:*", "threads:read"]));
        let refused = |scopes| refused_field(&limited, &key(&[UserRole::User], scopes));
        assert_eq!(refused(Some(&["threads:read"])), None);
        assert_eq!(refused(Some(&["keys:write"])), None);
        assert_eq!(refused(None).as_deref(), Some("scopes"));
        assert_eq!(refused(Some(&["threads:*"])).as_deref(), Some("scopes[0]"));
        assert_eq!(refused(Some(&["threads:read", "*"])).as_deref(), Some("scopes[1]"));
    }

    #[test]
    fn a_key_that_expires_creates_none_that_lasts_longer() {
        let mut admin = caller(&[UserRole::Admin], None);
        admin.expires_at = Some(Timestamp(100));
        let mut wanted = key(&[UserRole::User], None);
        assert_eq!(refused_field(&admin, &wanted).as_deref(), Some("expires_at"));
        wanted.expires_at = Some(Timestamp(100));
        assert_eq!(refused_field(&admin, &wanted), None);
    }

    #[test]
    fn an_unknown_permission_is_refused_by_name() {
        let refused = key(&[UserRole::User], Some(&["threads:read", "thread:read"])).check(Timestamp(0));
        assert_eq!(refused.expect_err("no such permission").field, "scopes[1]");
    }
}
