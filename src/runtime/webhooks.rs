//! Webhooks: reports to other servers that a run has ended.
//!
//! A report is stored in the transaction that ends the run, so it is not lost; see [`crate::db::deliveries`]. It is
//! sent until it arrives or its attempts are used up. If the server crashes after a report arrives and before the
//! arrival is stored, the report is sent again. The header `webhook-id` stays the same, so receivers can detect the
//! repetition.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, HeaderMap, USER_AGENT};
use reqwest::{Client, StatusCode, redirect};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Map, Value};

use crate::domain::Invalid;
use crate::domain::access::Ownership;
use crate::domain::backoff::Backoff;
use crate::domain::delivery::{Delivery, MASKED_ADDRESS, is_masked};
use crate::domain::identity::Tenant;
use crate::domain::run::{Run, RunRequest};
use crate::domain::time::Timestamp;
use crate::domain::trace::SpanContext;
use crate::net;
use crate::net::ssrf::{AddressRules, SPECIAL_ADDRESS, SsrfGuard};

mod signature;

use signature::SigningKey;

/// The settings of webhooks.
#[derive(Debug, Clone)]
pub struct WebhookSettings {
    /// True to allow all loopback and private addresses.
    pub allow_private: bool,
    /// Names and addresses in private networks that are allowed.
    pub private_hosts: Vec<String>,
    /// The only names and addresses that are allowed, unless the list is empty; `*.example.org` means all below it.
    pub allowed_hosts: Vec<String>,
    /// True to allow only `https`.
    pub require_https: bool,
    /// Headers of every report.
    pub headers: BTreeMap<String, SecretString>,
    /// The secret that signs reports. Without it reports are not signed.
    pub secret: Option<SecretString>,
    /// The secrets of single tenants, instead of that one.
    pub tenant_secrets: BTreeMap<Tenant, SecretString>,
    /// The timeout of one attempt.
    pub timeout: Duration,
    /// The most attempts for one report.
    pub attempts: u32,
    /// The pause after the first failure; it triples with each further one.
    pub retry: Duration,
    /// The time for which a finished delivery is kept.
    pub keep: Duration,
}

/// A report about the end of a run.
#[derive(Debug)]
pub struct Report<'a> {
    /// The run as it ended.
    pub run: &'a Run,
    /// The time at which the run began; none if it never began.
    pub began: Option<Timestamp>,
    /// The time at which the run ended.
    pub ended: Timestamp,
    /// The values of the thread at that time.
    pub values: Map<String, Value>,
}

