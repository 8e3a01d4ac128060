//! An OpenID Connect issuer: publishes keys and signs tokens.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use adjutant::domain::time::Timestamp;
use adjutant::shutdown::Shutdown;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::SystemRandom;
use ring::rsa::PublicKeyComponents;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair, RSA_PKCS1_SHA256, RsaKeyPair};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// An RSA key for tests, which protects nothing.
const RSA_KEY: &[u8] = include_bytes!("issuer_key.der");

/// An issuer.
pub(super) struct Issuer {
    /// The address, which is also the name.
    pub(super) base: String,
    state: Arc<IssuerState>,
    around: Shutdown,
}

struct IssuerState {
    base: String,
    /// The published keys; none while the issuer does not answer.
    published: Mutex<Option<Value>>,
    /// The number of times that the keys were fetched.
    fetched: Mutex<usize>,
}

impl Issuer {
    /// Starts an issuer that publishes its RSA key.
    pub(super) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(IssuerState {
            base: base.clone(),
            published: Mutex::new(Some(json!({"keys": [rsa_jwk()]}))),
            fetched: Mutex::new(0),
        });
        let around = Shutdown::new(Duration::from_secs(1));
        let router = Router::new()
            .route("/.well-known/openid-configuration", get(describe))
            .route("/keys", get(keys))
            .with_state(Arc::clone(&state));
        around.spawn("issuer", async move { axum::serve(listener, router).await });
        Self { base, state, around }
    }

    /// Publishes these keys from now on; `None`: the issuer does not answer.
    pub(super) fn publishes(&self, keys: Option<Value>) {
        *self.state.published.lock().unwrap() = keys;
    }

    /// Returns how often the keys were fetched.
    pub(super) fn fetched(&self) -> usize {
        *self.state.fetched.lock().unwrap()
    }

    /// Returns the lines of the configuration for this issuer.
    pub(super) fn configuration(&self, more: &str) -> String {
        format!(
            "[[auth.jwt]]\nissuer = \"{}\"\naudience = [\"agents\"]\n{more}\n",
            self.base
        )
    }

    /// Returns the claims of a valid token, changed by `more`; a claim that is null there is left out.
    pub(super) fn claims(&self, now: Timestamp, more: Value) -> Value {
        let seconds = now.0 / 1_000_000;
        let mut claims = json!({"iss": self.base, "aud": "agents", "sub": "ann", "iat": seconds, "exp": seconds + 600});
        let claims_map = claims.as_object_mut().unwrap();
        for (name, value) in more.as_object().unwrap() {
            claims_map.insert(name.clone(), value.clone());
        }
        claims_map.retain(|_, value| !value.is_null());
        claims
    }

    /// Returns a valid token with these changes of its claims.
    pub(super) fn token(&self, now: Timestamp, more: Value) -> String {
        sign_rsa(json!({"alg": "RS256", "kid": "rsa-1"}), self.claims(now, more))
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        self.around.force();
    }
}

async fn describe(State(state): State<Arc<IssuerState>>) -> Json<Value> {
    Json(json!({"issuer": state.base, "jwks_uri": format!("{}/keys", state.base)}))
}

async fn keys(State(state): State<Arc<IssuerState>>) -> Response {
    *state.fetched.lock().unwrap() += 1;
    match state.published.lock().unwrap().clone() {
        Some(keys) => Json(keys).into_response(),
        None => StatusCode::BAD_GATEWAY.into_response(),
    }
}

/// Encodes a part of a token.
pub(super) fn encode(bytes: impl AsRef<[u8]>) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn rsa_key() -> RsaKeyPair {
    RsaKeyPair::from_pkcs8(RSA_KEY).expect("a key")
}

/// Returns the public RSA key as a key set writes it.
pub(super) fn rsa_jwk() -> Value {
    let public = PublicKeyComponents::<Vec<u8>>::from(rsa_key().public());
    json!({"kty": "RSA", "kid": "rsa-1", "use": "sig", "alg": "RS256", "n": encode(public.n), "e": encode(public.e)})
}

/// Returns the part of a token that is signed.
pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    format!("{}.{}", encode(header.to_string()), encode(claims.to_string()))
}

/// Signs a token with the RSA key.
pub(super) fn sign_rsa(header: Value, claims: Value) -> String {
    let signed = unsigned(&header, &claims);
    let key = rsa_key();
    let mut signature = vec![0; key.public().modulus_len()];
    key.sign(
        &RSA_PKCS1_SHA256,
        &SystemRandom::new(),
        signed.as_bytes(),
        &mut signature,
    )
    .expect("a signature");
    format!("{signed}.{}", encode(signature))
}

/// A key on P-256.
pub(super) struct EllipticKey {
    pair: EcdsaKeyPair,
    kid: &'static str,
}

impl EllipticKey {
    /// Creates a key with this id.
    pub(super) fn new(kid: &'static str) -> Self {
        let random = SystemRandom::new();
        let document = EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &random).expect("a key");
        let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, document.as_ref(), &random);
        let pair = pair.expect("a key");
        Self { pair, kid }
    }

    /// Returns the public key as a key set writes it.
    pub(super) fn jwk(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({"kty": "EC", "crv": "P-256", "kid": self.kid, "x": encode(&point[1..33]), "y": encode(&point[33..])})
    }

    /// Signs a token.
    pub(super) fn sign(&self, claims: &Value) -> String {
        let signed = unsigned(&json!({"alg": "ES256", "kid": self.kid}), claims);
        let signature = self
            .pair
            .sign(&SystemRandom::new(), signed.as_bytes())
            .expect("a signature");
        format!("{signed}.{}", encode(signature))
    }
}
