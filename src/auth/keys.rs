//! API keys in the database: their creation, rotation and revocation, and the check of a presented key.
//!
//! Keys are cached for [`CACHED_FOR`], so that most requests do not read the database. A change in this process takes
//! effect at once, and on other servers of the same database within that time.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ring::rand::{SecureRandom, SystemRandom};
use secrecy::SecretString;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::cache::{CachedValue, ExpiringCache};
use super::store::{CredentialStore, CredentialStoreError, KeyPage, KeySearch};
use super::{AuthError, KeyError};
use crate::domain::api_key::{
    ApiKey, ApiKeyId, KeyRef, KeyRotation, NewApiKey, PresentedKey, SecretDigest, StoredApiKey, USE_INTERVAL,
    check_grant,
};
use crate::domain::identity::Identity;
use crate::domain::time::{Clock, Timestamp};

/// The time for which a key is cached.
pub const CACHED_FOR: Duration = Duration::from_secs(5);
/// The time for which the old secret is accepted after a rotation, unless the request says otherwise.
pub const DEFAULT_GRACE: Duration = Duration::from_hours(24);
/// The longest time for which the old secret may be accepted after a rotation.
pub const MAX_GRACE: Duration = Duration::from_hours(30 * 24);
/// The number of cached keys.
const CACHED_KEYS: usize = 10_000;
/// The number of cached ids under which there is no key.
const CACHED_GAPS: usize = 10_000;
/// The most uses that wait to be recorded.
const MAX_WAITING_USES: usize = 10_000;
/// The most uses that are recorded together.
const MAX_USES_AT_ONCE: usize = 256;

/// The API keys of the database. Cloning copies a pointer.
#[derive(Clone)]
pub struct ApiKeys(Arc<KeysInner>);

struct KeysInner {
    store: Arc<dyn CredentialStore>,
    clock: Arc<dyn Clock>,
    random: SystemRandom,
    known: ExpiringCache<ApiKeyId, Arc<KnownKey>>,
    /// The ids under which there is no key. They have a cache of their own, so that made-up ids do not push out keys.
    gaps: ExpiringCache<ApiKeyId, ()>,
    /// Counts the changes of keys: what was read before a change is not cached after it, and open streams look again.
    changes: watch::Sender<u64>,
    uses: Mutex<KeyUses>,
    has_uses: Notify,
}

/// A key with the identity that it proves.
struct KnownKey {
    stored: StoredApiKey,
    identity: Arc<Identity>,
}

/// The uses of keys.
#[derive(Default)]
struct KeyUses {
    /// The last use of each key that was passed on to be recorded.
    noted: HashMap<ApiKeyId, Timestamp>,
    /// The uses that wait to be recorded.
    waiting: BTreeMap<ApiKeyId, Timestamp>,
}

/// An API key that was just created or got a new secret.
pub struct IssuedKey {
    /// The key.
    pub key: ApiKey,
    /// The text of the key, which is not stored and cannot be shown again.
    pub text: SecretString,
}

