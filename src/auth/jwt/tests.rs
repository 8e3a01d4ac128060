use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    Ed25519KeyPair, KeyPair,
};
use serde_json::json;

use super::verification_key::{JwksKey, WrittenKey};
use super::*;

fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn read(key: Value) -> Option<JwksKey> {
    serde_json::from_value::<WrittenKey>(key).ok()?.read()
}

fn elliptic(algorithm: &'static EcdsaSigningAlgorithm) -> EcdsaKeyPair {
    let random = SystemRandom::new();
    let document = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("a key");
    EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random).expect("a key")
}

fn elliptic_jwk(pair: &EcdsaKeyPair, curve: &str) -> Value {
    let point = &pair.public_key().as_ref()[1..];
    let half = point.len() / 2;
    json!({"kty": "EC", "crv": curve, "x": encode(&point[..half]), "y": encode(&point[half..])})
}

#[test]
fn signatures_on_both_curves_and_with_ed25519_are_verified() {
    let random = SystemRandom::new();
    let small = elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING);
    let large = elliptic(&ECDSA_P384_SHA384_FIXED_SIGNING);
    let edwards = Ed25519KeyPair::generate_pkcs8(&random).expect("a key");
    let edwards = Ed25519KeyPair::from_pkcs8(edwards.as_ref()).expect("a key");
    let edwards_jwk = json!({"kty": "OKP", "crv": "Ed25519", "x": encode(edwards.public_key().as_ref())});
    let signed = b"header.claims";
    let cases = [
        (
            elliptic_jwk(&small, "P-256"),
            JwtAlgorithm::Es256,
            small.sign(&random, signed).expect("a signature").as_ref().to_vec(),
        ),
        (
            elliptic_jwk(&large, "P-384"),
            JwtAlgorithm::Es384,
            large.sign(&random, signed).expect("a signature").as_ref().to_vec(),
        ),
        (edwards_jwk, JwtAlgorithm::EdDsa, edwards.sign(signed).as_ref().to_vec()),
    ];
    for (jwk, algorithm, signature) in cases {
        let key = read(jwk).expect("a key").key;
        assert!(verify(&key, algorithm, signed, &signature), "{algorithm:?}");
        assert!(!verify(&key, algorithm, b"header.other", &signature), "{algorithm:?}");
        assert!(!verify(&key, algorithm, signed, &[]), "{algorithm:?}");
        for other in JwtAlgorithm::ALL.into_iter().filter(|other| *other != algorithm) {
            assert!(!verify(&key, other, signed, &signature), "{algorithm:?} as {other:?}");
        }
    }
}

#[test]
fn a_key_of_a_set_is_for_its_purpose_algorithm_and_id() {
    let jwk = elliptic_jwk(&elliptic(&ECDSA_P256_SHA256_FIXED_SIGNING), "P-256");
    let with = |more: Value| {
        let mut jwk = jwk.clone();
        for (name, value) in more.as_object().expect("an object") {
            jwk[name] = value.clone();
        }
        read(jwk)
    };
    let key = with(json!({"kid": "a", "alg": "ES256", "use": "sig"})).expect("a key");
    assert!(key.suits(Some("a"), JwtAlgorithm::Es256));
    assert!(key.suits(None, JwtAlgorithm::Es256));
    assert!(!key.suits(Some("b"), JwtAlgorithm::Es256));
    assert!(!key.suits(Some("a"), JwtAlgorithm::Rs256));
    assert!(!key.suits(Some("a"), JwtAlgorithm::Hs256));
    assert!(with(json!({"use": "enc"})).is_none());
    assert!(with(json!({"alg": "HS256"})).is_none());
    assert!(with(json!({"alg": "none"})).is_none());
    assert!(with(json!({"crv": "P-384"})).is_none());
    assert!(read(json!({"kty": "oct", "k": encode("secret")})).is_none());
}

#[test]
fn a_text_of_another_form_is_no_token() {
    let header = encode(json!({"alg": "RS256"}).to_string());
    let claims = encode(json!({"iss": "x"}).to_string());
    assert!(ParsedToken::read(&format!("{header}.{claims}.{}", encode("s"))).is_some());
    for text in [
        String::new(),
        ".".to_owned(),
        "..".to_owned(),
        format!("{header}.{claims}"),
        format!("{header}.{claims}.{}.", encode("s")),
        format!("{header}.{claims}.s="),
        format!("{header}.{}.{}", encode("[]"), encode("s")),
        format!("{}.{claims}.{}", encode("{}"), encode("s")),
        format!("{header}.{}.{}", "a".repeat(MAX_TOKEN_BYTES), encode("s")),
    ] {
        assert!(ParsedToken::read(&text).is_none(), "{text}");
    }
}
