//! Quotas: what an API key, a user and a tenant may use, and what models cost.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU32;
use std::time::Duration;

use serde_json::Value;

use super::account::{Account, QuotaLevel};
use super::time::Timestamp;

/// The length of a day, in microseconds.
const DAY_MICROS: i64 = 86_400_000_000;

/// The time after which a request may be repeated that was refused because of runs, streams or agents.
const USUAL_RETRY_AFTER: Duration = Duration::from_secs(5);

/// The time after which a request may be repeated that was refused because of stored bytes: the sum is measured again.
const AFTER_MEASURING: Duration = Duration::from_secs(60);

/// Something of which a quota limits the use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaKind {
    /// Requests per second.
    Requests,
    /// Runs at work at the same time. Further runs wait.
    RunsAtWork,
    /// Runs that wait in the queue.
    RunsWaiting,
    /// Open streams.
    OpenStreams,
    /// Bytes of stored threads and items.
    StoredBytes,
    /// Agents that clients have defined.
    DefinedAgents,
    /// Tokens of models on one day.
    Tokens,
    /// Money for models on one day.
    Cost,
}

impl QuotaKind {
    /// Returns the name in settings and errors.
    pub fn word(self) -> &'static str {
        match self {
            Self::Requests => "requests_per_second",
            Self::RunsAtWork => "runs_at_work",
            Self::RunsWaiting => "runs_waiting",
            Self::OpenStreams => "open_streams",
            Self::StoredBytes => "stored_bytes",
            Self::DefinedAgents => "defined_agents",
            Self::Tokens => "tokens_per_day",
            Self::Cost => "cost_per_day",
        }
    }
}

/// Returns an amount of money in millionths, rounded. An amount that is negative or no number is 0, and one that is too
/// large is the largest number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "the conversion of a float saturates"
)]
pub fn millionths(amount: f64) -> u64 {
    (amount * 1_000_000.0).round() as u64
}

/// The quotas of one level. `None` means no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QuotaRule {
    /// Requests per second to this process, as many of them at once.
    pub requests_per_second: Option<NonZeroU32>,
    /// Runs at work at the same time.
    pub runs_at_work: Option<u64>,
    /// Runs that wait in the queue.
    pub runs_waiting: Option<u64>,
    /// Open streams of this process.
    pub open_streams: Option<u64>,
    /// Bytes of stored threads and items.
    pub stored_bytes: Option<u64>,
    /// Agents that clients have defined.
    pub defined_agents: Option<u64>,
    /// Tokens on one day.
    pub tokens_per_day: Option<u64>,
    /// Money on one day, in millionths.
    pub cost_per_day: Option<u64>,
}

impl QuotaRule {
    /// Returns whether the rule limits what is summed up for a day.
    pub fn is_daily(&self) -> bool {
        self.tokens_per_day.is_some() || self.cost_per_day.is_some()
    }
}

/// A rule that applies to an account.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppliedRule<'a> {
    /// The kind of account that it limits.
    pub level: QuotaLevel,
    /// The text with which the accounts begin whose use is counted together.
    pub subject: &'a str,
    /// The rule.
    pub rule: &'a QuotaRule,
}