impl ApiKeys {
    /// Creates the handle.
    pub fn new(store: Arc<dyn CredentialStore>, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(KeysInner {
            store,
            clock,
            random: SystemRandom::new(),
            known: ExpiringCache::new(CACHED_KEYS),
            gaps: ExpiringCache::new(CACHED_GAPS),
            changes: watch::Sender::new(0),
            uses: Mutex::default(),
            has_uses: Notify::new(),
        }))
    }

    /// Returns the identity that a key proves.
    ///
    /// # Errors
    /// If there is no such key, its secret is another, or it has expired or was revoked; and if the database fails.
    pub(super) async fn authenticate(&self, presented: &PresentedKey) -> Result<Arc<Identity>, AuthError> {
        let now = self.0.clock.now();
        let known = self.find_cached(&presented.id, now).await?;
        let known = known.ok_or_else(|| AuthError::refused("no API key has this id"))?;
        if !known.stored.has_secret(&presented.digest, now) {
            return Err(AuthError::refused("the secret of the API key is wrong"));
        }
        if !known.stored.key.is_valid(now) {
            return Err(AuthError::refused("the API key has expired or was revoked"));
        }
        self.note_use(&known.stored.key, now);
        Ok(Arc::clone(&known.identity))
    }

    /// Returns whether the key with this id can be used.
    ///
    /// # Errors
    /// If the database fails.
    pub(super) async fn is_valid(&self, id: &ApiKeyId) -> Result<bool, AuthError> {
        let now = self.0.clock.now();
        let known = self.find_cached(id, now).await?;
        Ok(known.is_some_and(|known| known.stored.key.is_valid(now)))
    }

    /// Returns a receiver that learns of every change of a key in this process.
    pub(super) fn watch_changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    async fn find_cached(&self, id: &ApiKeyId, now: Timestamp) -> Result<Option<Arc<KnownKey>>, AuthError> {
        if let Some(known) = self.0.known.get(id, now) {
            return Ok(Some(known));
        }
        if self.0.gaps.get(id, now).is_some() {
            return Ok(None);
        }
        let changes = *self.0.changes.borrow();
        let found = self.0.store.find_key(id.clone()).await?;
        let is_current = || *self.0.changes.borrow() == changes;
        let valid_until = now.plus(CACHED_FOR);
        let Some(stored) = found else {
            let gap = CachedValue { value: (), valid_until };
            self.0.gaps.insert_if(id.clone(), gap, now, is_current);
            return Ok(None);
        };
        let identity = Arc::new(stored.key.identity());
        let known = Arc::new(KnownKey { stored, identity });
        let value = Arc::clone(&known);
        let entry = CachedValue { value, valid_until };
        self.0.known.insert_if(id.clone(), entry, now, is_current);
        Ok(Some(known))
    }

    /// Forgets what is cached of a key that has changed.
    fn forget(&self, id: &ApiKeyId) {
        // Counted before, so that no older read is cached afterwards; announced after the caches are clean.
        self.0.changes.send_if_modified(|count| {
            *count += 1;
            false
        });
        self.0.known.remove(id);
        self.0.gaps.remove(id);
        self.0.changes.send_modify(|_| {});
    }

    /// Forgets what is cached of all keys, after some were deleted.
    pub fn forget_all(&self) {
        self.0.changes.send_if_modified(|count| {
            *count += 1;
            false
        });
        self.0.known.clear();
        self.0.gaps.clear();
        self.0.changes.send_modify(|_| {});
    }

    /// Passes the use of a key on to be recorded, at most once a minute.
    fn note_use(&self, key: &ApiKey, now: Timestamp) {
        let is_recent = |at: Timestamp| now < at.plus(USE_INTERVAL);
        // Most requests end here, and take no lock.
        if key.last_used_at.is_some_and(is_recent) {
            return;
        }
        let mut uses = self.0.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let noted = uses.noted.get(&key.id).copied();
        if noted.is_some_and(is_recent) || uses.waiting.len() >= MAX_WAITING_USES {
            return;
        }
        if uses.noted.len() >= CACHED_KEYS {
            uses.noted.clear();
        }
        uses.noted.insert(key.id.clone(), now);
        uses.waiting.insert(key.id.clone(), now);
        drop(uses);
        self.0.has_uses.notify_one();
    }

    /// Records when keys were used, until the shutdown. Requests do not wait for that.
    pub async fn record_uses(self, soft: CancellationToken) {
        while soft.run_until_cancelled(self.0.has_uses.notified()).await.is_some() {
            loop {
                let uses = self.take_uses();
                if uses.is_empty() {
                    break;
                }
                let count = uses.len();
                if let Err(error) = self.0.store.record_uses(uses).await {
                    tracing::warn!(keys = count, %error, "could not record the use of API keys");
                }
            }
        }
    }

    /// Returns some of the uses that wait to be recorded.
    fn take_uses(&self) -> BTreeMap<ApiKeyId, Timestamp> {
        let mut uses = self.0.uses.lock().unwrap_or_else(PoisonError::into_inner);
        let next = uses.waiting.keys().nth(MAX_USES_AT_ONCE).cloned();
        let rest = next.map(|next| uses.waiting.split_off(&next));
        std::mem::replace(&mut uses.waiting, rest.unwrap_or_default())
    }

    /// Creates a key. `by` is who asks for it; `None` for an operator on the command line, who may create any.
    ///
    /// # Errors
    /// If a field is invalid, if the key would have more rights than `by`, if the tenant has too many keys, or if the
    /// database fails.
    pub async fn create(&self, by: Option<&Identity>, new: NewApiKey) -> Result<IssuedKey, KeyError> {
        let now = self.0.clock.now();
        new.check(now)?;
        if let Some(by) = by {
            check_grant(by, new.rights())?;
        }
        let id = ApiKeyId::of_random(self.random_bytes()?);
        let text = PresentedKey::text(&id, self.random_bytes()?);
        let NewApiKey {
            name,
            tenant,
            user,
            roles,
            scopes,
            expires_at,
        } = new;
        let key = ApiKey {
            id,
            name,
            tenant,
            user,
            roles,
            scopes,
            created_at: now,
            expires_at,
            last_used_at: None,
            rotated_at: None,
            revoked_at: None,
        };
        let digest = digest_of(&text)?;
        let stored = StoredApiKey {
            key: key.clone(),
            digest,
            previous: None,
        };
        if !self.0.store.insert_key(stored, now).await? {
            return Err(KeyError::TooMany);
        }
        self.forget(&key.id);
        let text = SecretString::from(text);
        Ok(IssuedKey { key, text })
    }

    /// Returns a page of keys, newest first.
    ///
    /// # Errors
    /// If the database fails.
    pub async fn list(&self, search: KeySearch) -> Result<KeyPage, KeyError> {
        Ok(self.0.store.list_keys(search).await?)
    }

    /// Returns a key of a tenant.
    ///
    /// # Errors
    /// If there is no such key, or the database fails.
    pub async fn get(&self, wanted: &KeyRef) -> Result<ApiKey, KeyError> {
        let found = self.0.store.find_key(wanted.id.clone()).await?;
        let key = found.map(|stored| stored.key).filter(|key| wanted.names(key));
        key.ok_or(KeyError::NoKey)
    }

    /// Gives a key a new secret. The old one is accepted for `grace` more. A secret that was replaced before is refused
    /// from now on.
    ///
    /// # Errors
    /// If there is no such key, or it was revoked; if it has more rights than `by`, who would get its secret; or if the
    /// database fails.
    pub async fn rotate(&self, by: Option<&Identity>, key: KeyRef, grace: Duration) -> Result<IssuedKey, KeyError> {
        let old = self.get(&key).await?;
        if let Some(by) = by {
            check_grant(by, old.rights())?;
        }
        let now = self.0.clock.now();
        let text = PresentedKey::text(&key.id, self.random_bytes()?);
        let id = key.id.clone();
        let rotation = KeyRotation {
            key,
            digest: digest_of(&text)?,
            previous_until: now.plus(grace.min(MAX_GRACE)),
            now,
        };
        let rotated = self.0.store.rotate_key(rotation).await;
        self.forget(&id);
        let key = rotated?.ok_or(KeyError::Revoked)?;
        let text = SecretString::from(text);
        Ok(IssuedKey { key, text })
    }

    /// Revokes a key: it is refused from now on, with all its secrets. Returns the key.
    ///
    /// # Errors
    /// If there is no such key, or the database fails.
    pub async fn revoke(&self, key: KeyRef) -> Result<ApiKey, KeyError> {
        let id = key.id.clone();
        let now = self.0.clock.now();
        let revoked = self.0.store.revoke_key(key, now).await;
        self.forget(&id);
        revoked?.ok_or(KeyError::NoKey)
    }

    fn random_bytes<const N: usize>(&self) -> Result<[u8; N], KeyError> {
        random_bytes(&self.0.random).map_err(KeyError::Unavailable)
    }
}

