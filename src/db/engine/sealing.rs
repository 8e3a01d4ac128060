//! Encryption at rest: values are sealed with AES-256-GCM before they are written, and opened when they are read.
//!
//! Each tenant has a random *data key*, and what belongs to no tenant has one of the server. Data keys are stored in the
//! table `data_keys`, *wrapped*: sealed under a *master key* that is not in the database. A server without master keys
//! writes plain values and pays nothing for this module.
//!
//! A sealed value is a text: [`PREFIX`], then in base64 the id of the data key, a random nonce, the ciphertext and its
//! tag. It is bound to its table, column and row ([`ColumnRef`]), so a value that was moved elsewhere cannot
//! be opened. No JSON text begins like a sealed value, so plain rows from before encryption are still read.
//!
//! The key that seals a value is not the data key itself, but derived from it and the place of the value (HKDF-SHA256).
//! So there are few random nonces for each key, however many values a tenant has.
//!
//! Reading needs no transaction: the keys of the database are known to each of its operations as the task-local
//! `KEYRING`, and `db/codec/json.rs` opens values with it. Writing asks the transaction for the [`Sealer`] of a tenant or a
//! thread.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD_NO_PAD;
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hkdf::{HKDF_SHA256, Prk};
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretBox};
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use super::column::{ColumnRef, encode};
use super::error::{DbError, DbResult};
use crate::db::row::from_row;

mod data_keys;
mod master_keys;

pub(in crate::db) use data_keys::{MASTER_IN_USE, TxKeys, destroy as destroy_keys, forget_all, renew, rewrap};
pub use master_keys::MasterKeys;

/// The beginning of a sealed value.
const PREFIX: &str = "sealed1:";
/// The length of the id of a data key, in bytes.
const ID_LEN: usize = 16;
/// The length of a key, in bytes.
pub(in crate::db) const KEY_LEN: usize = 32;
/// The longest value that is sealed, in bytes: more than any value that the server accepts.
const MAX_VALUE_BYTES: usize = 512 << 20;

tokio::task_local! {
    static KEYRING: Arc<Keyring>;
}

/// The secret bytes of a key, which are overwritten when they are dropped.
pub(in crate::db) type KeyBytes = SecretBox<[u8; KEY_LEN]>;

/// The data key of a tenant.
pub(in crate::db) struct DataKey {
    id: Uuid,
    derive: Prk,
}

impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DataKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Returns the error of a failed operation of the cipher.
fn cipher_failed() -> DbError {
    DbError::Unfit("the value cannot be encrypted".to_owned())
}

/// Fills `bytes` with random ones.
fn fill_random(bytes: &mut [u8]) -> DbResult<()> {
    SystemRandom::new().fill(bytes).map_err(|_| cipher_failed())
}

/// Encrypts `plain` under `key`. Returns a random nonce, the ciphertext and its tag.
fn encrypt(key: &LessSafeKey, associated_data: &[u8], plain: &[u8], mut output: Vec<u8>) -> DbResult<Vec<u8>> {
    let mut nonce = [0; NONCE_LEN];
    fill_random(&mut nonce)?;
    output.extend_from_slice(&nonce);
    let begin = output.len();
    output.extend_from_slice(plain);
    let nonce = Nonce::assume_unique_for_key(nonce);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(associated_data), &mut output[begin..]);
    let tag = tag.map_err(|_| cipher_failed())?;
    output.extend_from_slice(tag.as_ref());
    Ok(output)
}

/// Decrypts what [`encrypt`] has returned; none if it was changed, or encrypted under another key or with other associated
/// data.
fn decrypt<'b>(key: &LessSafeKey, associated_data: &[u8], sealed: &'b mut [u8]) -> Option<&'b mut [u8]> {
    let (nonce, sealed) = sealed.split_at_mut_checked(NONCE_LEN)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
    key.open_in_place(nonce, Aad::from(associated_data), sealed).ok()
}

impl DataKey {
    pub(in crate::db) fn new(id: Uuid, bytes: &KeyBytes) -> Self {
        Self {
            id,
            derive: Prk::new_less_safe(HKDF_SHA256, bytes.expose_secret()),
        }
    }

    /// Returns the key for the values with this associated data.
    fn key_for(&self, associated_data: &[u8]) -> DbResult<LessSafeKey> {
        let info = [associated_data];
        let derived = self.derive.expand(&info, &AES_256_GCM).map_err(|_| cipher_failed())?;
        Ok(LessSafeKey::new(UnboundKey::from(derived)))
    }

