//! The sections `[quotas]` and `[prices]` of the configuration file, and their validation.

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use serde::Deserialize;

use super::sections::NamedEntries;
use crate::definition::{Diagnostic, FieldPath};
use crate::domain::identity::Tenant;
use crate::domain::quota::{ModelPrice, PriceTable, QuotaRule, Quotas, millionths};

/// The most requests per second, runs, streams and agents that a quota can allow.
const MAX_COUNT: u64 = 1_000_000_000;
/// The most bytes and tokens that a quota can allow.
const MAX_AMOUNT: u64 = 1_000_000_000_000_000_000;
/// The most agents that clients of a tenant define if no quota says otherwise.
const AGENTS_OF_TENANT: u64 = 500;
/// The most money that a quota can allow or a price can be.
const MAX_MONEY: f64 = 1_000_000_000.0;
/// The longest name in the table of prices, in bytes.
const MAX_MODEL_BYTES: usize = 256;

/// `[quotas]`: what API keys, users and tenants may use.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QuotasSection {
    /// The maximum number of failed authentications of one client address in a minute; beyond it, the hook of `[auth]`
    /// is not asked about this address for some seconds. 0 for no limit.
    pub failed_authentications_per_minute: u32,
    /// The quotas of each API key.
    #[cfg_attr(test, schemars(skip))]
    pub per_key: QuotaSection,
    /// The quotas of each user.
    #[cfg_attr(test, schemars(skip))]
    pub per_user: QuotaSection,
    /// The quotas of each tenant.
    #[cfg_attr(test, schemars(skip))]
    pub per_tenant: QuotaSection,
    /// The quotas of single tenants, by name.
    #[cfg_attr(test, schemars(skip))]
    pub tenants: NamedEntries<QuotaSection>,
}

impl Default for QuotasSection {
    fn default() -> Self {
        Self {
            failed_authentications_per_minute: 300,
            per_key: QuotaSection::default(),
            per_user: QuotaSection::default(),
            per_tenant: QuotaSection::default(),
            tenants: NamedEntries::default(),
        }
    }
}

/// `[quotas.per_key]`, `[quotas.per_user]`, `[quotas.per_tenant]`, `[quotas.tenants.NAME]`: the quotas of one API key,
/// one user or one tenant; no limit where a key is absent (but for `defined_agents`) or 0. In `[quotas.tenants.NAME]`, an
/// absent key is that of `[quotas.per_tenant]`.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields, default)]
pub struct QuotaSection {
    /// The maximum number of requests per second, as many of them at once. Each server process counts for itself: several
    /// of them allow as many times more.
    pub requests_per_second: Option<u32>,
    /// The maximum number of runs at work at the same time; further runs wait.
    pub runs_at_work: Option<u64>,
    /// The maximum number of runs that wait in the queue, including delayed ones; beyond it, new runs are refused.
    pub runs_waiting: Option<u64>,
    /// The maximum number of open streams, including waiting requests and WebSockets. Each server process counts for itself:
    /// several of them allow as many times more.
    pub open_streams: Option<u64>,
    /// The maximum size of the stored threads and items of the Store, in bytes; beyond it, requests that store more
    /// are refused. Not for keys.
    pub stored_bytes: Option<u64>,
    /// The maximum number of agents that clients of a tenant define; 500 if absent. The agents of all tenants together have
    /// a limit besides. Not for keys and users.
    pub defined_agents: Option<u64>,
    /// The maximum number of tokens of models on one day (UTC), input and output together; beyond it, no further model
    /// call starts.
    pub tokens_per_day: Option<u64>,
    /// The maximum cost of models on one day (UTC), in the currency of `[prices]`; beyond it, no further model call
    /// starts.
    pub cost_per_day: Option<f64>,
}

/// `[prices."PROVIDER:MODEL"]`: the price of a model, for `cost_per_day` and the cost in the usage of runs. The name is
/// the kind of the provider and the name of the model as its answers give it; a name that ends in `*` is a prefix.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct PriceSection {
    /// The price of a million input tokens.
    pub input: f64,
    /// The price of a million input tokens that the provider has read from its cache; that of other input tokens if
    /// absent.
    #[serde(default)]
    pub cached_input: Option<f64>,
    /// The price of a million input tokens that the provider has written to its cache; that of other input tokens if
    /// absent.
    #[serde(default)]
    pub cache_write: Option<f64>,
    /// The price of a million output tokens.
    pub output: f64,
}

impl PriceSection {
    /// Returns the price.
    fn price(&self) -> ModelPrice {
        ModelPrice {
            input: millionths(self.input),
            cached_input: millionths(self.cached_input.unwrap_or(self.input)),
            cache_write: millionths(self.cache_write.unwrap_or(self.input)),
            output: millionths(self.output),
        }
    }
}

impl QuotaSection {
    /// Returns these quotas, with those of `other` where a key is absent.
    fn or(&self, other: &Self) -> Self {
        Self {
            requests_per_second: self.requests_per_second.or(other.requests_per_second),
            runs_at_work: self.runs_at_work.or(other.runs_at_work),
            runs_waiting: self.runs_waiting.or(other.runs_waiting),
            open_streams: self.open_streams.or(other.open_streams),
            stored_bytes: self.stored_bytes.or(other.stored_bytes),
            defined_agents: self.defined_agents.or(other.defined_agents),
            tokens_per_day: self.tokens_per_day.or(other.tokens_per_day),
            cost_per_day: self.cost_per_day.or(other.cost_per_day),
        }
    }