/// Returns random bytes of the operating system.
pub(super) fn random_bytes<const N: usize>(random: &SystemRandom) -> Result<[u8; N], CredentialStoreError> {
    let mut bytes = [0; N];
    let filled = random.fill(&mut bytes);
    filled.map_err(|_| CredentialStoreError("the operating system gives no random numbers".to_owned()))?;
    Ok(bytes)
}

/// Returns the digest of the secret in the text of a key, as a later request will compute it.
fn digest_of(text: &str) -> Result<SecretDigest, KeyError> {
    let read = PresentedKey::read(text).map(|presented| presented.digest);
    read.ok_or_else(|| KeyError::Unavailable(CredentialStoreError("a new API key has a wrong form".to_owned())))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use async_trait::async_trait;
    use secrecy::ExposeSecret;

    use super::*;
    use crate::domain::api_key::StoredTicket;
    use crate::domain::identity::{Tenant, UserId, UserRole};
    use crate::domain::time::ManualClock;

    /// A database of one key that counts its calls.
    #[derive(Default)]
    struct CountingStore {
        key: Mutex<Option<StoredApiKey>>,
        found: AtomicUsize,
        uses: AtomicUsize,
    }

    impl CountingStore {
        fn stored(&self) -> Option<StoredApiKey> {
            self.key.lock().expect("the lock is not poisoned").clone()
        }
    }

    #[async_trait]
    impl CredentialStore for CountingStore {
        async fn find_key(&self, _: ApiKeyId) -> Result<Option<StoredApiKey>, CredentialStoreError> {
            self.found.fetch_add(1, Ordering::SeqCst);
            Ok(self.stored())
        }

        async fn insert_key(&self, key: StoredApiKey, _: Timestamp) -> Result<bool, CredentialStoreError> {
            *self.key.lock().expect("the lock is not poisoned") = Some(key);
            Ok(true)
        }

        async fn list_keys(&self, _: KeySearch) -> Result<KeyPage, CredentialStoreError> {
            Ok(KeyPage { keys: vec![], total: 0 })
        }

        async fn rotate_key(&self, _: KeyRotation) -> Result<Option<ApiKey>, CredentialStoreError> {
            Ok(None)
        }

        async fn revoke_key(&self, _: KeyRef, now: Timestamp) -> Result<Option<ApiKey>, CredentialStoreError> {
            let mut stored = self.key.lock().expect("the lock is not poisoned");
            if let Some(stored) = stored.as_mut() {
                stored.key.revoked_at = Some(now);
            }
            Ok(stored.as_ref().map(|stored| stored.key.clone()))
        }

        async fn record_uses(&self, uses: BTreeMap<ApiKeyId, Timestamp>) -> Result<(), CredentialStoreError> {
            self.uses.fetch_add(uses.len(), Ordering::SeqCst);
            Ok(())
        }

        async fn insert_ticket(&self, _: StoredTicket, _: Timestamp) -> Result<bool, CredentialStoreError> {
            Ok(true)
        }

        async fn take_ticket(&self, _: SecretDigest) -> Result<Option<StoredTicket>, CredentialStoreError> {
            Ok(None)
        }
    }

    /// A key in a database that counts its calls.
    struct Bench {
        clock: ManualClock,
        store: Arc<CountingStore>,
        keys: ApiKeys,
        issued: IssuedKey,
    }

    impl Bench {
        async fn with_a_key() -> Self {
            let clock = ManualClock::starting_at(Timestamp(1_000_000_000_000_000));
            let store = Arc::new(CountingStore::default());
            let shared: Arc<dyn CredentialStore> = Arc::clone(&store) as _;
            let keys = ApiKeys::new(shared, Arc::new(clock.clone()));
            let new = NewApiKey {
                name: "one".to_owned(),
                tenant: Tenant::stored("acme".to_owned()),
                user: UserId::stored("ann".to_owned()),
                roles: vec![UserRole::User],
                scopes: None,
                expires_at: None,
            };
            let issued = keys.create(None, new).await.expect("a key");
            Self {
                clock,
                store,
                keys,
                issued,
            }
        }

        /// Authenticates a request with the key.
        async fn request(&self) -> Result<Arc<Identity>, AuthError> {
            let presented = PresentedKey::read(self.issued.text.expose_secret()).expect("the text of a key");
            self.keys.authenticate(&presented).await
        }

        fn lookups(&self) -> usize {
            self.store.found.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_key_in_use_is_looked_up_once_in_five_seconds() {
        let bench = Bench::with_a_key().await;
        for _ in 0..100 {
            bench.request().await.expect("the key is valid");
        }
        assert_eq!(bench.lookups(), 1);
        bench.clock.advance(CACHED_FOR);
        bench.request().await.expect("the key is valid");
        assert_eq!(bench.lookups(), 2);
    }

    #[tokio::test]
    async fn a_revoked_key_is_refused_at_once_although_it_was_cached() {
        let bench = Bench::with_a_key().await;
        bench.request().await.expect("the key is valid");
        let key = KeyRef {
            id: bench.issued.key.id.clone(),
            tenant: None,
        };
        bench.keys.revoke(key).await.expect("it is revoked");
        assert!(matches!(bench.request().await, Err(AuthError::Refused(_))));
    }

    #[tokio::test]
    async fn the_use_of_a_key_is_recorded_once_a_minute() {
        let bench = Bench::with_a_key().await;
        for minute in 1..=3 {
            for _ in 0..100 {
                bench.request().await.expect("the key is valid");
            }
            let soft = CancellationToken::new();
            let recording = bench.keys.clone().record_uses(soft.clone());
            let recorded = async {
                while bench.store.uses.load(Ordering::SeqCst) < minute {
                    tokio::task::yield_now().await;
                }
                soft.cancel();
            };
            futures::join!(recording, recorded);
            assert_eq!(bench.store.uses.load(Ordering::SeqCst), minute);
            bench.clock.advance(USE_INTERVAL);
        }
    }
}