    /// Seals bytes with associated data, with which alone they can be opened.
    fn seal(&self, associated_data: &[u8], plain: &[u8]) -> DbResult<Vec<u8>> {
        if plain.len() > MAX_VALUE_BYTES {
            return Err(DbError::Unfit(format!("a value of more than {MAX_VALUE_BYTES} bytes")));
        }
        let mut output = Vec::with_capacity(ID_LEN + NONCE_LEN + plain.len() + AES_256_GCM.tag_len());
        output.extend_from_slice(self.id.as_bytes());
        encrypt(&self.key_for(associated_data)?, associated_data, plain, output)
    }
}

/// The known data keys, and the master keys that unwrap them.
pub(in crate::db) struct Keyring {
    masters: MasterKeys,
    known: RwLock<KnownKeys>,
}

from_row! {
    /// A change of the table of data keys: its number, and the newest key after it. In a failover a number can be lost and
    /// given again, to another key.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
    struct KeyChange {
        number: i64,
        newest: Option<Uuid>,
    }
}

/// The data keys that were read from the database.
#[derive(Default)]
struct KnownKeys {
    /// The newest change of the table of data keys that was read.
    change: KeyChange,
    /// The newest change of a key that was read. A change of the table may have changed no key.
    key_change: KeyChange,
    /// The keys that open values. They may include keys whose transaction was rolled back: nothing is sealed with those.
    by_id: HashMap<Uuid, Arc<DataKey>>,
    /// The keys that seal new values, by tenant. All are committed.
    by_tenant: HashMap<String, Arc<DataKey>>,
    /// The keys of deleted tenants, which exist nowhere any more.
    destroyed: HashSet<Uuid>,
}

impl Keyring {
    fn new(masters: MasterKeys) -> Self {
        Self {
            masters,
            known: RwLock::default(),
        }
    }

    fn of_tenant(&self, tenant: &str) -> Option<Arc<DataKey>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_tenant.get(tenant).cloned()
    }

    fn of_id(&self, id: Uuid) -> Option<Arc<DataKey>> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.by_id.get(&id).cloned()
    }

    fn is_destroyed(&self, id: Uuid) -> bool {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        known.destroyed.contains(&id)
    }

    /// Makes values readable that are sealed with this key.
    fn add(&self, key: &Arc<DataKey>) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.by_id.insert(key.id, Arc::clone(key));
    }
}

/// The encryption of a database; none if it has no master keys.
#[derive(Clone, Default)]
pub(in crate::db) struct Sealing(Option<Arc<Keyring>>);

impl Sealing {
    /// Returns the encryption with these master keys.
    pub(in crate::db) fn new(masters: Option<MasterKeys>) -> Self {
        Self(masters.map(|masters| Arc::new(Keyring::new(masters))))
    }

    /// Returns whether new values are sealed.
    pub(in crate::db) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Runs an operation that can open sealed values.
    pub(in crate::db) async fn scope<F: Future>(&self, operation: F) -> F::Output {
        match &self.0 {
            None => operation.await,
            Some(keyring) => KEYRING.scope(Arc::clone(keyring), operation).await,
        }
    }
}

/// Seals the values of one tenant; without encryption, leaves them plain.
#[derive(Debug, Clone, Default)]
pub(in crate::db) struct Sealer(Option<Arc<DataKey>>);

/// The value of a column of JSON: an object, or a sealed one, which is a JSON string.
#[derive(Serialize)]
#[serde(untagged)]
pub(in crate::db) enum JsonCell<'a> {
    /// The object.
    Plain(&'a Map<String, Value>),
    /// The sealed text.
    Sealed(String),
}

impl Sealer {
    /// Returns whether values are sealed.
    pub(in crate::db) fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Returns whether a stored text is as this sealer would write it.
    pub(in crate::db) fn has_sealed(&self, text: &str) -> bool {
        let Some(key) = &self.0 else {
            return !is_sealed(text);
        };
        id_of_text(text) == Some(key.id)
    }

    /// Returns whether stored bytes are as this sealer would write them.
    pub(in crate::db) fn has_sealed_bytes(&self, sealed: Option<&[u8]>) -> bool {
        match (&self.0, sealed) {
            (Some(key), Some(sealed)) => id_of(sealed) == Some(key.id),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        }
    }

