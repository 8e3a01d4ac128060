//! The `[peers]` section of the configuration file, and its validation.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use super::sections::seconds;
use super::webhooks::host_problems;
use crate::definition::words::{address_problem, timeout_problem};
use crate::definition::{Diagnostic, FieldPath, Headers, check_headers};

/// The shortest and the longest pause between two polls of a task on another server, in seconds.
const MIN_LOOK_S: f64 = 0.05;
const MAX_LOOK_S: f64 = 3600.0;

/// `[peers]`: rules for other servers that run subagents, and how long to wait for them. Servers that definitions in
/// files name may have any address; the rules apply to those that clients name.
#[derive(Debug, Clone, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct PeersSection {
    /// True if loopback and private addresses are allowed.
    pub allow_private: bool,
    /// Host names and private addresses that are allowed.
    pub private_hosts: Vec<String>,
    /// If not empty, only these hosts are allowed; `*.example.org` means all below it.
    pub allowed_hosts: Vec<String>,
    /// True if only `https` is allowed.
    pub require_https: bool,
    /// Headers of requests to other servers, by scheme, host and port of their address, whoever named them. They may
    /// contain secrets and are never printed.
    #[cfg_attr(test, schemars(with = "BTreeMap<String, BTreeMap<String, String>>"))]
    pub headers: BTreeMap<String, Headers>,
    /// The time for which a server may be unreachable before a task that a run waits for fails, in seconds.
    pub patience_s: f64,
    /// The time for which a server may be unreachable before a background task on it fails, in seconds.
    pub background_patience_s: f64,
    /// The time after which a background task on another server is polled first, in seconds; at least 0.05. The pauses
    /// grow while nothing changes.
    pub first_look_s: f64,
    /// The maximum pause between two polls, in seconds; at least 0.05.
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
    /// Returns [`PeersSection::patience_s`] as a duration.
    pub fn patience(&self) -> Duration {
        seconds(self.patience_s)
    }

    /// Returns [`PeersSection::background_patience_s`] as a duration.
    pub fn background_patience(&self) -> Duration {
        seconds(self.background_patience_s)
    }

    /// Returns [`PeersSection::first_look_s`] as a duration.
    pub fn first_look(&self) -> Duration {
        seconds(self.first_look_s)
    }

    /// Returns [`PeersSection::longest_look_s`] as a duration, at least [`PeersSection::first_look`].
    pub fn longest_look(&self) -> Duration {
        seconds(self.longest_look_s).max(self.first_look())
    }

    /// Validates the headers.
    pub(super) fn check_headers(&self) -> Vec<Diagnostic> {
        Self::header_problems(&FieldPath::of(["peers", "headers"]), &self.headers)
    }

    /// Validates headers by the address of a server; `section` is their field.
    pub(super) fn header_problems(section: &FieldPath, all: &BTreeMap<String, Headers>) -> Vec<Diagnostic> {
        let mut findings = vec![];
        for (address, headers) in all {
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

    /// Returns the invalid fields, each with the reason.
    pub(super) fn problems(&self) -> Vec<(Vec<&str>, String)> {
        let mut problems = host_problems(&self.private_hosts, &self.allowed_hosts);
        for (field, given, most) in [
            ("patience_s", self.patience_s, 86_400.0),
            ("background_patience_s", self.background_patience_s, 30.0 * 86_400.0),
        ] {
            if let Some(problem) = timeout_problem(given, most) {
                problems.push((vec![field], problem));
            }
        }
        for (field, given) in [
            ("first_look_s", self.first_look_s),
            ("longest_look_s", self.longest_look_s),
        ] {
            if !(MIN_LOOK_S..=MAX_LOOK_S).contains(&given) {
                problems.push((
                    vec![field],
                    format!("must be from {MIN_LOOK_S} to {MAX_LOOK_S} seconds"),
                ));
            }
        }
        problems
    }
}
