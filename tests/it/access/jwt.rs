//! JSON Web Tokens of issuers.

use std::time::Duration;

use adjutant::domain::time::{Clock, ManualClock, SystemClock};
use ring::hmac;
use serde_json::{Value, json};

use super::authentication::with_bearer;
use super::issuer::{EllipticKey, Issuer, encode, rsa_jwk, sign_rsa, unsigned};
use crate::support::client::Client;
use crate::support::{TestServer, on_both_engines, without_postgres};

on_both_engines! {
    a_valid_token_names_its_user,
}

without_postgres! {
    a_token_is_refused_after_its_time,
    a_token_with_wrong_claims_is_refused,
    a_token_with_a_wrong_signature_is_refused,
    a_token_signed_with_the_public_key_as_a_secret_is_refused,
    claims_become_tenant_and_roles,
    new_keys_are_fetched_when_a_token_names_one,
    keys_are_kept_while_the_issuer_is_unreachable,
    tokens_of_an_issuer_that_was_never_reached_are_unavailable,
    secrets_sign_tokens_only_where_they_are_configured,
    several_issuers_are_told_apart,
    a_foreign_api_key_beside_a_token_is_ignored,
}

/// The parts of a test: an issuer, a client without credentials, and the clock of the server.
struct Scene {
    issuer: Issuer,
    nobody: Client,
    clock: ManualClock,
}

impl Scene {
    async fn begins(server: &TestServer, more: &str) -> Self {
        let issuer = Issuer::start().await;
        let clock = ManualClock::starting_at(SystemClock.now());
        server.uses_clock(&clock).await;
        let keys = server.is_protected().await;
        server.is_configured_with(&issuer.configuration(more)).await;
        Self {
            issuer,
            nobody: keys.nobody(),
            clock,
        }
    }

    /// Returns the status for a token with these changes of a valid token's claims.
    async fn status(&self, more: Value) -> u16 {
        self.status_of(&self.issuer.token(self.clock.now(), more)).await
    }

    async fn status_of(&self, token: &str) -> u16 {
        with_bearer(&self.nobody, token).await.status
    }

    fn claims(&self) -> Value {
        self.issuer.claims(self.clock.now(), json!({}))
    }
}

async fn a_valid_token_names_its_user(server: TestServer) {
    let scene = Scene::begins(&server, "claims = [\"email\"]").await;
    let more = json!({"name": "Ann", "email": "ann@example.org", "phone": "1"});
    let token = scene.issuer.token(scene.clock.now(), more);
    let caller = with_bearer(&scene.nobody, &token).await.ok();
    assert_eq!(caller["identity"], "ann");
    assert_eq!(caller["display_name"], "Ann");
    assert_eq!(caller["tenant"], "default");
    assert_eq!(caller["roles"], json!(["user"]));
    assert_eq!(caller["credential"], "jwt");
    assert_eq!(caller["claims"], json!({"email": "ann@example.org"}));
    assert_eq!(scene.issuer.fetched(), 1);
    assert_eq!(scene.status(json!({"aud": ["others", "agents"]})).await, 200);
    assert_eq!(scene.issuer.fetched(), 1, "keys are cached");
}

async fn a_token_is_refused_after_its_time(server: TestServer) {
    let scene = Scene::begins(&server, "leeway_s = 30").await;
    let token = scene.issuer.token(scene.clock.now(), json!({}));
    scene.clock.advance(Duration::from_secs(620));
    assert_eq!(scene.status_of(&token).await, 200, "within the leeway");
    scene.clock.advance(Duration::from_secs(15));
    assert_eq!(scene.status_of(&token).await, 401);
}

async fn a_token_with_wrong_claims_is_refused(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    let later = scene.clock.now().0 / 1_000_000 + 3600;
    assert_eq!(scene.status(json!({})).await, 200);
    for wrong in [
        json!({"exp": null}),
        json!({"exp": "tomorrow"}),
        json!({"exp": -1}),
        json!({"aud": "others"}),
        json!({"aud": []}),
        json!({"aud": null}),
        json!({"iss": "https://issuer.example"}),
        json!({"iss": null}),
        json!({"iss": [scene.issuer.base]}),
        json!({"nbf": later}),
        json!({"iat": later}),
        json!({"sub": null}),
        json!({"sub": ""}),
        json!({"sub": 7}),
        json!({"sub": "a\nb"}),
    ] {
        assert_eq!(scene.status(wrong.clone()).await, 401, "{wrong}");
    }
}

