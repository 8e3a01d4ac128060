//! Commits that the database stores although it did not say so in time.
//!
//! The database may store a commit long after it was given up here, such as one that waits for a standby. Its effects are
//! looked for: often at first, and then from time to time. [`unfollowed_runs`](super::unfollowed_runs) look for the runs of
//! clients that were not answered, each by its id; the dispatcher looks for
//! [claims of this process on runs](super::dispatcher::Dispatcher::release_undriven), and the loop of jobs for
//! [those on jobs](super::jobs), of which nothing but the result is known.

use std::time::Duration;

use tokio::time::Instant;

/// The time for which looks are frequent. Most commits that still arrive do so earlier: Postgres ends sessions that are idle in
/// a transaction before.
pub(super) const ARRIVAL: Duration = Duration::from_secs(5);

/// Returns whether a look at this time belongs to the frequent ones for a commit that was given up at `given_up_at`.
pub(super) fn is_likely(given_up_at: Instant, look: Instant) -> bool {
    look < given_up_at + ARRIVAL
}
