//! Secrets for one short purpose: tickets of streams and tokens of calls. The text goes to who may use it, and only its
//! digest is stored.

use secrecy::SecretString;

use super::api_key::SecretDigest;

/// The number of random bytes in a secret.
pub const SECRET_BYTES: usize = 32;

/// A new secret.
pub struct NewSecret {
    /// The text.
    pub text: SecretString,
    /// The digest of the text.
    pub digest: SecretDigest,
}

impl NewSecret {
    /// Creates the secret of these random bytes, whose text begins with `prefix`.
    pub fn of_random(prefix: &str, bytes: [u8; SECRET_BYTES]) -> Self {
        let text = format!("{prefix}{}", hex::encode(bytes));
        let digest = SecretDigest::of(&text);
        let text = SecretString::from(text);
        Self { text, digest }
    }
}

/// Returns the digest of a text that has the form of a secret with this prefix.
pub fn digest_of_secret(prefix: &str, text: &str) -> Option<SecretDigest> {
    let has_form = text.starts_with(prefix) && text.len() == prefix.len() + 2 * SECRET_BYTES;
    has_form.then(|| SecretDigest::of(text))
}
