//! The quotas of accounts: checked when a run is admitted and before each model call, and summed up with each step.

use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;

use super::error::StartError;
use super::run_context::RunContext;
use crate::db::{self, Db, DbError, DbResult, Tx};
use crate::domain::account::Account;
use crate::domain::id::RunId;
use crate::domain::limits::Usage;
use crate::domain::message::{Message, Role};
use crate::domain::quota::{DayUse, QuotaKind, QuotaReached, Quotas, day_of};
use crate::domain::run::RunStatus;
use crate::domain::time::Timestamp;
use crate::tool::budget::{AccountLimits, Refused};

/// The number of rows among which the runs of an account are spread, so that their commits rarely wait for each other.
const SLOTS: u8 = 8;

/// The number of days for which sums are kept.
const KEPT_DAYS: i64 = 35;

/// Returns the first quota of the day that an account has used up.
pub(super) async fn used_up(
    tx: &mut Tx<'_>,
    quotas: &Quotas,
    account: &Account,
    now: Timestamp,
) -> DbResult<Option<QuotaReached>> {
    let rules: Vec<_> = quotas.daily_rules_for(account).collect();
    let subjects: Vec<&str> = rules.iter().map(|applied| applied.subject).collect();
    let used = db::quotas::used(tx, &subjects, day_of(now)).await?;
    let reached = rules.iter().find_map(|applied| {
        let used = used.get(applied.subject).copied().unwrap_or_default();
        applied.check_day(used, now).err()
    });
    Ok(reached)
}

/// Returns whether an account may have one more run at work. False also while another transaction claims a run under the
/// same quota: the run then waits for the dispatcher, which waits for that transaction.
pub(super) async fn may_begin(tx: &mut Tx<'_>, quotas: &Quotas, account: &Account) -> DbResult<bool> {
    for applied in quotas.rules_for(account) {
        let Some(limit) = applied.rule.runs_at_work else {
            continue;
        };
        if !db::runs::try_lock_claims(tx, applied.subject).await? {
            return Ok(false);
        }
        let at_work = db::runs::count_of_subject(tx, applied.subject, RunStatus::Running, limit).await?;
        if at_work >= limit {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Checks whether an account may have one more run that waits.
///
/// # Errors
/// [`StartError::Quota`] if as many wait as a quota allows.
pub(super) async fn check_waiting(tx: &mut Tx<'_>, quotas: &Quotas, account: &Account) -> Result<(), StartError> {
    for applied in quotas.rules_for(account) {
        let Some(limit) = applied.rule.runs_waiting else {
            continue;
        };
        let waiting = db::runs::count_of_subject(tx, applied.subject, RunStatus::Pending, limit).await?;
        applied.check_count(QuotaKind::RunsWaiting, waiting)?;
    }
    Ok(())
}

/// Returns by how much the usage of a run, or of a subagent's run below it, grows when `used` is stored. It is called
/// before that, in the same transaction: so nothing counts twice when a transaction is repeated or a server crashes.
pub(super) async fn count_growth(
    tx: &mut Tx<'_>,
    run_context: &RunContext,
    run: RunId,
    used: &Usage,
) -> DbResult<DayUse> {
    let account = &run_context.run.queue.account;
    if run_context.core.quotas.daily_rules_for(account).next().is_none() {
        return Ok(DayUse::default());
    }
    let before = db::runs::usage(tx, run).await?;
    Ok(DayUse {
        tokens: used.tokens().saturating_sub(before.tokens()),
        cost_micros: used.cost_micros.saturating_sub(before.cost_micros),
    })
}

/// Adds what a run has used to the sums of the day. It belongs into the transaction that stores the usage of the run,
/// at its end, since the sums are locked until then.
pub(super) async fn charge(tx: &mut Tx<'_>, run_context: &RunContext, used: DayUse, now: Timestamp) -> DbResult<()> {
    if used.is_none() {
        return Ok(());
    }
    let slot = slot_of(run_context.run.id);
    // All transactions lock the sums in the same order: the widest first.
    let account = &run_context.run.queue.account;
    let rules = run_context.core.quotas.daily_rules_for(account);
    let mut subjects: Vec<&str> = rules.map(|applied| applied.subject).collect();
    subjects.reverse();
    db::quotas::add(tx, &subjects, day_of(now), slot, used).await
}

fn slot_of(run: RunId) -> i32 {
    let last = run.0.as_bytes().last().copied().unwrap_or(0);
    i32::from(last % SLOTS)
}

/// Returns the number of the first day whose sums are kept.
pub(super) fn first_kept_day(now: Timestamp) -> i64 {
    day_of(now) - KEPT_DAYS
}

/// The limits of the account of a run, and the prices of models.
pub(super) struct RunAccount {
    db: Db,
    quotas: Arc<Quotas>,
    account: Account,
    run: RunId,
}

impl RunAccount {
    /// Returns the limits for a run; `None` if its account has no limits for a day, and no model has a price.
    pub(super) fn of(run_context: &RunContext) -> Option<Arc<dyn AccountLimits>> {
        let quotas = &run_context.core.quotas;
        let account = &run_context.run.queue.account;
        if quotas.prices.is_empty() && quotas.daily_rules_for(account).next().is_none() {
            return None;
        }
        Some(Arc::new(Self {
            db: run_context.core.db.clone(),
            quotas: Arc::clone(quotas),
            account: account.clone(),
            run: run_context.run.id,
        }))
    }

    fn unavailable(&self, error: &DbError) -> Refused {
        tracing::warn!(run = %self.run, %error, "could not look up what an account has used");
        Refused::Away
    }
}

impl std::fmt::Debug for RunAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunAccount")
            .field("account", &self.account)
            .field("run", &self.run)
            .finish_non_exhaustive()
    }
}

#[async_trait]
impl AccountLimits for RunAccount {
    async fn check_model_call(&self, now: Timestamp) -> Result<(), Refused> {
        if self.quotas.daily_rules_for(&self.account).next().is_none() {
            return Ok(());
        }
        let quotas = Arc::clone(&self.quotas);
        let account = self.account.clone();
        let read = self
            .db
            .read(move |tx| Box::pin(async move { used_up(tx, &quotas, &account, now).await }));
        match read.await {
            Ok(None) => Ok(()),
            Ok(Some(reached)) => Err(Refused::Quota(reached)),
            Err(error) => Err(self.unavailable(&error)),
        }
    }

    fn cost_of(&self, answer: &Message) -> u64 {
        let Role::Ai {
            usage_metadata: Some(usage),
            ..
        } = &answer.role
        else {
            return 0;
        };
        let word = |name: &str| {
            let value = answer.response_metadata.get(name);
            value.and_then(Value::as_str).unwrap_or_default()
        };
        let model = format!("{}:{}", word("model_provider"), word("model_name"));
        self.quotas.prices.cost_of(&model, usage)
    }
}
