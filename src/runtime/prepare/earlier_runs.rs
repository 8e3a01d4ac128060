//! The earlier runs that a run continues with answers, and the usage of each with all runs below it.

use std::collections::HashMap;

use crate::db::{self, DbResult, Tx};
use crate::domain::id::{RunId, ThreadId};
use crate::domain::limits::Usage;
use crate::runtime::interrupts::UsedRun;

/// The usage of the main agent and of all runs together. Parallel runs work at the same time, so the time of all is
/// that of the main agent.
#[derive(Clone, Copy, Default)]
pub(super) struct UsedSoFar {
    pub(super) own: Usage,
    pub(super) whole: Usage,
}

impl UsedSoFar {
    pub(super) async fn in_tree(tx: &mut Tx<'_>, run: RunId) -> DbResult<Self> {
        let used = db::runs::usages_later(tx, run).await?;
        let begun = db::trees::delegations_later(tx, run).await?;
        let used = used.read(tx).await?;
        let stored = used.get(&run).copied().unwrap_or_default();
        let begun = begun.count(tx).await?;
        let whole = used.into_values().fold(Usage::default(), Usage::plus);
        Ok(Self::of(stored, whole, begun))
    }

    /// Returns the usage by what is `stored` of the main agent and of the `whole` tree. `begun` is the number of the delegations of
    /// the main agent.
    fn of(stored: Usage, whole: Usage, begun: u64) -> Self {
        // A task may have begun although its call has not returned.
        let own = Usage {
            children: stored.children.max(begun),
            ..stored
        };
        let children = whole.children + (own.children - stored.children);
        Self {
            own,
            whole: Usage {
                seconds: own.seconds,
                children,
                ..whole
            },
        }
    }

    fn plus(self, other: Self) -> Self {
        Self {
            own: self.own.plus(other.own),
            whole: self.whole.plus(other.whole),
        }
    }
}

/// The earlier runs that a run continues with answers.
#[derive(Clone, Copy)]
pub(super) struct EarlierRuns {
    pub(super) used: UsedSoFar,
    /// The first of them, which brought the input; the run itself if it continues none.
    pub(super) first: RunId,
}

impl EarlierRuns {
    /// Returns those of a run that continues none.
    pub(super) fn none(run: RunId) -> Self {
        Self {
            used: UsedSoFar::default(),
            first: run,
        }
    }

    pub(super) async fn of(tx: &mut Tx<'_>, thread: ThreadId, run: RunId) -> DbResult<Self> {
        let resumed = db::interrupts::resumed(tx, thread).await?;
        Self::from_resumed(tx, resumed, run, None).await
    }

    /// Returns the earlier runs like [`Self::from_resumed`]; none if the runs that brought answers are many.
    pub(super) async fn from_few_resumed(
        tx: &mut Tx<'_>,
        resumed: Option<HashMap<RunId, RunId>>,
        run: RunId,
        known: Option<UsedRun>,
    ) -> DbResult<Option<Self>> {
        match resumed {
            Some(resumed) => Self::from_resumed(tx, resumed, run, known).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the earlier runs by the [runs that brought answers](db::interrupts::resumed). `known` is one of which it was read
    /// already what it has used.
    async fn from_resumed(
        tx: &mut Tx<'_>,
        mut resumed: HashMap<RunId, RunId>,
        run: RunId,
        known: Option<UsedRun>,
    ) -> DbResult<Self> {
        let mut earlier = Self::none(run);
        // The entry is removed, so that two runs that refer to each other end the loop.
        while let Some(before) = resumed.remove(&earlier.first) {
            let used = match known.filter(|known| known.run == before) {
                Some(UsedRun { used, .. }) => UsedSoFar::of(used.usage, used.usage, used.delegations),
                None => UsedSoFar::in_tree(tx, before).await?,
            };
            earlier.used = earlier.used.plus(used);
            earlier.first = before;
        }
        Ok(earlier)
    }
}

/// Returns the usage of the earlier runs that a run continues with answers, with all below them, and the first of these
/// runs.
pub(in crate::runtime) async fn usage_before(
    tx: &mut Tx<'_>,
    thread: ThreadId,
    run: RunId,
) -> DbResult<(Usage, RunId)> {
    let EarlierRuns { used, first } = EarlierRuns::of(tx, thread, run).await?;
    Ok((used.whole, first))
}
