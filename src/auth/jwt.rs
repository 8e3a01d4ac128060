//! JSON Web Tokens (RFC 7519) of OpenID Connect issuers.
//!
//! A token is read once, strictly: three parts, an algorithm that is configured, no `crit` header. The key decides how
//! a signature is checked, never the token: an RSA key of an issuer checks RSA signatures only, so a token that is
//! "signed" by HMAC with the public key is refused, and `none` is no algorithm at all. The claims are looked at after
//! that.
//!
//! Times are those of the server's [`Clock`], and the signatures are checked by `ring`, which the TLS of the server
//! uses already. That is why this is not a library for tokens: these use the time of the machine, and bring a second
//! implementation of cryptography along.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use reqwest::Url;
use ring::hmac;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::AuthError;
use crate::domain::identity::{Credential, Identity, Tenant, UserId, UserRole};
use crate::domain::jwt::JwtAlgorithm;
use crate::domain::time::{Clock, Timestamp};
use crate::net;

mod claims;
mod jwks;
mod verification_key;

pub use claims::ClaimRules;
use jwks::IssuerKeys;
use verification_key::verify;

/// The longest token, in bytes.
const MAX_TOKEN_BYTES: usize = 16 * 1024;

/// The settings of an issuer.
#[derive(Clone)]
pub struct IssuerSettings {
    /// The issuer: the `iss` of its tokens.
    pub issuer: String,
    /// The audiences, one of which a token must name.
    pub audiences: Vec<String>,
    /// The address of the key set; discovered from the issuer if absent.
    pub jwks_url: Option<Url>,
    /// The allowed algorithms.
    pub algorithms: Vec<JwtAlgorithm>,
    /// The secret of HS256.
    pub secret: Option<SecretString>,
    /// The tolerated difference of clocks.
    pub leeway: Duration,
    /// The meaning of the claims.
    pub claims: ClaimRules,
}

/// An issuer of tokens.
pub(super) struct Issuer {
    settings: IssuerSettings,
    keys: IssuerKeys,
    clock: Arc<dyn Clock>,
}

/// Fetches the key set of an issuer and returns the number of its keys for signatures that are known here.
///
/// # Errors
/// A text for the operator: the issuer cannot be reached, or has no such keys.
pub async fn count_issuer_keys(settings: &IssuerSettings, clock: Arc<dyn Clock>) -> Result<usize, String> {
    let keys = IssuerKeys::new(&settings.issuer, settings.jwks_url.clone(), clock);
    keys.map_err(|error| net::describe_error(&error))?.count().await
}

/// The header of a token.
#[derive(Deserialize)]
struct TokenHeader {
    alg: String,
    kid: Option<String>,
    crit: Option<Value>,
}

/// A token that was read. Nothing in it is proved before [`Issuer::verify`].
pub(super) struct ParsedToken<'t> {
    header: TokenHeader,
    claims: Map<String, Value>,
    /// The part that is signed.
    signed: &'t str,
    signature: Vec<u8>,
}

impl<'t> ParsedToken<'t> {
    /// Reads a token in the compact form; `None` if the text is none.
    pub(super) fn read(text: &'t str) -> Option<Self> {
        if text.len() > MAX_TOKEN_BYTES {
            return None;
        }
        let end_of_signed = text.rfind('.')?;
        let signed = text.get(..end_of_signed)?;
        let signature = decode(text.get(end_of_signed + 1..)?)?;
        let dot = signed.find('.')?;
        let header = serde_json::from_slice(&decode(signed.get(..dot)?)?).ok()?;
        let claims = serde_json::from_slice(&decode(signed.get(dot + 1..)?)?).ok()?;
        Some(Self {
            header,
            claims,
            signed,
            signature,
        })
    }

    /// Returns whether the token names this issuer.
    pub(super) fn is_of(&self, issuer: &str) -> bool {
        self.claims.get("iss").and_then(Value::as_str) == Some(issuer)
    }
}

fn decode(part: &str) -> Option<Vec<u8>> {
    URL_SAFE_NO_PAD.decode(part).ok()
}

impl Issuer {
    /// Creates an issuer, whose keys are fetched when the first token comes.
    ///
    /// # Errors
    /// If the HTTP client cannot be created.
    pub(super) fn new(settings: IssuerSettings, clock: Arc<dyn Clock>) -> Result<Self, reqwest::Error> {
        let keys = IssuerKeys::new(&settings.issuer, settings.jwks_url.clone(), Arc::clone(&clock))?;
        Ok(Self { settings, keys, clock })
    }

    /// Returns the name of the issuer.
    pub(super) fn name(&self) -> &str {
        &self.settings.issuer
    }