    /// Returns the rule.
    fn rule(&self) -> QuotaRule {
        let given = |limit: Option<u64>| limit.filter(|limit| *limit > 0);
        QuotaRule {
            requests_per_second: self.requests_per_second.and_then(NonZeroU32::new),
            runs_at_work: given(self.runs_at_work),
            runs_waiting: given(self.runs_waiting),
            open_streams: given(self.open_streams),
            stored_bytes: given(self.stored_bytes),
            defined_agents: given(self.defined_agents),
            tokens_per_day: given(self.tokens_per_day),
            cost_per_day: given(self.cost_per_day.map(millionths)),
        }
    }

    fn check(&self, section: &FieldPath) -> Vec<Diagnostic> {
        let counts = [
            (
                "requests_per_second",
                self.requests_per_second.map(u64::from),
                MAX_COUNT,
            ),
            ("runs_at_work", self.runs_at_work, MAX_COUNT),
            ("runs_waiting", self.runs_waiting, MAX_COUNT),
            ("open_streams", self.open_streams, MAX_COUNT),
            ("stored_bytes", self.stored_bytes, MAX_AMOUNT),
            ("defined_agents", self.defined_agents, MAX_COUNT),
            ("tokens_per_day", self.tokens_per_day, MAX_AMOUNT),
        ];
        let too_large = counts
            .into_iter()
            .filter(|(_, given, most)| given.is_some_and(|given| given > *most));
        let mut findings: Vec<Diagnostic> = too_large
            .map(|(name, _, most)| Diagnostic::error(section.then(name), format!("must be at most {most}")))
            .collect();
        if let Some(problem) = self.cost_per_day.and_then(money_problem) {
            findings.push(Diagnostic::error(section.then("cost_per_day"), problem));
        }
        findings
    }
}

/// Returns what is wrong with an amount of money.
fn money_problem(money: f64) -> Option<String> {
    let is_amount = (0.0..=MAX_MONEY).contains(&money);
    (!is_amount).then(|| format!("must be an amount from 0 to {MAX_MONEY}"))
}

impl QuotasSection {
    /// Returns the quotas with these prices.
    pub fn quotas(&self, prices: &NamedEntries<PriceSection>) -> Quotas {
        let per_tenant = QuotaSection {
            defined_agents: self.per_tenant.defined_agents.or(Some(AGENTS_OF_TENANT)),
            ..self.per_tenant.clone()
        };
        let tenants = self.tenants.iter();
        let prices = prices.iter().map(|(name, section)| (name.clone(), section.price()));
        Quotas {
            per_key: self.per_key.rule(),
            per_user: self.per_user.rule(),
            per_tenant: per_tenant.rule(),
            tenants: tenants
                .map(|(name, section)| (name.clone(), section.or(&per_tenant).rule()))
                .collect(),
            failed_authentications_per_minute: NonZeroU32::new(self.failed_authentications_per_minute),
            prices: PriceTable::new(prices.collect::<BTreeMap<_, _>>()),
        }
    }

    /// Validates the section.
    pub(super) fn check(&self) -> Vec<Diagnostic> {
        let section = FieldPath::of(["quotas"]);
        let mut findings = self.per_key.check(&section.then("per_key"));
        findings.extend(self.per_user.check(&section.then("per_user")));
        findings.extend(self.per_tenant.check(&section.then("per_tenant")));
        if self.per_key.stored_bytes.is_some() {
            let field = section.then("per_key").then("stored_bytes");
            let message = "does not exist: what is stored belongs to a user and a tenant, not to a key";
            findings.push(Diagnostic::error(field, message));
        }
        for (level, quotas) in [("per_key", &self.per_key), ("per_user", &self.per_user)] {
            if quotas.defined_agents.is_some() {
                let field = section.then(level).then("defined_agents");
                let message = "does not exist: agents belong to a tenant, not to a key or a user";
                findings.push(Diagnostic::error(field, message));
            }
        }
        for (name, tenant) in &self.tenants {
            let field = section.then("tenants").then(name.as_str());
            if let Err(invalid) = Tenant::new("tenant", name) {
                findings.push(Diagnostic::error(field.clone(), invalid.reason));
            }
            findings.extend(tenant.check(&field));
        }
        findings
    }
}

/// Validates the table of prices.
pub(super) fn check_prices(prices: &NamedEntries<PriceSection>) -> Vec<Diagnostic> {
    let mut findings = vec![];
    for (name, price) in prices {
        let field = FieldPath::of(["prices", name.as_str()]);
        let is_name = name
            .split_once(':')
            .is_some_and(|(provider, model)| !provider.is_empty() && !model.is_empty());
        let has_one_star = !name.trim_end_matches('*').contains('*');
        if !is_name || !has_one_star || name.len() > MAX_MODEL_BYTES {
            let message = format!(
                "`{name}` must be `provider:model`, as in `openai:gpt-5`, or the beginning of such names with a `*` after \
                 it, of at most {MAX_MODEL_BYTES} bytes"
            );
            findings.push(Diagnostic::error(field.clone(), message));
        }
        let amounts = [
            ("input", Some(price.input)),
            ("cached_input", price.cached_input),
            ("cache_write", price.cache_write),
            ("output", Some(price.output)),
        ];
        for (key, amount) in amounts {
            if let Some(problem) = amount.and_then(money_problem) {
                findings.push(Diagnostic::error(field.then(key), problem));
            }
        }
    }
    findings
}
