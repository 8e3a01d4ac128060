//! The `[auth]` section of the configuration file, and its validation.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::header::HeaderName;
use serde::Deserialize;
use serde_json::{Map, Value};
use url::Url;

use super::policies::PoliciesSection;
use super::sections::{KeySource, seconds};
use crate::definition::words::{address_problem, is_word, timeout_problem};
use crate::definition::{Diagnostic, FieldPath};
use crate::domain::Invalid;
use crate::domain::access::SharingRule;
use crate::domain::api_key::check_scopes;
use crate::domain::filter::MetadataFilter;
use crate::domain::identity::{Tenant, UserId, UserRole};
use crate::domain::jwt::JwtAlgorithm;
use crate::domain::loopback::is_protected;
use crate::domain::time::Timestamp;

/// The largest tolerated difference of clocks, in seconds.
const MAX_LEEWAY_S: f64 = 300.0;
/// The longest timeout of the hook, in seconds.
const MAX_HOOK_TIMEOUT_S: f64 = 30.0;
/// The most headers that the hook gets.
const MAX_HOOK_HEADERS: usize = 32;

/// `[auth]`: the ways in which callers prove who they are. Without this section every caller may do everything.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct AuthSection {
    /// True if the API keys of the database are accepted, which `adjutant keys` and `POST /auth/keys` create.
    pub api_keys: bool,
    /// The API keys of the configuration.
    #[cfg_attr(test, schemars(skip))]
    pub keys: Vec<AuthKeySection>,
    /// The issuers of tokens.
    #[cfg_attr(test, schemars(skip))]
    pub jwt: Vec<JwtSection>,
    /// The HTTP hook.
    #[cfg_attr(test, schemars(skip))]
    pub hook: Option<HookSection>,
    /// The metadata by which owners share resources with their tenant.
    #[cfg_attr(test, schemars(skip))]
    pub sharing: SharingSections,
    /// Access policies.
    #[cfg_attr(test, schemars(skip))]
    pub policies: PoliciesSection,
}

/// `[auth.sharing]`: what owners share with their tenant.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SharingSections {
    /// Threads, with everything on them.
    pub threads: SharingSection,
    /// Assistants.
    pub assistants: SharingSection,
}

/// `[auth.sharing.threads]` and `[auth.sharing.assistants]`: the metadata by which owners share them with their tenant.
#[derive(Debug, Clone, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct SharingSection {
    /// The metadata of what everybody in the tenant may read.
    pub read: Option<Map<String, Value>>,
    /// The metadata of what everybody in the tenant may read and change, but not delete, and start runs on.
    pub write: Option<Map<String, Value>>,
}

impl SharingSection {
    /// Returns the rule.
    ///
    /// # Errors
    /// Names the field of a filter that is too large, or that is empty and would match everything.
    pub fn rule(&self) -> Result<SharingRule, Invalid> {
        let filter = |field: &str, wanted: &Option<Map<String, Value>>| match wanted {
            None => Ok(None),
            Some(wanted) if wanted.is_empty() => Err(Invalid::new(
                field,
                "must name at least one key: an empty filter would share everything",
            )),
            Some(wanted) => MetadataFilter::new(field, wanted.clone()).map(Some),
        };
        Ok(SharingRule {
            read: filter("read", &self.read)?,
            write: filter("write", &self.write)?,
        })
    }
}

impl Default for AuthSection {
    fn default() -> Self {
        Self {
            api_keys: true,
            keys: vec![],
            jwt: vec![],
            hook: None,
            sharing: SharingSections::default(),
            policies: PoliciesSection::default(),
        }
    }
}

/// `[[auth.keys]]`: an API key in the configuration, for a server whose database has no keys yet.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AuthKeySection {
    /// The name, for logs and the audit.
    pub name: String,
    /// The environment variable with the key: at least 32 random characters.
    #[serde(default)]
    pub key_env: Option<String>,
    /// The file with the key, relative to the configuration file.
    #[serde(default)]
    pub key_file: Option<PathBuf>,
    /// The tenant of the caller; `default` if absent.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The user; the name of the key if absent.
    #[serde(default)]
    pub user: Option<String>,
    /// The roles: `admin`, `developer`, `operator`, `user`, `approver`.
    #[serde(default = "user_role")]
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    pub roles: Vec<UserRole>,
    /// The permissions that limit what the roles allow, such as `threads:read`; no limit if absent.
    #[serde(default)]
    pub scopes: Option<Vec<String>>,
    /// The time from which the key is refused, as in `2027-01-31T00:00:00Z`; never if absent.
    #[serde(default)]
    pub expires_at: Option<String>,
}