impl AppliedRule<'_> {
    /// Returns the error for a quota that is used up, with the time after which the request may be repeated.
    pub fn reached(&self, kind: QuotaKind, limit: impl fmt::Display, retry_after: Duration) -> QuotaReached {
        QuotaReached {
            kind,
            level: self.level,
            limit: limit.to_string(),
            retry_after,
        }
    }

    /// Checks a number of things there are already against the limit of their kind.
    ///
    /// # Errors
    /// Returns the quota if there are as many as it allows.
    pub fn check_count(&self, kind: QuotaKind, count: u64) -> Result<(), QuotaReached> {
        let (limit, wait) = match kind {
            QuotaKind::RunsAtWork => (self.rule.runs_at_work, USUAL_RETRY_AFTER),
            QuotaKind::RunsWaiting => (self.rule.runs_waiting, USUAL_RETRY_AFTER),
            QuotaKind::OpenStreams => (self.rule.open_streams, USUAL_RETRY_AFTER),
            QuotaKind::StoredBytes => (self.rule.stored_bytes, AFTER_MEASURING),
            QuotaKind::DefinedAgents => (self.rule.defined_agents, USUAL_RETRY_AFTER),
            QuotaKind::Requests | QuotaKind::Tokens | QuotaKind::Cost => (None, USUAL_RETRY_AFTER),
        };
        match limit.filter(|limit| count >= *limit) {
            Some(limit) => Err(self.reached(kind, limit, wait)),
            None => Ok(()),
        }
    }

    /// Checks the use of a day.
    ///
    /// # Errors
    /// Returns the quota that is used up, until the next day.
    pub fn check_day(&self, used: DayUse, now: Timestamp) -> Result<(), QuotaReached> {
        let rest = until_next_day(now);
        if let Some(limit) = self.rule.tokens_per_day.filter(|limit| used.tokens >= *limit) {
            return Err(self.reached(QuotaKind::Tokens, limit, rest));
        }
        match self.rule.cost_per_day.filter(|limit| used.cost_micros >= *limit) {
            Some(limit) => Err(self.reached(QuotaKind::Cost, Money(limit), rest)),
            None => Ok(()),
        }
    }
}

/// All quotas of a server, and the prices of models.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Quotas {
    /// The quotas of each API key.
    pub per_key: QuotaRule,
    /// The quotas of each user.
    pub per_user: QuotaRule,
    /// The quotas of each tenant that has none of its own.
    pub per_tenant: QuotaRule,
    /// The quotas of single tenants, by name.
    pub tenants: BTreeMap<String, QuotaRule>,
    /// Failed authentications of one client address, in a minute.
    pub failed_authentications_per_minute: Option<NonZeroU32>,
    /// The prices of models.
    pub prices: PriceTable,
}

impl Quotas {
    /// Returns the rules for an account, narrowest first.
    pub fn rules_for<'a>(&'a self, account: &'a Account) -> impl Iterator<Item = AppliedRule<'a>> {
        self.rules_where(account, |_| true)
    }

    /// Returns the rules of a kind that apply to an account, narrowest first. Most servers have none, and a run asks for them
    /// at each of its steps: so the text with which the account begins is looked for last.
    fn rules_where<'a>(
        &'a self,
        account: &'a Account,
        is_meant: fn(&QuotaRule) -> bool,
    ) -> impl Iterator<Item = AppliedRule<'a>> {
        QuotaLevel::ALL.into_iter().filter_map(move |level| {
            let rule = match level {
                QuotaLevel::Key => &self.per_key,
                QuotaLevel::User => &self.per_user,
                QuotaLevel::Tenant => self.tenants.get(account.tenant()).unwrap_or(&self.per_tenant),
            };
            if !is_meant(rule) {
                return None;
            }
            let subject = account.subject(level)?;
            Some(AppliedRule { level, subject, rule })
        })
    }

    /// Returns whether a rule, of any account, has this limit.
    pub fn has_limit(&self, has: impl Fn(&QuotaRule) -> bool) -> bool {
        let general = [&self.per_key, &self.per_user, &self.per_tenant];
        general.into_iter().chain(self.tenants.values()).any(has)
    }

    /// Returns the rules with limits for a day that apply to an account.
    pub fn daily_rules_for<'a>(&'a self, account: &'a Account) -> impl Iterator<Item = AppliedRule<'a>> {
        self.rules_where(account, QuotaRule::is_daily)
    }
}

/// A quota that is used up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuotaReached {
    /// The quota that is reached.
    pub kind: QuotaKind,
    /// The kind of account that is limited.
    pub level: QuotaLevel,
    /// The limit.
    pub limit: String,
    /// The time after which the request may be repeated.
    pub retry_after: Duration,
}

impl QuotaReached {
    /// Returns the name of the quota, as in `per_tenant.tokens_per_day`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.level.word(), self.kind.word())
    }
}

