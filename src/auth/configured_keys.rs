//! API keys from the configuration, with which a server can be used before its database has any.

use std::collections::HashMap;
use std::sync::Arc;

use secrecy::{ExposeSecret, SecretString};

use crate::domain::api_key::SecretDigest;
use crate::domain::identity::Identity;

/// The shortest key of a configuration, in bytes: 32 hexadecimal digits have 128 bits.
pub const MIN_KEY_BYTES: usize = 32;

/// A key of the configuration.
pub struct ConfiguredKey {
    /// The text of the key.
    pub text: SecretString,
    /// The identity that it proves.
    pub identity: Identity,
}

/// The keys of the configuration, by their digests.
///
/// A key is looked up by its digest. The time of the look-up may tell something of the digest, which does not help to
/// find a key with this digest.
#[derive(Default)]
pub(super) struct ConfiguredKeys(HashMap<[u8; 32], Arc<Identity>>);

impl ConfiguredKeys {
    /// Stores the digests of the keys.
    pub(super) fn new(keys: Vec<ConfiguredKey>) -> Self {
        let entry = |key: ConfiguredKey| {
            let digest = SecretDigest::of(key.text.expose_secret());
            (*digest.bytes(), Arc::new(key.identity))
        };
        Self(keys.into_iter().map(entry).collect())
    }

    /// Returns the identity that a text proves, if it is one of the keys.
    pub(super) fn find(&self, text: &str) -> Option<Arc<Identity>> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(SecretDigest::of(text).bytes()).cloned()
    }
}