/// `[[auth.jwt]]`: an issuer of JSON Web Tokens, such as an OpenID Connect provider.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct JwtSection {
    /// The issuer, exactly as its tokens have it in `iss`.
    pub issuer: String,
    /// The audiences, one of which a token must have in `aud`.
    pub audience: Vec<String>,
    /// The address of the issuer's keys; if absent, it is read from `{issuer}/.well-known/openid-configuration`.
    #[serde(default)]
    pub jwks_url: Option<String>,
    /// The allowed algorithms: `RS256`, `RS384`, `RS512`, `PS256`, `PS384`, `PS512`, `ES256`, `ES384`, `EdDSA`, and
    /// `HS256`, which needs a secret.
    #[serde(default = "usual_algorithms")]
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    pub algorithms: Vec<JwtAlgorithm>,
    /// The environment variable with the secret of `HS256`: at least 32 random characters.
    #[serde(default)]
    pub secret_env: Option<String>,
    /// The file with the secret of `HS256`, relative to the configuration file.
    #[serde(default)]
    pub secret_file: Option<PathBuf>,
    /// The tolerated difference between the clocks of the issuer and of this server, in seconds.
    #[serde(default = "usual_leeway")]
    pub leeway_s: f64,
    /// The claim with the user. A claim is named by its name or by a path with dots, as in `realm_access.roles`.
    #[serde(default = "user_claim")]
    pub user_claim: String,
    /// The claim with the tenant; a token without it is refused.
    #[serde(default)]
    pub tenant_claim: Option<String>,
    /// The tenant of all users of the issuer, if no claim has it; `default` if absent.
    #[serde(default)]
    pub tenant: Option<String>,
    /// The claim with the roles: a list, or a text with words.
    #[serde(default)]
    pub roles_claim: Option<String>,
    /// The words of that claim, each with the role that it means. If absent, the words are the names of roles. Words
    /// that mean no role are ignored.
    #[serde(default)]
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub role_words: BTreeMap<String, UserRole>,
    /// The roles of a token that gives none; if empty, such a token is refused.
    #[serde(default = "user_role")]
    #[cfg_attr(test, schemars(with = "Vec<String>"))]
    pub default_roles: Vec<UserRole>,
    /// The claim with the name for people.
    #[serde(default = "name_claim")]
    pub display_name_claim: String,
    /// The further claims that agents and tools see.
    #[serde(default)]
    pub claims: Vec<String>,
}

/// `[auth.hook]`: a service of yours that gets the headers of a request and answers who sends it.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct HookSection {
    /// The address to which the question is posted.
    pub url: String,
    /// The timeout of a question, in seconds.
    #[serde(default = "usual_timeout")]
    pub timeout_s: f64,
    /// The headers that the service gets. A request that has none of them is refused without a question.
    #[serde(default = "usual_headers")]
    pub headers: Vec<String>,
    /// The tenant of identities for which the service names none; `default` if absent.
    #[serde(default)]
    pub tenant: Option<String>,
}

fn user_role() -> Vec<UserRole> {
    vec![UserRole::User]
}

fn usual_algorithms() -> Vec<JwtAlgorithm> {
    vec![JwtAlgorithm::Rs256, JwtAlgorithm::Es256]
}

fn usual_leeway() -> f64 {
    60.0
}

fn user_claim() -> String {
    "sub".to_owned()
}

fn name_claim() -> String {
    "name".to_owned()
}

fn usual_timeout() -> f64 {
    5.0
}

fn usual_headers() -> Vec<String> {
    ["authorization", "x-api-key", "cookie"].map(str::to_owned).to_vec()
}

fn tenant_of(name: Option<&String>) -> Result<Tenant, Invalid> {
    name.map_or_else(|| Ok(Tenant::default()), |name| Tenant::new("tenant", name))
}

impl AuthSection {
    /// Makes the paths of files relative to the folder of the configuration file.
    pub(super) fn settle_files(&mut self, beside: &Path) {
        let keys = self.keys.iter_mut().map(|key| &mut key.key_file);
        let secrets = self.jwt.iter_mut().map(|issuer| &mut issuer.secret_file);
        for file in keys.chain(secrets).flatten() {
            *file = beside.join(&*file);
        }
    }

