//! The section of the configuration file about other servers, and what makes no sense in it.

use std::time::Duration;

use serde::Deserialize;

use super::sections::seconds;
use super::webhooks::host_problems;

/// `[peers]`: which other servers may do the work of subagents, and how patiently they are waited for. Servers that
/// definitions in files name may be anywhere; the rules are for those that clients bring.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Peers {
    /// Whether any loopback or private address may be named.
    pub allow_private: bool,
    /// Host names and addresses inside that may be named.
    pub private_hosts: Vec<String>,
    /// When not empty, only these hosts may be named; `*.example.org` means all below it.
    pub allowed_hosts: Vec<String>,
    /// Whether only `https` may be used.
    pub require_https: bool,
    /// For how long a server may be out of reach before work there is given up, in seconds.
    pub patience_s: f64,
}

impl Default for Peers {
    fn default() -> Self {
        Self {
            allow_private: false,
            private_hosts: vec![],
            allowed_hosts: vec![],
            require_https: false,
            patience_s: 300.0,
        }
    }
}

impl Peers {
    /// [`Peers::patience_s`] as a duration.
    pub fn patience(&self) -> Duration {
        seconds(self.patience_s)
    }

    /// What makes no sense: the field, and why.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = host_problems(&self.private_hosts, &self.allowed_hosts);
        if !(self.patience_s > 0.0 && self.patience_s <= 86_400.0) {
            problems.push((vec!["patience_s"], "must be more than 0 and at most 86400".to_owned()));
        }
        problems
    }
}