/// Renders a report as the JSON object that is sent.
pub type Render = fn(&Report<'_>) -> Map<String, Value>;

/// The longest time between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(6 * 3600);
/// The field of a report that says when it was sent.
const SENT_AT: &str = "webhook_sent_at";

/// The sender of reports about runs that have ended.
pub struct Webhooks {
    client: Client,
    rules: Arc<AddressRules>,
    headers: HeaderMap,
    key: Option<SigningKey>,
    /// The keys of single tenants.
    tenant_keys: BTreeMap<Tenant, SigningKey>,
    render: Render,
    pub(super) timeout: Duration,
    pub(super) attempts: u32,
    retry: Duration,
    pub(super) keep: Duration,
}

impl Webhooks {
    /// Creates the sender.
    ///
    /// # Errors
    /// Returns an error when a header or the secret is invalid, or the system offers no TLS.
    pub fn new(settings: WebhookSettings, render: Render) -> Result<Self, Box<dyn Error + Send + Sync>> {
        let rules = Arc::new(AddressRules {
            allow_private: settings.allow_private,
            private_hosts: settings.private_hosts,
            allowed_hosts: settings.allowed_hosts,
            require_https: settings.require_https,
        });
        // A proxy or a redirect would bypass the rules about addresses.
        let client = net::client_builder()
            .redirect(redirect::Policy::none())
            .no_proxy()
            .dns_resolver(Arc::new(SsrfGuard(Arc::clone(&rules))))
            .connect_timeout(settings.timeout)
            .timeout(settings.timeout)
            .pool_max_idle_per_host(0)
            .build()?;
        let key = settings
            .secret
            .as_ref()
            .map(|secret| SigningKey::new(secret).ok_or("the secret is empty or not Base64"));
        let mut tenant_keys = BTreeMap::new();
        for (tenant, secret) in settings.tenant_secrets {
            let key = SigningKey::new(&secret)
                .ok_or_else(|| format!("`webhook_secret` of `[tenants.{tenant}]` is empty or not Base64"))?;
            tenant_keys.insert(tenant, key);
        }
        let headers = settings.headers.iter();
        let headers = headers.map(|(name, value)| (name.as_str(), value.expose_secret()));
        Ok(Self {
            client,
            rules,
            headers: net::secret_headers(headers, &[])?,
            key: key.transpose()?,
            tenant_keys,
            render,
            timeout: settings.timeout,
            attempts: settings.attempts,
            retry: settings.retry,
            keep: settings.keep,
        })
    }

    /// Checks the webhook address of a request, if the request has one.
    pub(super) fn check(&self, request: &RunRequest) -> Result<(), Invalid> {
        match request.webhook() {
            Some(url) if is_masked(url) => Err(Invalid::new("webhook", MASKED_ADDRESS)),
            Some(url) => self.check_address(url).map_err(with_setting),
            None => Ok(()),
        }
    }

    /// Checks the address of a webhook.
    ///
    /// # Errors
    /// Returns the reason why nothing may be sent to the address.
    pub(super) fn check_address(&self, url: &str) -> Result<(), Invalid> {
        self.rules.check("webhook", url).map(drop)
    }

    /// Returns the delivery for a run that has ended, if its request has a webhook. It belongs to the owner of the
    /// thread.
    pub(super) fn delivery(&self, report: &Report<'_>, ownership: &Ownership) -> Option<Delivery> {
        let url = report.run.request.webhook()?;
        let body = Value::Object((self.render)(report)).to_string();
        let run = report.run;
        let delivery = Delivery::new(run.id, run.thread, ownership.clone(), url, body, report.ended);
        Some(delivery)
    }

    /// Sends a report once, and returns the status with which the address answered.
    pub(super) async fn post(
        &self,
        delivery: &Delivery,
        now: Timestamp,
        trace: Option<&SpanContext>,
    ) -> Result<StatusCode, String> {
        let url = self
            .rules
            .check("webhook", &delivery.url)
            .map_err(|invalid| format!("the address {}", invalid.reason))?;
        let mut body: Map<String, Value> =
            serde_json::from_str(&delivery.body).map_err(|_| "the report cannot be read".to_owned())?;
        body.insert(SENT_AT.to_owned(), now.to_string().into());
        let body = Value::Object(body).to_string();
        let id = delivery.id.to_string();
        let second = now.millis() / 1000;
        let mut request = self
            .client
            .post(url)
            .header(CONTENT_TYPE, "application/json")
            .header(USER_AGENT, concat!("adjutant/", env!("CARGO_PKG_VERSION")))
            .headers(self.headers.clone())
            .header("webhook-id", &id)
            .header("webhook-timestamp", second);
        for (name, value) in trace.into_iter().flat_map(SpanContext::headers) {
            if !self.headers.contains_key(name) {
                request = request.header(name, value);
            }
        }
        let tenant_key = self.tenant_keys.get(&delivery.ownership.tenant);
        if let Some(key) = tenant_key.or(self.key.as_ref()) {
            request = request.header("webhook-signature", key.sign(&id, second, &body));
        }
        let response = request
            .body(body)
            .send()
            .await
            .map_err(|error| describe_error(&error))?;
        // The body of the response is not needed, so it is not read.
        Ok(response.status())
    }

    /// Returns the pause after this number of failures.
    pub(super) fn pause(&self, failures: u32) -> Duration {
        let backoff = Backoff {
            first: self.retry,
            factor: 3.0,
            longest: LONGEST_PAUSE,
        };
        backoff.pause(failures)
    }
}

/// Names the setting that allows a special address in the refusal of one.
fn with_setting(refused: Invalid) -> Invalid {
    if refused.reason != SPECIAL_ADDRESS {
        return refused;
    }
    let setting = "`private_hosts` in the section [webhooks] of the server's configuration";
    Invalid::new(refused.field, format!("{SPECIAL_ADDRESS}; {setting} allows one"))
}

/// Returns the reason why a report could not be sent.
fn describe_error(error: &reqwest::Error) -> String {
    let reason = net::describe_error(error);
    match error.is_timeout() {
        true => reason,
        false => format!("it could not be sent: {reason}"),
    }
}