async fn a_token_with_a_wrong_signature_is_refused(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    let claims = scene.claims();
    let header = json!({"alg": "RS256", "kid": "rsa-1"});
    let valid = sign_rsa(header.clone(), claims.clone());
    assert_eq!(scene.status_of(&valid).await, 200);
    let signature = valid.rsplit('.').next().expect("a signature");
    let other = EllipticKey::new("rsa-1");
    let admin = scene.issuer.claims(scene.clock.now(), json!({"sub": "root"}));
    let mut wrong = vec![
        format!("{}.", unsigned(&header, &claims)),
        format!("{}.{signature}", unsigned(&header, &admin)),
        other.sign(&claims),
        sign_rsa(json!({"alg": "RS256", "kid": "rsa-1", "crit": ["exp"]}), claims.clone()),
        sign_rsa(json!({"alg": "RS384", "kid": "rsa-1"}), claims.clone()),
        sign_rsa(json!({"alg": "RS256", "kid": "rsa-2"}), claims.clone()),
        sign_rsa(json!({"kid": "rsa-1"}), claims.clone()),
        format!("{valid}."),
        format!("{valid}.{signature}"),
    ];
    for none in ["none", "None", "NONE", ""] {
        let header = json!({"alg": none, "kid": "rsa-1"});
        wrong.push(format!("{}.", unsigned(&header, &claims)));
        wrong.push(format!("{}.{signature}", unsigned(&header, &claims)));
    }
    for token in wrong {
        assert_eq!(scene.status_of(&token).await, 401, "{token}");
    }
}

async fn a_token_signed_with_the_public_key_as_a_secret_is_refused(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    assert_eq!(scene.status(json!({})).await, 200);
    let jwk = rsa_jwk();
    let secrets = [jwk["n"].as_str().expect("a number").to_owned(), jwk.to_string()];
    for secret in secrets {
        let signed = unsigned(&json!({"alg": "HS256", "kid": "rsa-1"}), &scene.claims());
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
        assert_eq!(scene.status_of(&format!("{signed}.{}", encode(tag))).await, 401);
    }
    // A secret that the issuer publishes is none.
    let published = json!({"kty": "oct", "kid": "oct-1", "alg": "HS256", "k": encode("published")});
    scene.issuer.publishes(Some(json!({"keys": [rsa_jwk(), published]})));
    scene.clock.advance(Duration::from_secs(60));
    let signed = unsigned(&json!({"alg": "HS256", "kid": "oct-1"}), &scene.claims());
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, b"published"), signed.as_bytes());
    assert_eq!(scene.status_of(&format!("{signed}.{}", encode(tag))).await, 401);
}

async fn claims_become_tenant_and_roles(server: TestServer) {
    let more = "tenant_claim = \"org\"\nroles_claim = \"realm_access.roles\"\nuser_claim = \"email\"\n\
                default_roles = []\nrole_words = { \"Chiefs\" = \"admin\", \"Staff\" = \"user\" }";
    let scene = Scene::begins(&server, more).await;
    let claims =
        |org: &str, role: &str| json!({"org": org, "email": "ann@acme.org", "realm_access": {"roles": [role, "x"]}});
    let token = scene.issuer.token(scene.clock.now(), claims("acme", "Chiefs"));
    let caller = with_bearer(&scene.nobody, &token).await.ok();
    assert_eq!(caller["identity"], "ann@acme.org");
    assert_eq!(caller["tenant"], "acme");
    assert_eq!(caller["roles"], json!(["admin"]));
    assert_eq!(scene.status(claims("acme", "Staff")).await, 200);
    assert_eq!(
        scene.status(claims("acme", "admin")).await,
        401,
        "words beside the map mean no role"
    );
    assert_eq!(
        scene.status(claims("*", "Chiefs")).await,
        401,
        "not the name of a tenant"
    );
    assert_eq!(
        scene
            .status(json!({"email": "a", "realm_access": {"roles": ["Chiefs"]}}))
            .await,
        401
    );
}

async fn new_keys_are_fetched_when_a_token_names_one(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    assert_eq!(scene.status(json!({})).await, 200);
    let new = EllipticKey::new("new");
    scene.issuer.publishes(Some(json!({"keys": [new.jwk()]})));
    let token = new.sign(&scene.claims());
    assert_eq!(scene.status_of(&token).await, 401, "the keys were fetched a moment ago");
    assert_eq!(scene.issuer.fetched(), 1);
    scene.clock.advance(Duration::from_secs(30));
    assert_eq!(scene.status_of(&token).await, 200);
    assert_eq!(scene.issuer.fetched(), 2);
    assert_eq!(scene.status(json!({})).await, 401, "the old key was withdrawn");
    for _ in 0..5 {
        let made_up = EllipticKey::new("made-up").sign(&scene.claims());
        assert_eq!(scene.status_of(&made_up).await, 401);
    }
    assert_eq!(scene.issuer.fetched(), 2, "made-up keys do not flood the issuer");
}

