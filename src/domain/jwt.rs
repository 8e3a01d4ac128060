//! The algorithms with which JSON Web Tokens are signed.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::Invalid;

/// A signature algorithm (RFC 7518, section 3.1; RFC 8037). `none` is not among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum JwtAlgorithm {
    /// RSA, PKCS #1 v1.5, SHA-256.
    #[serde(rename = "RS256")]
    Rs256,
    /// RSA, PKCS #1 v1.5, SHA-384.
    #[serde(rename = "RS384")]
    Rs384,
    /// RSA, PKCS #1 v1.5, SHA-512.
    #[serde(rename = "RS512")]
    Rs512,
    /// RSA, PSS, SHA-256.
    #[serde(rename = "PS256")]
    Ps256,
    /// RSA, PSS, SHA-384.
    #[serde(rename = "PS384")]
    Ps384,
    /// RSA, PSS, SHA-512.
    #[serde(rename = "PS512")]
    Ps512,
    /// ECDSA, P-256, SHA-256.
    #[serde(rename = "ES256")]
    Es256,
    /// ECDSA, P-384, SHA-384.
    #[serde(rename = "ES384")]
    Es384,
    /// Ed25519.
    #[serde(rename = "EdDSA")]
    EdDsa,
    /// HMAC with SHA-256: whoever can check such a token can also make one.
    #[serde(rename = "HS256")]
    Hs256,
}

impl JwtAlgorithm {
    /// All algorithms.
    pub const ALL: [Self; 10] = [
        Self::Rs256,
        Self::Rs384,
        Self::Rs512,
        Self::Ps256,
        Self::Ps384,
        Self::Ps512,
        Self::Es256,
        Self::Es384,
        Self::EdDsa,
        Self::Hs256,
    ];

    /// Returns the word of the algorithm in the header of a token.
    pub fn word(self) -> &'static str {
        match self {
            Self::Rs256 => "RS256",
            Self::Rs384 => "RS384",
            Self::Rs512 => "RS512",
            Self::Ps256 => "PS256",
            Self::Ps384 => "PS384",
            Self::Ps512 => "PS512",
            Self::Es256 => "ES256",
            Self::Es384 => "ES384",
            Self::EdDsa => "EdDSA",
            Self::Hs256 => "HS256",
        }
    }

    /// Returns whether the same secret signs and verifies.
    pub fn is_symmetric(self) -> bool {
        self == Self::Hs256
    }
}

impl FromStr for JwtAlgorithm {
    type Err = Invalid;

    fn from_str(word: &str) -> Result<Self, Invalid> {
        let found = Self::ALL.into_iter().find(|algorithm| algorithm.word() == word);
        found.ok_or_else(|| {
            let words = Self::ALL.map(Self::word).join(", ");
            Invalid::new("algorithms", format!("must be one of {words}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn none_is_no_algorithm_in_any_spelling() {
        for word in ["none", "None", "NONE", "nOnE", "", "rs256", "ES512"] {
            assert!(word.parse::<JwtAlgorithm>().is_err(), "{word}");
        }
    }
}
