//! Master keys: the keys outside the database that wrap the data keys of tenants.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use ring::aead::{AES_256_GCM, LessSafeKey, UnboundKey};
use secrecy::zeroize::Zeroize;
use uuid::Uuid;

use super::{KEY_LEN, KeyBytes, decrypt, encrypt};
use crate::db::engine::error::DbResult;
use crate::domain::Invalid;

/// The name of a key that is given without one.
const DEFAULT_NAME: &str = "default";
/// The most keys.
const MAX_KEYS: usize = 64;
/// The longest name of a key, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// The base64 of keys, with padding or without.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// A key that wraps data keys.
struct MasterKey {
    name: String,
    key: LessSafeKey,
}

/// The master keys of a server. The first one wraps; all unwrap. Cloning them copies a pointer.
#[derive(Clone)]
pub struct MasterKeys(Arc<Vec<MasterKey>>);

impl fmt::Debug for MasterKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

/// A data key as it is stored.
pub(super) struct WrappedKey {
    pub(super) id: Uuid,
    pub(super) tenant: String,
    /// The name of the master key.
    pub(super) master: String,
    pub(super) bytes: Vec<u8>,
}

/// Returns the associated data to which a wrapped key is bound.
fn associated_data(id: Uuid, tenant: &str) -> Vec<u8> {
    format!("data_keys\nwrapped\n{id}\n{tenant}").into_bytes()
}

impl MasterKeys {
    /// Reads keys, one on each line: `NAME:KEY`, or `KEY` alone, in base64 of 32 bytes. Empty lines and lines that begin
    /// with `#` are skipped.
    ///
    /// # Errors
    /// Says what is wrong with which line, without its content.
    pub fn read(text: &str) -> Result<Self, Invalid> {
        let mut keys: Vec<MasterKey> = vec![];
        let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            let wrong = |reason: &str| Invalid::new(format!("line {number}"), reason);
            let (name, key) = line.split_once(':').unwrap_or((DEFAULT_NAME, line));
            let is_name_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_name_char) {
                return Err(wrong(
                    "must begin with a name of 1 to 64 letters, digits, `-`, `_` and `.`, and a colon",
                ));
            }
            if keys.iter().any(|known| known.name == name) {
                return Err(wrong("has the name of an earlier key"));
            }
            if keys.len() == MAX_KEYS {
                return Err(wrong("is one key too many: there may be 64"));
            }
            let size = "must hold a key of 32 random bytes in base64, as `openssl rand -base64 32` prints it";
            let mut bytes = BASE64.decode(key.trim()).map_err(|_| wrong(size))?;
            let unbound = UnboundKey::new(&AES_256_GCM, &bytes);
            bytes.zeroize();
            keys.push(MasterKey {
                name: name.to_owned(),
                key: LessSafeKey::new(unbound.map_err(|_| wrong(size))?),
            });
        }
        if keys.is_empty() {
            return Err(Invalid::new(
                "keys",
                "are missing: there must be at least one line with a key",
            ));
        }
        Ok(Self(Arc::new(keys)))
    }

    /// Returns the names of the keys, the one that wraps first.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|key| key.name.as_str())
    }

    /// Returns the name of the key that wraps.
    pub(super) fn first(&self) -> &str {
        self.names().next().unwrap_or_default()
    }

    /// Wraps a data key under the first master key.
    pub(super) fn wrap(&self, id: Uuid, tenant: &str, bytes: &[u8; KEY_LEN]) -> DbResult<Vec<u8>> {
        let first = self.0.first().ok_or_else(super::cipher_failed)?;
        encrypt(&first.key, &associated_data(id, tenant), bytes, vec![])
    }

    /// Unwraps a data key; none if the master key is not among these, or is another one of the same name.
    pub(super) fn unwrap_key(&self, wrapped: &WrappedKey) -> Option<KeyBytes> {
        let master = self.0.iter().find(|key| key.name == wrapped.master)?;
        let mut bytes = wrapped.bytes.clone();
        let plain = decrypt(&master.key, &associated_data(wrapped.id, &wrapped.tenant), &mut bytes)?;
        let key = <[u8; KEY_LEN]>::try_from(&*plain)
            .ok()
            .map(|key| KeyBytes::new(Box::new(key)));
        bytes.zeroize();
        key
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(byte: u8) -> String {
        BASE64.encode([byte; KEY_LEN])
    }

    #[test]
    fn the_first_key_wraps_and_all_unwrap() {
        let old = MasterKeys::read(&format!("old:{}", key(1))).expect("a key");
        let id = Uuid::from_u128(1);
        let wrapped = WrappedKey {
            id,
            tenant: "acme".to_owned(),
            master: "old".to_owned(),
            bytes: old.wrap(id, "acme", &[7; KEY_LEN]).expect("wrapped"),
        };
        let both = MasterKeys::read(&format!("# rotated\n\nnew: {}\nold:{}\n", key(2), key(1))).expect("two keys");
        assert_eq!(both.first(), "new");
        let opened = both.unwrap_key(&wrapped).expect("unwrapped");
        assert_eq!(secrecy::ExposeSecret::expose_secret(&opened), &[7; KEY_LEN]);
        let other = MasterKeys::read(&format!("old:{}", key(3))).expect("a key");
        assert!(other.unwrap_key(&wrapped).is_none(), "another key of the same name");
        let moved = WrappedKey {
            tenant: "other".to_owned(),
            ..wrapped
        };
        assert!(both.unwrap_key(&moved).is_none(), "the key of another tenant");
    }

    #[test]
    fn a_key_may_have_no_name_and_no_padding() {
        let padded = key(1);
        for text in [padded.as_str(), padded.trim_end_matches('=')] {
            assert_eq!(MasterKeys::read(text).expect("a key").first(), DEFAULT_NAME);
        }
    }

    #[test]
    fn errors_name_the_line_and_never_the_key() {
        let good = key(1);
        for (text, line) in [
            (format!("a:{good}\nb:c2hvcnQ="), "line 2"),
            (format!("a:{good}\na:{good}"), "line 2"),
            (format!("a b:{good}"), "line 1"),
            (format!(":{good}"), "line 1"),
            ("not base64 at all!".to_owned(), "line 1"),
            ("# nothing\n".to_owned(), "keys"),
        ] {
            let error = MasterKeys::read(&text).expect_err("invalid");
            assert_eq!(error.field, line, "{text}");
            assert!(
                !error.reason.contains(&good) && !error.reason.contains("c2hvcnQ"),
                "{error}"
            );
        }
        let printed = format!("{:?}", MasterKeys::read(&good));
        assert!(!printed.contains(&good), "{printed}");
    }
}
