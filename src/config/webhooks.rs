//! The `[webhooks]` section of the configuration file, and its validation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use secrecy::SecretString;
use serde::Deserialize;

use super::sections::{KeySource, seconds};
use crate::definition::header_name_problem;
use crate::definition::words::timeout_problem;

/// The shortest and the longest pause after the first failed attempt, in seconds.
const MIN_RETRY_S: f64 = 0.1;
const MAX_RETRY_S: f64 = 3600.0;

/// `[webhooks]`: the delivery of webhooks, and the addresses they may have.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WebhooksSection {
    /// True if loopback and private addresses are allowed.
    pub allow_private: bool,
    /// Host names and private addresses that are allowed.
    pub private_hosts: Vec<String>,
    /// If not empty, only these hosts are allowed; `*.example.org` means all below it.
    pub allowed_hosts: Vec<String>,
    /// True if only `https` is allowed.
    pub require_https: bool,
    /// Headers of every delivery.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, String>"))]
    pub headers: BTreeMap<String, SecretString>,
    /// The environment variable with the secret that signs deliveries.
    pub secret_env: Option<String>,
    /// The file with the secret, relative to the configuration file.
    pub secret_file: Option<PathBuf>,
    /// The secret itself.
    #[cfg_attr(test, schemars(with = "Option<String>"))]
    pub secret: Option<SecretString>,
    /// The timeout of one attempt, in seconds.
    pub timeout_s: f64,
    /// The maximum number of attempts.
    pub attempts: u32,
    /// The pause after the first failed attempt, in seconds; at least 0.1. It triples with each further one.
    pub retry_s: f64,
    /// The time for which a finished delivery is kept, in days.
    pub keep_days: f64,
}

impl Default for WebhooksSection {
    fn default() -> Self {
        Self {
            allow_private: false,
            private_hosts: vec![],
            allowed_hosts: vec![],
            require_https: false,
            headers: BTreeMap::new(),
            secret_env: None,
            secret_file: None,
            secret: None,
            timeout_s: 10.0,
            attempts: 8,
            retry_s: 5.0,
            keep_days: 7.0,
        }
    }
}

impl WebhooksSection {
    /// Returns the source of the secret.
    pub fn key(&self) -> KeySource {
        KeySource::of(
            self.secret_env.as_ref(),
            self.secret_file.as_ref(),
            self.secret.as_ref(),
        )
    }

    /// Returns [`WebhooksSection::timeout_s`] as a duration.
    pub fn timeout(&self) -> Duration {
        seconds(self.timeout_s)
    }

    /// Returns [`WebhooksSection::retry_s`] as a duration.
    pub fn retry(&self) -> Duration {
        seconds(self.retry_s)
    }

    /// Returns [`WebhooksSection::keep_days`] as a duration.
    pub fn keep(&self) -> Duration {
        seconds(self.keep_days * 86_400.0)
    }

    /// Returns the invalid fields, each with the reason.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = vec![];
        let mut add = |field: &[&'static str], reason: &str| problems.push((field.to_vec(), reason.to_owned()));
        if !(MIN_RETRY_S..=MAX_RETRY_S).contains(&self.retry_s) {
            add(
                &["retry_s"],
                &format!("must be from {MIN_RETRY_S} to {MAX_RETRY_S} seconds"),
            );
        }
        if let Some(problem) = timeout_problem(self.timeout_s, 600.0) {
            add(&["timeout_s"], &problem);
        }
        if !(self.keep_days > 0.0 && self.keep_days <= 3650.0) {
            add(&["keep_days"], "must be more than 0 and at most 3650");
        }
        if !(1..=20).contains(&self.attempts) {
            add(&["attempts"], "must be a whole number from 1 to 20");
        }
        let given = [
            self.secret_env.is_some(),
            self.secret_file.is_some(),
            self.secret.is_some(),
        ];
        if given.into_iter().filter(|given| *given).count() > 1 {
            add(
                &["secret"],
                "only one of `secret_env`, `secret_file` and `secret` may be given",
            );
        }
        problems.extend(host_problems(&self.private_hosts, &self.allowed_hosts));
        for name in self.headers.keys() {
            if let Some(reason) = header_name_problem(name) {
                problems.push((vec!["headers", name], reason.to_owned()));
            }
        }
        problems
    }
}

/// Returns the invalid entries of the host lists, each with the reason.
pub(super) fn host_problems(private_hosts: &[String], allowed_hosts: &[String]) -> Vec<(Vec<&'static str>, String)> {
    let mut problems = vec![];
    for (field, hosts) in [("private_hosts", private_hosts), ("allowed_hosts", allowed_hosts)] {
        if hosts
            .iter()
            .any(|host| host.is_empty() || host.contains(['/', '@', ' ']))
        {
            problems.push((
                vec![field],
                "must hold names or addresses of hosts, without scheme, port and path".to_owned(),
            ));
        }
    }
    if private_hosts.iter().any(|host| host.contains('*')) {
        let reason = "must name each host: patterns are not allowed for private hosts";
        problems.push((vec!["private_hosts"], reason.to_owned()));
    }
    problems
}
