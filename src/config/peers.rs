//! The section of the configuration file about other servers, and what makes no sense in it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::sections::seconds;
use super::webhooks::host_problems;
use crate::definition::check::address_problem;
use crate::definition::{Diagnostic, FieldPath, Headers, check_headers};

/// `[peers]`: which other servers may do the work of subagents, and how patiently they are waited for. Servers that
/// definitions in files name may be anywhere; the rules are for those that clients bring.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PeersSection {
    /// Whether any loopback or private address may be named.
    pub allow_private: bool,
    /// Host names and addresses inside that may be named.
    pub private_hosts: Vec<String>,
    /// When not empty, only these hosts may be named; `*.example.org` means all below it.
    pub allowed_hosts: Vec<String>,
    /// Whether only `https` may be used.
    pub require_https: bool,
    /// Headers of requests to other servers, by the scheme, host and port of their address, whoever names them. They may hold
    /// secrets and are never printed.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, BTreeMap<String, String>>"))]
    pub headers: BTreeMap<String, Headers>,
    /// For how long a server may be out of reach before work there is given up that is waited for, in seconds.
    pub patience_s: f64,
    /// For how long a server may be out of reach before a background task there is given up, in seconds.
    pub background_patience_s: f64,
    /// How long after its beginning a background task on another server is looked at first, in seconds; the pauses grow while
    /// nothing changes.
    pub first_look_s: f64,
    /// The longest pause between two looks, in seconds.
    pub longest_look_s: f64,
}

impl Default for PeersSection {
    fn default() -> Self {
        Self {
            allow_private: false,
            private_hosts: vec![],
            allowed_hosts: vec![],
            require_https: false,
            headers: BTreeMap::new(),
            patience_s: 300.0,
            background_patience_s: 86_400.0,
            first_look_s: 1.0,
            longest_look_s: 30.0,
        }
    }
}

impl PeersSection {
    /// [`PeersSection::patience_s`] as a duration.
    pub fn patience(&self) -> Duration {
        seconds(self.patience_s)
    }

    /// [`PeersSection::background_patience_s`] as a duration.
    pub fn background_patience(&self) -> Duration {
        seconds(self.background_patience_s)
    }

    /// [`PeersSection::first_look_s`] as a duration.
    pub fn first_look(&self) -> Duration {
        seconds(self.first_look_s)
    }

    /// [`PeersSection::longest_look_s`] as a duration; never shorter than the first.
    pub fn longest_look(&self) -> Duration {
        seconds(self.longest_look_s).max(self.first_look())
    }

    /// What makes no sense in the headers.
    pub(super) fn check_headers(&self) -> Vec<Diagnostic> {
        let section = FieldPath::of(["peers", "headers"]);
        let mut findings = vec![];
        for (address, headers) in &self.headers {
            let field = section.then(address);
            let is_origin = |url: url::Url| url.origin().ascii_serialization() == *address;
            if address_problem(address).is_some() || !url::Url::parse(address).is_ok_and(is_origin) {
                let message = "must be the scheme, host and port of a server, as in `https://agents.example.org`";
                findings.push(Diagnostic::error(field.clone(), message));
            }
            findings.extend(check_headers(&field, headers));
        }
        findings
    }

    /// What makes no sense: the field, and why.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = host_problems(&self.private_hosts, &self.allowed_hosts);
        let times = [
            ("patience_s", self.patience_s, 0.0, 86_400.0),
            (
                "background_patience_s",
                self.background_patience_s,
                0.0,
                30.0 * 86_400.0,
            ),
            ("first_look_s", self.first_look_s, 0.01, 3_600.0),
            ("longest_look_s", self.longest_look_s, 0.01, 3_600.0),
        ];
        for (field, given, least, most) in times {
            if !(given > least && given <= most) {
                problems.push((vec![field], format!("must be more than {least} and at most {most}")));
            }
        }
        problems
    }
}
