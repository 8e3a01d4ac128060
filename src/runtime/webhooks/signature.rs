//! The signature of a report: a keyed hash over its id, the time and the body, in the form of the Standard Webhooks
//! specification, for which most languages have libraries.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit, Mac};
use secrecy::{ExposeSecret, SecretString};
use sha2::Sha256;

/// The prefix of keys that are written in Base64.
const ENCODED: &str = "whsec_";

/// The key that signs reports.
pub(super) struct SigningKey(Hmac<Sha256>);

impl SigningKey {
    /// Returns the key of this secret: the bytes in Base64 behind `whsec_`, otherwise the characters themselves. None
    /// if the secret is empty.
    pub(super) fn new(secret: &SecretString) -> Option<Self> {
        let text = secret.expose_secret().trim();
        let bytes = match text.strip_prefix(ENCODED) {
            Some(encoded) => STANDARD.decode(encoded).ok()?,
            None => text.as_bytes().to_vec(),
        };
        let keyed = Hmac::new_from_slice(&bytes).ok();
        keyed.filter(|_| !bytes.is_empty()).map(Self)
    }

    /// Returns the signature of a report that is sent at this second.
    pub(super) fn sign(&self, id: &str, second: i64, body: &str) -> String {
        let mut hash = self.0.clone();
        hash.update(format!("{id}.{second}.").as_bytes());
        hash.update(body.as_bytes());
        format!("v1,{}", STANDARD.encode(hash.finalize().into_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(secret: &str) -> Option<SigningKey> {
        SigningKey::new(&SecretString::from(secret))
    }

    /// Checks the example of the specification's reference library.
    #[test]
    fn a_signature_is_that_of_the_specification() {
        let key = key("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").expect("a key");
        let signature = key.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, "{\"test\": 2432232314}");
        assert_eq!(signature, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn a_secret_is_taken_as_it_is_unless_it_says_that_it_is_encoded() {
        let signed = |secret| key(secret).map(|key| key.sign("id", 1, "body"));
        assert_eq!(signed("secret"), signed("whsec_c2VjcmV0"));
        assert_ne!(signed("secret"), signed("c2VjcmV0"));
        assert_eq!(signed(""), None);
        assert_eq!(signed("whsec_"), None);
        assert_eq!(signed("whsec_!"), None);
    }
}