    /// Validates the section.
    pub(super) fn check(&self) -> Vec<Diagnostic> {
        let section = FieldPath::of(["auth"]);
        let mut findings = vec![];
        if !self.api_keys && self.keys.is_empty() && self.jwt.is_empty() && self.hook.is_none() {
            let message =
                "accepts nobody: without `api_keys` it needs `[[auth.keys]]`, `[[auth.jwt]]` or `[auth.hook]`";
            findings.push(Diagnostic::error(section.clone(), message));
        }
        let mut names = BTreeSet::new();
        for (at, key) in self.keys.iter().enumerate() {
            let field = section.then("keys").then(at);
            if !names.insert(&key.name) {
                let message = format!("`{}` is the name of another key, too", key.name);
                findings.push(Diagnostic::error(field.then("name"), message));
            }
            findings.extend(key.check().into_iter().map(|finding| finding.under(&field)));
        }
        let mut issuers = BTreeSet::new();
        for (at, issuer) in self.jwt.iter().enumerate() {
            let field = section.then("jwt").then(at);
            if !issuers.insert(&issuer.issuer) {
                let message = "is given twice; list all audiences and algorithms of an issuer in one entry";
                findings.push(Diagnostic::error(field.then("issuer"), message));
            }
            findings.extend(issuer.check().into_iter().map(|finding| finding.under(&field)));
        }
        if let Some(hook) = &self.hook {
            let field = section.then("hook");
            findings.extend(hook.check().into_iter().map(|finding| finding.under(&field)));
        }
        for (name, rule) in [
            ("threads", &self.sharing.threads),
            ("assistants", &self.sharing.assistants),
        ] {
            if let Err(invalid) = rule.rule() {
                let field = section.then("sharing").then(name).then(invalid.field.as_str());
                findings.push(Diagnostic::error(field, invalid.reason));
            }
        }
        findings
    }
}

fn error(field: &str, message: impl Into<String>) -> Diagnostic {
    Diagnostic::error(FieldPath::of([field]), message)
}

/// Adds the finding of a failed check of a field.
fn add_invalid<T>(findings: &mut Vec<Diagnostic>, field: &str, checked: Result<T, Invalid>) {
    if let Err(invalid) = checked {
        findings.push(error(field, invalid.reason));
    }
}

/// Adds a finding unless a variable has a name.
fn check_variable(findings: &mut Vec<Diagnostic>, field: &str, variable: Option<&String>) {
    if variable.is_some_and(|name| !is_word(name, 256, "")) {
        findings.push(error(field, "must be the name of an environment variable"));
    }
}

impl AuthKeySection {
    /// Returns the source of the key.
    pub fn key(&self) -> KeySource {
        KeySource::of(self.key_env.as_ref(), self.key_file.as_ref(), None)
    }

    /// Returns the tenant.
    ///
    /// # Errors
    /// States the rule of names; a loaded configuration keeps it.
    pub fn tenant(&self) -> Result<Tenant, Invalid> {
        tenant_of(self.tenant.as_ref())
    }

    /// Returns the user.
    ///
    /// # Errors
    /// States the rule of identities; a loaded configuration keeps it.
    pub fn user(&self) -> Result<UserId, Invalid> {
        UserId::new("user", self.user.as_ref().unwrap_or(&self.name))
    }

    /// Returns the time from which the key is refused.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at.as_deref().and_then(Timestamp::read)
    }

    fn check(&self) -> Vec<Diagnostic> {
        let mut findings = vec![];
        if !is_word(&self.name, 64, ".") {
            findings.push(error("name", "must be 1 to 64 letters, digits, `_`, `-` or `.`"));
        }
        if self.key_env.is_some() == self.key_file.is_some() {
            findings.push(error("name", "must have a `key_env` or a `key_file`, and not both"));
        }
        check_variable(&mut findings, "key_env", self.key_env.as_ref());
        add_invalid(&mut findings, "tenant", self.tenant());
        add_invalid(&mut findings, "user", self.user());
        if self.roles.is_empty() {
            findings.push(error("roles", "must have at least one role"));
        }
        if let Some(scopes) = &self.scopes {
            add_invalid(&mut findings, "scopes", check_scopes("scopes", scopes));
        }
        if self.expires_at.is_some() && self.expires_at().is_none() {
            findings.push(error("expires_at", "must be a time, as in `2027-01-31T00:00:00Z`"));
        }
        findings
    }
}

impl JwtSection {
    /// Returns the source of the secret.
    pub fn key(&self) -> KeySource {
        KeySource::of(self.secret_env.as_ref(), self.secret_file.as_ref(), None)
    }

    /// Returns whether there is a source of a secret.
    pub fn has_secret(&self) -> bool {
        self.secret_env.is_some() || self.secret_file.is_some()
    }

    /// Returns [`JwtSection::leeway_s`] as a duration.
    pub fn leeway(&self) -> Duration {
        seconds(self.leeway_s)
    }

    /// Returns the tenant of users for which no claim has one.
    ///
    /// # Errors
    /// States the rule of names; a loaded configuration keeps it.
    pub fn tenant(&self) -> Result<Tenant, Invalid> {
        tenant_of(self.tenant.as_ref())
    }