async fn keys_are_kept_while_the_issuer_is_unreachable(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    assert_eq!(scene.status(json!({})).await, 200);
    scene.issuer.publishes(None);
    scene.clock.advance(Duration::from_secs(3600));
    assert_eq!(scene.status(json!({})).await, 200);
    assert_eq!(scene.issuer.fetched(), 2);
    scene.clock.advance(Duration::from_secs(24 * 3600));
    assert_eq!(
        scene.status(json!({})).await,
        503,
        "a day without the issuer is too long"
    );
    scene.issuer.publishes(Some(json!({"keys": [rsa_jwk()]})));
    scene.clock.advance(Duration::from_secs(30));
    assert_eq!(scene.status(json!({})).await, 200);
}

async fn tokens_of_an_issuer_that_was_never_reached_are_unavailable(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    scene.issuer.publishes(None);
    let refused = with_bearer(&scene.nobody, &scene.issuer.token(scene.clock.now(), json!({}))).await;
    assert_eq!(refused.status, 503);
    assert_eq!(refused.body["code"], "authentication_unavailable");
    assert_eq!(refused.header("retry-after"), Some("5"));
    scene
        .issuer
        .publishes(Some(json!({"keys": [{"kty": "RSA", "n": 1}, "x", {"kty": "new"}]})));
    scene.clock.advance(Duration::from_secs(30));
    assert_eq!(scene.status(json!({})).await, 503, "a set without a usable key");
}

async fn secrets_sign_tokens_only_where_they_are_configured(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    server.file_is_written("jwt-secret", "a-secret-of-the-issuer-0123456789abcdef\n");
    server
        .is_configured_with(
            "[[auth.jwt]]\nissuer = \"internal\"\naudience = [\"agents\"]\nalgorithms = [\"HS256\"]\n\
             secret_file = \"jwt-secret\"",
        )
        .await;
    let sign = |issuer: &str, secret: &str| {
        let claims = scene.issuer.claims(scene.clock.now(), json!({"iss": issuer}));
        let signed = unsigned(&json!({"alg": "HS256"}), &claims);
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes()), signed.as_bytes());
        format!("{signed}.{}", encode(tag))
    };
    let secret = "a-secret-of-the-issuer-0123456789abcdef";
    assert_eq!(scene.status_of(&sign("internal", secret)).await, 200);
    assert_eq!(scene.status_of(&sign("internal", "another")).await, 401);
    assert_eq!(scene.status_of(&sign(&scene.issuer.base, secret)).await, 401);
    let rsa = sign_rsa(
        json!({"alg": "RS256", "kid": "rsa-1"}),
        scene.issuer.claims(scene.clock.now(), json!({"iss": "internal"})),
    );
    assert_eq!(scene.status_of(&rsa).await, 401);
}

async fn several_issuers_are_told_apart(server: TestServer) {
    let scene = Scene::begins(&server, "tenant = \"first\"").await;
    let other = Issuer::start().await;
    let key = EllipticKey::new("other");
    other.publishes(Some(json!({"keys": [key.jwk()]})));
    server
        .is_configured_with(&other.configuration("tenant = \"second\""))
        .await;
    let now = scene.clock.now();
    let first = with_bearer(&scene.nobody, &scene.issuer.token(now, json!({})))
        .await
        .ok();
    assert_eq!(first["tenant"], "first");
    let second = with_bearer(&scene.nobody, &key.sign(&other.claims(now, json!({}))))
        .await
        .ok();
    assert_eq!(second["tenant"], "second");
    // The key of one issuer does not sign for another.
    assert_eq!(scene.status_of(&key.sign(&scene.claims())).await, 401);
    assert_eq!(scene.status(json!({"iss": other.base})).await, 401);
}

async fn a_foreign_api_key_beside_a_token_is_ignored(server: TestServer) {
    let scene = Scene::begins(&server, "").await;
    let token = scene.issuer.token(scene.clock.now(), json!({}));
    let foreign = scene.nobody.with_key("lsv2_pt_0123");
    assert_eq!(with_bearer(&foreign, &token).await.status, 200);
    let own = scene
        .nobody
        .with_key(&format!("adj_0011223344556677_{}", "0".repeat(64)));
    assert_eq!(
        with_bearer(&own, &token).await.status,
        401,
        "a wrong key of this server is refused"
    );
}
