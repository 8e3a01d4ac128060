//! The public keys of issuers, and the check of signatures.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ED25519, EcdsaVerificationAlgorithm, RSA_PKCS1_2048_8192_SHA256,
    RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256, RSA_PSS_2048_8192_SHA384,
    RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, UnparsedPublicKey,
};
use serde::Deserialize;

use crate::domain::jwt::JwtAlgorithm;

/// The largest number of an RSA key, in bytes: 8192 bits.
const MAX_RSA_BYTES: usize = 1024;

/// A public key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VerificationKey {
    /// RSA: modulus and exponent.
    Rsa {
        /// The modulus.
        n: Vec<u8>,
        /// The exponent.
        e: Vec<u8>,
    },
    /// A point on P-256, uncompressed.
    P256(Vec<u8>),
    /// A point on P-384, uncompressed.
    P384(Vec<u8>),
    /// An Ed25519 key.
    Ed25519(Vec<u8>),
}

/// A key of a key set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct JwksKey {
    /// The id, which tokens name.
    pub(super) kid: Option<String>,
    /// The only algorithm of the key, if the set names one.
    algorithm: Option<JwtAlgorithm>,
    /// The key.
    pub(super) key: VerificationKey,
}

/// A key as a key set writes it (RFC 7517).
#[derive(Deserialize)]
pub(super) struct WrittenKey {
    kty: String,
    kid: Option<String>,
    alg: Option<String>,
    #[serde(rename = "use")]
    purpose: Option<String>,
    crv: Option<String>,
    n: Option<String>,
    e: Option<String>,
    x: Option<String>,
    y: Option<String>,
}

impl WrittenKey {
    /// Reads the key; `None` if it is not for signatures, or of a kind or algorithm that is not known here. Secrets
    /// (`oct`) are such a kind: what an issuer publishes is no secret.
    pub(super) fn read(self) -> Option<JwksKey> {
        if self.purpose.is_some_and(|purpose| purpose != "sig") {
            return None;
        }
        let algorithm = match self.alg {
            None => None,
            Some(word) => Some(
                word.parse::<JwtAlgorithm>()
                    .ok()
                    .filter(|found| !found.is_symmetric())?,
            ),
        };
        let key = match self.kty.as_str() {
            "RSA" => VerificationKey::Rsa {
                n: number(&self.n?)?,
                e: number(&self.e?)?,
            },
            "EC" => match self.crv?.as_str() {
                "P-256" => VerificationKey::P256(read_point(&self.x?, &self.y?, 32)?),
                "P-384" => VerificationKey::P384(read_point(&self.x?, &self.y?, 48)?),
                _ => return None,
            },
            "OKP" if self.crv? == "Ed25519" => VerificationKey::Ed25519(coordinate(&self.x?, 32)?),
            _ => return None,
        };
        Some(JwksKey {
            kid: self.kid,
            algorithm,
            key,
        })
    }
}

impl JwksKey {
    /// Returns whether the key may have signed a token with this key id and algorithm.
    pub(super) fn suits(&self, kid: Option<&str>, algorithm: JwtAlgorithm) -> bool {
        let has_id = kid.is_none_or(|kid| self.kid.as_deref() == Some(kid));
        has_id && self.algorithm.is_none_or(|own| own == algorithm) && self.key.is_for(algorithm)
    }
}

impl VerificationKey {
    /// Returns whether the algorithm is one for this kind of key.
    fn is_for(&self, algorithm: JwtAlgorithm) -> bool {
        match algorithm {
            JwtAlgorithm::Rs256
            | JwtAlgorithm::Rs384
            | JwtAlgorithm::Rs512
            | JwtAlgorithm::Ps256
            | JwtAlgorithm::Ps384
            | JwtAlgorithm::Ps512 => matches!(self, Self::Rsa { .. }),
            JwtAlgorithm::Es256 => matches!(self, Self::P256(_)),
            JwtAlgorithm::Es384 => matches!(self, Self::P384(_)),
            JwtAlgorithm::EdDsa => matches!(self, Self::Ed25519(_)),
            JwtAlgorithm::Hs256 => false,
        }
    }
}

fn decode(text: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()
}

/// Reads a number without leading zeros.
fn number(text: &str) -> Option<Vec<u8>> {
    let bytes = decode(text)?;
    let start = bytes.iter().position(|byte| *byte != 0)?;
    let number = bytes.get(start..)?;
    (number.len() <= MAX_RSA_BYTES).then(|| number.to_vec())
}

/// Reads a coordinate, which has a fixed length.
fn coordinate(text: &str, length: usize) -> Option<Vec<u8>> {
    decode(text).filter(|bytes| bytes.len() == length)
}

/// Reads a point: the byte 4 says that both coordinates follow.
fn read_point(x: &str, y: &str, length: usize) -> Option<Vec<u8>> {
    Some([vec![4], coordinate(x, length)?, coordinate(y, length)?].concat())
}

/// Returns whether a signature of these bytes is genuine.
pub(super) fn verify(key: &VerificationKey, algorithm: JwtAlgorithm, signed: &[u8], signature: &[u8]) -> bool {
    if !key.is_for(algorithm) {
        return false;
    }
    match key {
        VerificationKey::Rsa { n, e } => rsa_parameters(algorithm).is_some_and(|parameters| {
            let components = RsaPublicKeyComponents { n, e };
            components.verify(parameters, signed, signature).is_ok()
        }),
        VerificationKey::P256(point) => verify_ecdsa(&ECDSA_P256_SHA256_FIXED, point, signed, signature),
        VerificationKey::P384(point) => verify_ecdsa(&ECDSA_P384_SHA384_FIXED, point, signed, signature),
        VerificationKey::Ed25519(bytes) => UnparsedPublicKey::new(&ED25519, bytes)
            .verify(signed, signature)
            .is_ok(),
    }
}

fn verify_ecdsa(algorithm: &'static EcdsaVerificationAlgorithm, point: &[u8], signed: &[u8], signature: &[u8]) -> bool {
    UnparsedPublicKey::new(algorithm, point)
        .verify(signed, signature)
        .is_ok()
}

fn rsa_parameters(algorithm: JwtAlgorithm) -> Option<&'static RsaParameters> {
    match algorithm {
        JwtAlgorithm::Rs256 => Some(&RSA_PKCS1_2048_8192_SHA256),
        JwtAlgorithm::Rs384 => Some(&RSA_PKCS1_2048_8192_SHA384),
        JwtAlgorithm::Rs512 => Some(&RSA_PKCS1_2048_8192_SHA512),
        JwtAlgorithm::Ps256 => Some(&RSA_PSS_2048_8192_SHA256),
        JwtAlgorithm::Ps384 => Some(&RSA_PSS_2048_8192_SHA384),
        JwtAlgorithm::Ps512 => Some(&RSA_PSS_2048_8192_SHA512),
        JwtAlgorithm::Es256 | JwtAlgorithm::Es384 | JwtAlgorithm::EdDsa | JwtAlgorithm::Hs256 => None,
    }
}