    /// Seals a text.
    pub(in crate::db) fn seal<I: ToString>(&self, cell: &ColumnRef<'_, I>, text: String) -> DbResult<String> {
        match &self.0 {
            None => Ok(text),
            Some(key) => {
                let sealed = key.seal(&cell.associated_data(), text.as_bytes())?;
                let mut output = String::with_capacity(PREFIX.len() + sealed.len() / 3 * 4 + 4);
                output.push_str(PREFIX);
                STANDARD_NO_PAD.encode_string(&sealed, &mut output);
                Ok(output)
            }
        }
    }

    /// Seals a text, if there is one.
    pub(in crate::db) fn seal_some<I: ToString>(
        &self,
        cell: &ColumnRef<'_, I>,
        text: Option<String>,
    ) -> DbResult<Option<String>> {
        text.map(|text| self.seal(cell, text)).transpose()
    }

    /// Encodes a value as JSON text and seals the text.
    pub(in crate::db) fn encode<T: Serialize + ?Sized, I: ToString>(
        &self,
        cell: &ColumnRef<'_, I>,
        value: &T,
    ) -> DbResult<String> {
        self.seal(cell, encode(value)?)
    }

    /// Returns the value of a column of JSON that holds `object`.
    pub(in crate::db) fn json<'a, I: ToString>(
        &self,
        cell: &ColumnRef<'_, I>,
        object: &'a Map<String, Value>,
    ) -> DbResult<JsonCell<'a>> {
        match self.is_on() {
            false => Ok(JsonCell::Plain(object)),
            true => Ok(JsonCell::Sealed(self.encode(cell, object)?)),
        }
    }

    /// Seals bytes; none without encryption.
    pub(in crate::db) fn seal_bytes<I: ToString>(
        &self,
        cell: &ColumnRef<'_, I>,
        bytes: &[u8],
    ) -> DbResult<Option<Vec<u8>>> {
        let sealed = self.0.as_ref().map(|key| key.seal(&cell.associated_data(), bytes));
        sealed.transpose()
    }
}

/// Returns whether a text of a column is sealed. In columns of JSON it is in quotes.
pub(in crate::db) fn is_sealed(text: &str) -> bool {
    text.strip_prefix('"').unwrap_or(text).starts_with(PREFIX)
}

/// Returns the bytes of a sealed text; none if it is none.
fn sealed_bytes(text: &str) -> Option<Vec<u8>> {
    let text = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'))
        .unwrap_or(text);
    STANDARD_NO_PAD.decode(text.strip_prefix(PREFIX)?).ok()
}

/// Returns the id of the data key of a sealed text, without decoding the rest; none if the text is not sealed.
fn id_of_text(text: &str) -> Option<Uuid> {
    // 24 digits are 18 bytes.
    let digits = text.strip_prefix('"').unwrap_or(text).strip_prefix(PREFIX)?.get(..24)?;
    id_of(&STANDARD_NO_PAD.decode(digits).ok()?)
}

/// Returns the id of the data key of sealed bytes.
fn id_of(bytes: &[u8]) -> Option<Uuid> {
    Uuid::from_slice(bytes.get(..ID_LEN)?).ok()
}

/// Returns the plain text of a column.
///
/// # Errors
/// [`DbError::Sealed`] when this server does not have the key, and [`DbError::Corrupt`] when the value was changed, or when
/// its key was destroyed: what remains of a deleted tenant must not block others.
pub(in crate::db) fn open<'t, I: ToString>(cell: &ColumnRef<'_, I>, text: &'t str) -> DbResult<Cow<'t, str>> {
    if !is_sealed(text) {
        return Ok(Cow::Borrowed(text));
    }
    let bytes = sealed_bytes(text).ok_or_else(|| cell.corrupt())?;
    let plain = String::from_utf8(open_bytes(cell, bytes)?);
    plain.map(Cow::Owned).map_err(|_| cell.corrupt())
}