    fn check(&self) -> Vec<Diagnostic> {
        let mut findings = vec![];
        self.check_addresses(&mut findings);
        if self.audience.is_empty() || self.audience.iter().any(|audience| audience.trim().is_empty()) {
            let message = "must name at least one audience: a token that was issued for another service must not be \
                           accepted here";
            findings.push(error("audience", message));
        }
        let is_symmetric = self.algorithms.iter().any(|algorithm| algorithm.is_symmetric());
        if self.algorithms.is_empty() {
            findings.push(error("algorithms", "must have at least one algorithm"));
        }
        if is_symmetric && self.secret_env.is_some() == self.secret_file.is_some() {
            findings.push(error(
                "algorithms",
                "`HS256` needs a `secret_env` or a `secret_file`, and not both",
            ));
        }
        if !is_symmetric && self.has_secret() {
            let field = if self.secret_env.is_some() {
                "secret_env"
            } else {
                "secret_file"
            };
            findings.push(error(field, "is for `HS256` only, which is not in `algorithms`"));
        }
        check_variable(&mut findings, "secret_env", self.secret_env.as_ref());
        if !(self.leeway_s >= 0.0 && self.leeway_s <= MAX_LEEWAY_S) {
            findings.push(error("leeway_s", format!("must be from 0 to {MAX_LEEWAY_S} seconds")));
        }
        add_invalid(&mut findings, "tenant", self.tenant());
        if self.tenant.is_some() && self.tenant_claim.is_some() {
            findings.push(error("tenant", "and `tenant_claim` cannot both be given"));
        }
        if !self.role_words.is_empty() && self.roles_claim.is_none() {
            findings.push(error("role_words", "needs `roles_claim`, the claim with these words"));
        }
        let claims = [
            ("user_claim", Some(&self.user_claim)),
            ("tenant_claim", self.tenant_claim.as_ref()),
            ("roles_claim", self.roles_claim.as_ref()),
            ("display_name_claim", Some(&self.display_name_claim)),
        ];
        for (field, claim) in claims {
            if claim.is_some_and(|claim| claim.trim().is_empty()) {
                findings.push(error(field, "must be the name of a claim"));
            }
        }
        findings
    }

    /// Checks the addresses from which keys come. Keys decide about access, so they must not come over a connection
    /// that others can change.
    fn check_addresses(&self, findings: &mut Vec<Diagnostic>) {
        if self.algorithms.iter().all(|algorithm| algorithm.is_symmetric()) {
            if self.issuer.is_empty() {
                findings.push(error("issuer", "must be the `iss` of the tokens"));
            }
            return;
        }
        let address = match &self.jwks_url {
            Some(url) => ("jwks_url", url),
            None => ("issuer", &self.issuer),
        };
        if let Some(problem) = address_problem(address.1) {
            let hint = if address.0 == "issuer" {
                "; else give `jwks_url`"
            } else {
                ""
            };
            findings.push(error(address.0, format!("{problem}{hint}")));
        } else if !Url::parse(address.1).is_ok_and(|url| is_protected(&url)) {
            let message = "must begin with https://, unless it is on this machine: who could change the keys on their \
                           way could log in as anybody";
            findings.push(error(address.0, message));
        }
    }
}

impl HookSection {
    /// Returns [`HookSection::timeout_s`] as a duration.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// Returns the tenant of identities for which the service names none.
    ///
    /// # Errors
    /// States the rule of names; a loaded configuration keeps it.
    pub fn tenant(&self) -> Result<Tenant, Invalid> {
        tenant_of(self.tenant.as_ref())
    }

    fn check(&self) -> Vec<Diagnostic> {
        let mut findings = vec![];
        if let Some(problem) = address_problem(&self.url) {
            findings.push(error("url", problem));
        }
        if let Some(problem) = timeout_problem(self.timeout_s, MAX_HOOK_TIMEOUT_S) {
            findings.push(error("timeout_s", problem));
        }
        if self.headers.is_empty() || self.headers.len() > MAX_HOOK_HEADERS {
            findings.push(error("headers", format!("must name 1 to {MAX_HOOK_HEADERS} headers")));
        }
        for (at, name) in self.headers.iter().enumerate() {
            if name.parse::<HeaderName>().is_err() {
                let field = FieldPath::of(["headers"]).then(at);
                findings.push(Diagnostic::error(
                    field,
                    format!("`{name}` must be the name of a header"),
                ));
            }
        }
        add_invalid(&mut findings, "tenant", self.tenant());
        findings
    }
}