impl fmt::Display for QuotaReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whose = match self.level {
            QuotaLevel::Key => "this API key",
            QuotaLevel::User => "this user",
            QuotaLevel::Tenant => "this tenant",
        };
        let limit = &self.limit;
        write!(f, "The quota `{}` = {limit} of {whose} is used up. ", self.name())?;
        match self.kind {
            QuotaKind::Requests | QuotaKind::RunsAtWork => f.write_str("Send the request again a little later."),
            QuotaKind::RunsWaiting => f.write_str("Send the request again when runs that wait have begun."),
            QuotaKind::OpenStreams => f.write_str("Close a stream first."),
            QuotaKind::StoredBytes => f.write_str("Delete threads or items of the Store first."),
            QuotaKind::DefinedAgents => f.write_str("Delete an agent first."),
            QuotaKind::Tokens | QuotaKind::Cost => f.write_str("It is available again at midnight UTC."),
        }
    }
}

impl std::error::Error for QuotaReached {}

/// The use of one day.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DayUse {
    /// Tokens, input and output together.
    pub tokens: u64,
    /// Money, in millionths.
    pub cost_micros: u64,
}

impl DayUse {
    /// Returns whether nothing was used.
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Returns the number of a day in UTC, counted from 1970.
pub fn day_of(now: Timestamp) -> i64 {
    now.0.div_euclid(DAY_MICROS)
}

/// Returns the time until the next day in UTC.
fn until_next_day(now: Timestamp) -> Duration {
    Timestamp((day_of(now) + 1).saturating_mul(DAY_MICROS)).since(now)
}

/// An amount of money in millionths, shown with as many decimals as needed.
struct Money(u64);

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The price of a model: millionths of the currency for a million tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ModelPrice {
    /// The price of input tokens.
    pub input: u64,
    /// The price of input tokens that the provider has read from its cache.
    pub cached_input: u64,
    /// The price of input tokens that the provider has written to its cache.
    pub cache_write: u64,
    /// The price of output tokens.
    pub output: u64,
}

/// The prices of models.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PriceTable(BTreeMap<String, ModelPrice>);

impl PriceTable {
    /// Creates a table of prices by `provider:model`. A name that ends in `*` is a prefix.
    pub fn new(prices: BTreeMap<String, ModelPrice>) -> Self {
        Self(prices)
    }

    /// Returns whether there are no prices.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the price of a model: by its whole name, else by the longest prefix.
    fn price_of(&self, model: &str) -> Option<&ModelPrice> {
        let by_prefix = || {
            let prefixes = self.0.iter().filter_map(|(name, price)| {
                let prefix = name.strip_suffix('*')?;
                model.starts_with(prefix).then_some((prefix.len(), price))
            });
            prefixes.max_by_key(|(length, _)| *length).map(|(_, price)| price)
        };
        self.0.get(model).or_else(by_prefix)
    }

