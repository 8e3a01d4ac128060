//! The parts of which the runtime is built.

use std::sync::Arc;
use std::time::Duration;

use super::settings::{AuditSettings, Retention, RunBounds, SharingRules};
use crate::db::Db;
use crate::domain::quota::Quotas;
use crate::domain::ruling::AccessPolicies;
use crate::domain::size::SizeLimits;
use crate::domain::tenant::Tenants;
use crate::domain::time::Clock;
use crate::domain::trace::Tracer;
use crate::events::Events;
use crate::metrics::Metrics;
use crate::runtime::registry::AgentSources;
use crate::runtime::store::Store;
use crate::runtime::webhooks::Webhooks;
use crate::shutdown::Shutdown;

/// The parts of the runtime.
pub struct RuntimeParts {
    /// The database.
    pub db: Db,
    /// The logs of all threads.
    pub events: Events,
    /// The sources of agents.
    pub sources: AgentSources,
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The owner of the tasks.
    pub shutdown: Shutdown,
    /// The metrics.
    pub metrics: Metrics,
    /// Records traces.
    pub tracer: Tracer,
    /// The store of items.
    pub store: Store,
    /// The default lifetimes of threads and histories.
    pub retention: Retention,
    /// The sender of webhooks.
    pub webhooks: Webhooks,
    /// The time for which a claim holds without a heartbeat.
    pub lease: Duration,
    /// The pause between two heartbeats; much shorter than the lease.
    pub heartbeat: Duration,
    /// True if this process claims runs and jobs; otherwise it only admits runs.
    pub claims: bool,
    /// The most concurrent runs in this process.
    pub max_concurrent_runs: usize,
    /// The most runs in the queue, and the longest time for which a run may be at work.
    pub bounds: RunBounds,
    /// The largest sizes of files and states.
    pub sizes: SizeLimits,
    /// The rules by which owners share resources with their tenant.
    pub sharing: SharingRules,
    /// The access policies.
    pub policies: Arc<dyn AccessPolicies>,
    /// The settings of the audit.
    pub audit: AuditSettings,
    /// The quotas of accounts.
    pub quotas: Arc<Quotas>,
    /// The settings of single tenants.
    pub tenants: Arc<Tenants>,
    /// The most concurrent tool calls in this process.
    pub max_calls: usize,
    /// The most concurrent tool and model calls of one run with its subagents.
    pub max_calls_per_run: usize,
}