/// Returns the plain bytes of a column of sealed bytes.
///
/// # Errors
/// As [`open`].
pub(in crate::db) fn open_bytes<I: ToString>(cell: &ColumnRef<'_, I>, mut bytes: Vec<u8>) -> DbResult<Vec<u8>> {
    let id = id_of(&bytes).ok_or_else(|| cell.corrupt())?;
    let key = KEYRING.try_with(|keyring| keyring.of_id(id)).ok().flatten();
    let key = key.ok_or_else(|| match KEYRING.try_with(|keyring| keyring.is_destroyed(id)) {
        Ok(true) => cell.corrupt(),
        Ok(false) | Err(_) => cell.sealed(),
    })?;
    let associated_data = cell.associated_data();
    let plain = decrypt(&key.key_for(&associated_data)?, &associated_data, &mut bytes[ID_LEN..])
        .ok_or_else(|| cell.corrupt())?;
    let end = ID_LEN + NONCE_LEN + plain.len();
    bytes.truncate(end);
    bytes.drain(..ID_LEN + NONCE_LEN);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: ColumnRef<'_, i64> = ColumnRef {
        table: "runs",
        column: "request",
        id: &7,
    };

    fn keyring_with(key: &Arc<DataKey>) -> Arc<Keyring> {
        let masters = MasterKeys::read(&format!("m:{}", STANDARD_NO_PAD.encode([1; KEY_LEN]))).expect("a key");
        let keyring = Keyring::new(masters);
        keyring.add(key);
        Arc::new(keyring)
    }

    fn data_key(byte: u8) -> Arc<DataKey> {
        let bytes = KeyBytes::new(Box::new([byte; KEY_LEN]));
        Arc::new(DataKey::new(Uuid::from_u128(byte.into()), &bytes))
    }

    #[test]
    fn a_sealed_text_shows_nothing_and_is_opened_only_in_its_place() {
        let key = data_key(1);
        let sealer = Sealer(Some(Arc::clone(&key)));
        let sealed = sealer.seal(&CELL, "{\"secret\":1}".to_owned()).expect("sealed");
        assert!(is_sealed(&sealed) && !sealed.contains("secret"), "{sealed}");
        let again = sealer.seal(&CELL, "{\"secret\":1}".to_owned()).expect("sealed");
        assert_ne!(sealed, again, "the nonce is random");
        let keyring = keyring_with(&key);
        KEYRING.sync_scope(keyring, || {
            assert_eq!(open(&CELL, &sealed).expect("opened"), "{\"secret\":1}");
            assert_eq!(open(&CELL, &format!("\"{sealed}\"")).expect("opened"), "{\"secret\":1}");
            let elsewhere = [
                ColumnRef {
                    table: "events",
                    ..CELL
                },
                ColumnRef {
                    column: "error",
                    ..CELL
                },
                ColumnRef { id: &8, ..CELL },
            ];
            for place in elsewhere {
                let refused = open(&place, &sealed);
                assert!(matches!(refused, Err(DbError::Corrupt { .. })), "{refused:?}");
            }
        });
    }

    #[test]
    fn a_changed_text_is_refused() {
        let key = data_key(1);
        let sealed = Sealer(Some(Arc::clone(&key)))
            .seal(&CELL, "{}".to_owned())
            .expect("sealed");
        KEYRING.sync_scope(keyring_with(&key), || {
            let mut bytes = sealed_bytes(&sealed).expect("bytes");
            for at in ID_LEN..bytes.len() {
                bytes[at] ^= 1;
                let refused = open_bytes(&CELL, bytes.clone());
                assert!(matches!(refused, Err(DbError::Corrupt { .. })), "{refused:?}");
                bytes[at] ^= 1;
            }
            for end in 0..bytes.len() {
                let refused = open_bytes(&CELL, bytes[..end].to_vec());
                assert!(matches!(refused, Err(DbError::Corrupt { .. })), "{refused:?}");
            }
        });
    }

    #[test]
    fn a_text_under_an_unknown_key_is_not_corrupt() {
        let sealed = Sealer(Some(data_key(1))).seal(&CELL, "{}".to_owned()).expect("sealed");
        KEYRING.sync_scope(keyring_with(&data_key(2)), || {
            let refused = open(&CELL, &sealed);
            assert!(matches!(refused, Err(DbError::Sealed(_))), "{refused:?}");
        });
        assert!(
            matches!(open(&CELL, &sealed), Err(DbError::Sealed(_))),
            "no keys at all"
        );
    }

    #[test]
    fn without_encryption_texts_stay_as_they_are() {
        let sealer = Sealer::default();
        assert_eq!(sealer.seal(&CELL, "{}".to_owned()).expect("plain"), "{}");
        assert_eq!(open(&CELL, "{}").expect("plain"), "{}");
        assert_eq!(sealer.seal_bytes(&CELL, b"x").expect("plain"), None);
    }

    #[test]
    fn keys_are_not_printed() {
        let key = data_key(0x41);
        let printed = format!("{key:?} {:?}", Sealer(Some(Arc::clone(&key))));
        assert!(!printed.contains("AAAA") && !printed.contains("65, 65"), "{printed}");
    }
}