    /// Returns the cost of one answer in millionths, rounded up; 0 if the model has no price. `usage` has the shape of
    /// `usage_metadata`.
    pub fn cost_of(&self, model: &str, usage: &Value) -> u64 {
        let Some(price) = self.price_of(model) else { return 0 };
        let count = |value: &Value| u128::from(value.as_u64().unwrap_or(0));
        let input = count(&usage["input_tokens"]);
        let cached = count(&usage["input_token_details"]["cache_read"]).min(input);
        let written = count(&usage["input_token_details"]["cache_creation"]).min(input - cached);
        let cost = (input - cached - written) * u128::from(price.input)
            + cached * u128::from(price.cached_input)
            + written * u128::from(price.cache_write)
            + count(&usage["output_tokens"]) * u128::from(price.output);
        u64::try_from(cost.div_ceil(1_000_000)).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::identity::{Credential, Identity, Tenant, UserId};

    fn ann() -> Account {
        Account::of(&Identity {
            tenant: Tenant::stored("acme".to_owned()),
            user: UserId::stored("ann".to_owned()),
            credential: Credential::ApiKey("k".to_owned()),
            ..Identity::unauthenticated()
        })
    }

    fn streams(most: u64) -> QuotaRule {
        QuotaRule {
            open_streams: Some(most),
            ..QuotaRule::default()
        }
    }

    #[test]
    fn a_tenant_with_rules_of_its_own_has_only_those() {
        let quotas = Quotas {
            per_user: streams(1),
            per_tenant: streams(2),
            tenants: BTreeMap::from([("acme".to_owned(), QuotaRule::default())]),
            ..Quotas::default()
        };
        let limits = |account: &Account| {
            let rules = quotas.rules_for(account);
            rules
                .map(|applied| (applied.level, applied.rule.open_streams))
                .collect::<Vec<_>>()
        };
        assert_eq!(
            limits(&ann()),
            [
                (QuotaLevel::Key, None),
                (QuotaLevel::User, Some(1)),
                (QuotaLevel::Tenant, None)
            ]
        );
        let nobody = Account::of(&Identity::unauthenticated());
        assert_eq!(limits(&nobody), [(QuotaLevel::Tenant, Some(2))]);
    }

    #[test]
    fn a_used_up_quota_names_itself_its_limit_and_the_way_out() {
        let quotas = Quotas {
            per_user: streams(1),
            ..Quotas::default()
        };
        let account = ann();
        let user = quotas
            .rules_for(&account)
            .find(|applied| applied.level == QuotaLevel::User);
        let reached = user
            .expect("a user")
            .check_count(QuotaKind::OpenStreams, 1)
            .expect_err("one is open");
        assert_eq!(reached.name(), "per_user.open_streams");
        assert_eq!(
            reached.to_string(),
            "The quota `per_user.open_streams` = 1 of this user is used up. Close a stream first."
        );
    }

    #[test]
    fn the_use_of_a_day_ends_at_midnight_utc() {
        let quotas = Quotas {
            per_tenant: QuotaRule {
                cost_per_day: Some(1_250_000),
                ..QuotaRule::default()
            },
            ..Quotas::default()
        };
        let account = ann();
        let rule = quotas.daily_rules_for(&account).next().expect("a rule");
        let noon = Timestamp(DAY_MICROS / 2 + DAY_MICROS * 20_000);
        let used = |cost_micros| DayUse { tokens: 0, cost_micros };
        assert_eq!(rule.check_day(used(1_249_999), noon), Ok(()));
        let reached = rule.check_day(used(1_250_000), noon).expect_err("nothing is left");
        assert_eq!(reached.limit, "1.25");
        assert_eq!(reached.retry_after, Duration::from_secs(12 * 3600));
        assert_eq!(day_of(noon.plus(reached.retry_after)), day_of(noon) + 1);
    }

    #[test]
    fn a_price_is_found_by_the_whole_name_or_the_longest_prefix() {
        let price = |input| ModelPrice {
            input,
            cached_input: input / 10,
            cache_write: input,
            output: 2 * input,
        };
        let prices = PriceTable::new(BTreeMap::from([
            ("openai:*".to_owned(), price(1_000_000)),
            ("openai:gpt-5*".to_owned(), price(2_000_000)),
            ("openai:gpt-5".to_owned(), price(3_000_000)),
        ]));
        let one = json!({"input_tokens": 1, "output_tokens": 0});
        assert_eq!(prices.cost_of("openai:gpt-5", &one), 3);
        assert_eq!(prices.cost_of("openai:gpt-5-2025-08-07", &one), 2);
        assert_eq!(prices.cost_of("openai:o3", &one), 1);
        assert_eq!(prices.cost_of("google:gemini", &one), 0);
    }

    #[test]
    fn cached_input_has_its_own_price_and_fractions_are_rounded_up() {
        let price = ModelPrice {
            input: 1_250_000,
            cached_input: 125_000,
            cache_write: 2_000_000,
            output: 10_000_000,
        };
        let prices = PriceTable::new(BTreeMap::from([("m:m".to_owned(), price)]));
        let usage = json!({"input_tokens": 1000, "output_tokens": 10, "input_token_details": {"cache_read": 600}});
        assert_eq!(prices.cost_of("m:m", &usage), 400 * 5 / 4 + 75 + 100);
        let mut wrote = usage;
        wrote["input_token_details"]["cache_creation"] = json!(300);
        assert_eq!(prices.cost_of("m:m", &wrote), 100 * 5 / 4 + 75 + 300 * 2 + 100);
        wrote["input_token_details"]["cache_creation"] = json!(5000);
        assert_eq!(
            prices.cost_of("m:m", &wrote),
            75 + 400 * 2 + 100,
            "no more than the input"
        );
        assert_eq!(
            prices.cost_of("m:m", &json!({"input_tokens": 1, "output_tokens": 0})),
            2
        );
    }
}