    /// Checks a token and returns the identity that it proves.
    ///
    /// # Errors
    /// If the token is not valid, or if the keys of the issuer cannot be fetched.
    pub(super) async fn verify(&self, token: &ParsedToken<'_>) -> Result<Arc<Identity>, AuthError> {
        if token.header.crit.is_some() {
            return Err(AuthError::refused(
                "the token has critical extensions, which are not known here",
            ));
        }
        let algorithm = token.header.alg.parse::<JwtAlgorithm>().ok();
        let algorithm = algorithm.filter(|algorithm| self.settings.algorithms.contains(algorithm));
        let algorithm = algorithm.ok_or_else(|| AuthError::refused("the algorithm of the token is not allowed"))?;
        let is_genuine = match algorithm.is_symmetric() {
            true => self.has_secret_signature(token),
            false => {
                let keys = self.keys.of(token.header.kid.as_deref(), algorithm).await?;
                keys.iter()
                    .any(|key| verify(&key.key, algorithm, token.signed.as_bytes(), &token.signature))
            }
        };
        if !is_genuine {
            return Err(AuthError::refused("the signature of the token is wrong"));
        }
        let expires_at = self.check_claims(&token.claims)?;
        self.identity(&token.claims, expires_at).map(Arc::new)
    }

    /// Returns whether the token is signed with the configured secret. Keys of the issuer are never secrets.
    fn has_secret_signature(&self, token: &ParsedToken<'_>) -> bool {
        self.settings.secret.as_ref().is_some_and(|secret| {
            let key = hmac::Key::new(hmac::HMAC_SHA256, secret.expose_secret().as_bytes());
            hmac::verify(&key, token.signed.as_bytes(), &token.signature).is_ok()
        })
    }

    /// Checks issuer, audience and times. Returns when the token expires.
    fn check_claims(&self, claims: &Map<String, Value>) -> Result<Timestamp, AuthError> {
        if claims.get("iss").and_then(Value::as_str) != Some(self.name()) {
            return Err(AuthError::refused("the token is of another issuer"));
        }
        let is_for_us = |audience: &Value| self.settings.audiences.iter().any(|own| audience.as_str() == Some(own));
        let has_audience = match claims.get("aud") {
            Some(Value::Array(audiences)) => audiences.iter().any(is_for_us),
            Some(audience) => is_for_us(audience),
            None => false,
        };
        if !has_audience {
            return Err(AuthError::refused("the token is for another audience"));
        }
        let now = self.clock.now();
        let leeway = self.settings.leeway;
        let expires_at = time_of(claims, "exp")?.ok_or_else(|| AuthError::refused("the token has no `exp`"))?;
        let expires_at = expires_at.plus(leeway);
        if expires_at <= now {
            return Err(AuthError::refused("the token has expired"));
        }
        for claim in ["nbf", "iat"] {
            if time_of(claims, claim)?.is_some_and(|time| time > now.plus(leeway)) {
                return Err(AuthError::refused("the token is not valid yet"));
            }
        }
        Ok(expires_at)
    }

    /// Maps the claims to an identity.
    fn identity(&self, claims: &Map<String, Value>, expires_at: Timestamp) -> Result<Identity, AuthError> {
        let rules = &self.settings.claims;
        let user = rules.text(claims, &rules.user);
        let user = user.ok_or_else(|| AuthError::refused("the token has no claim with the user"))?;
        let user = UserId::new("user", user).map_err(|_| AuthError::refused("the user in the token is no identity"))?;
        let tenant = match &rules.tenant_claim {
            None => rules.tenant.clone(),
            Some(claim) => {
                let name = rules.text(claims, claim);
                let name = name.ok_or_else(|| AuthError::refused("the token has no claim with the tenant"))?;
                let tenant = Tenant::new("tenant", name);
                tenant.map_err(|_| AuthError::refused("the tenant in the token is no name of a tenant"))?
            }
        };
        let roles: Vec<UserRole> = rules.roles(claims);
        if roles.is_empty() {
            return Err(AuthError::refused(
                "the token gives no role, and there is none by default",
            ));
        }
        Ok(Identity {
            tenant,
            user,
            display_name: rules.display_name(claims),
            roles,
            scopes: None,
            claims: rules.kept_claims(claims),
            credential: Credential::Jwt(self.settings.issuer.clone()),
            expires_at: Some(expires_at),
        })
    }
}

/// Returns a time of a token: seconds since 1970, possibly with a fraction.
fn time_of(claims: &Map<String, Value>, claim: &str) -> Result<Option<Timestamp>, AuthError> {
    let Some(value) = claims.get(claim) else {
        return Ok(None);
    };
    let seconds = value.as_f64().filter(|seconds| *seconds >= 0.0);
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let time = time.ok_or_else(|| AuthError::refused("a time in the token is not a number"))?;
    Ok(Some(Timestamp(0).plus(time)))
}

#[cfg(test)]
mod tests;
