//! The thread of a request: its rows are looked up together with the assistant, and it is created if necessary.

use std::time::Duration;

use super::AdmissionContext;
use super::permission::check_by_policies;
use crate::db::checkpoints::LaterLogEnd;
use crate::db::runs::{InFlight, LaterInFlight, LaterInFlightWithLog, LaterRunBefore};
use crate::db::threads::LaterThread;
use crate::db::{self, DbResult, Tx};
use crate::domain::access::{Action, Ownership};
use crate::domain::id::ThreadId;
use crate::domain::thread::{Thread, Ttl, TtlStrategy};
use crate::runtime::error::StartError;
use crate::runtime::interrupts::{AnsweredThread, LaterAnsweredThread, LaterOpen};
use crate::runtime::new_run::{NewRun, Resolution, Target, may_step_at_once};

/// The TTL of the thread of a stateless run, in case its process stops before it can delete the thread.
const TEMPORARY: Ttl = Ttl {
    after: Duration::from_secs(600),
    strategy: TtlStrategy::Delete,
};

/// The thread of a request, before it is read.
pub(super) struct TargetLookup {
    id: ThreadId,
    /// True if the thread is created unless it exists.
    may_make: bool,
    /// The rows of the thread; none if it surely does not exist.
    rows: Option<TargetRows>,
}

/// The rows of a thread that are read later in the transaction.
struct TargetRows {
    thread: LaterThread,
    runs: LaterRuns,
    resumption: LaterResumption,
}

/// The number of the runs on a thread, to be read later in the transaction.
enum LaterRuns {
    Alone(LaterInFlight),
    /// With the end of its log, if the run may take its first step at once.
    WithLog(LaterInFlightWithLog),
}

impl LaterRuns {
    async fn count(self, tx: &mut Tx<'_>) -> DbResult<(InFlight, Option<LaterLogEnd>)> {
        match self {
            Self::Alone(in_flight) => Ok((in_flight.count(tx).await?, None)),
            Self::WithLog(in_flight) => {
                let (in_flight, log_end) = in_flight.count(tx).await?;
                Ok((in_flight, Some(log_end)))
            }
        }
    }
}

/// The rows of a thread for a run that continues it with a resolution, to be read later in the transaction.
#[derive(Default)]
pub(super) struct LaterResumption {
    /// The run whose work the new one continues.
    pub(super) before: Option<LaterRunBefore>,
    /// The open interrupts, for the answer of a client.
    pub(super) open: Option<LaterOpen>,
    /// All rows for the answer of a client, if the run may begin at once with the newest step; then the others are none.
    all: Option<LaterAnsweredThread>,
    /// The same rows after they were read.
    pub(super) answered: Option<AnsweredThread>,
}

impl LaterResumption {
    async fn begin(
        tx: &mut Tx<'_>,
        thread: ThreadId,
        new_run: &NewRun,
        resolution: &Resolution,
        context: &AdmissionContext,
    ) -> DbResult<Self> {
        let is_of_client = match resolution {
            Resolution::Answered(_) | Resolution::AnsweredAlone(..) => true,
            Resolution::AnsweredRemotely(_) | Resolution::Expired(_) | Resolution::Cancelled(_) => false,
        };
        if is_of_client && context.worker.is_some() && new_run.request.checkpoint.is_none() {
            return Ok(Self {
                all: Some(LaterAnsweredThread::begin(tx, thread).await?),
                ..Self::default()
            });
        }
        let open = match is_of_client {
            true => Some(LaterOpen::begin(tx, thread).await?),
            false => None,
        };
        Ok(Self {
            before: Some(db::runs::find_before_later(tx, thread).await?),
            open,
            ..Self::default()
        })
    }
}

impl TargetLookup {
    /// Begins to look for the thread of a request.
    pub(super) async fn begin(tx: &mut Tx<'_>, new_run: &NewRun, context: &AdmissionContext) -> DbResult<Self> {
        let (id, may_make) = match new_run.target {
            Target::Thread(id) => (id, false),
            Target::ThreadOrNew(id) => (id, true),
            Target::Stateless { .. } => {
                return Ok(Self {
                    id: ThreadId::mint(),
                    may_make: true,
                    rows: None,
                });
            }
        };
        // An answer changes the end of the log in this transaction.
        let brings_answer = new_run.resume.is_some();
        let may_step = context.worker.is_some() && !brings_answer && may_step_at_once(&new_run.request);
        let rows = TargetRows {
            thread: db::threads::lock_later(tx, id).await?,
            runs: match may_step {
                true => LaterRuns::WithLog(db::runs::count_in_flight_with_log_later(tx, id).await?),
                false => LaterRuns::Alone(db::runs::count_in_flight_later(tx, id).await?),
            },
            resumption: match &new_run.resume {
                Some(resolution) => LaterResumption::begin(tx, id, new_run, resolution, context).await?,
                None => LaterResumption::default(),
            },
        };
        let rows = Some(rows);
        Ok(Self { id, may_make, rows })
    }

    /// Takes the rows of the thread that are for the answer of a client, if all of them are to be read already.
    pub(super) fn take_answered(&mut self) -> Option<LaterAnsweredThread> {
        self.rows.as_mut()?.resumption.all.take()
    }

    /// Keeps these rows after they were read.
    pub(super) fn keep_answered(&mut self, answered: Option<AnsweredThread>) {
        if let Some(rows) = &mut self.rows {
            rows.resumption.answered = answered;
        }
    }

    /// Returns the thread of a request, locked. The thread is created if necessary; one that surely does not exist is not stored
    /// yet.
    pub(super) async fn find_or_make(
        self,
        tx: &mut Tx<'_>,
        new_run: &NewRun,
        context: &AdmissionContext,
    ) -> Result<TargetThread, StartError> {
        let now = context.now;
        let Self { id, may_make, rows } = self;
        let is_surely_new = rows.is_none();
        if let Some(rows) = rows
            && let Some(locked) = rows.thread.lock_and_check(tx).await?
        {
            let (in_flight, log_end) = rows.runs.count(tx).await?;
            return Ok(TargetThread {
                thread: locked.thread,
                is_new: false,
                stored: match locked.knows_metadata {
                    true => StoredThread::Known,
                    false => StoredThread::Unreadable,
                },
                in_flight,
                log_end,
                resumption: rows.resumption,
            });
        }
        if !may_make {
            return Err(StartError::NoThread(id));
        }
        // The thread of a stateless run has a TTL in case nothing else deletes it.
        let is_temporary = new_run.target == (Target::Stateless { keep: false });
        let ttl = if is_temporary {
            Some(TEMPORARY)
        } else {
            context.core.retention.threads
        };
        let thread = Thread::new(id, Ownership::of(&new_run.caller), new_run.metadata.clone(), now).with_ttl(ttl);
        if is_surely_new || db::threads::insert(tx, &thread).await? {
            if !is_temporary {
                check_by_policies(tx, &thread, new_run, Action::ThreadsCreate, &context.core).await?;
            }
            return Ok(TargetThread {
                thread,
                is_new: true,
                stored: match is_surely_new {
                    true => StoredThread::Nothing,
                    false => StoredThread::Known,
                },
                in_flight: InFlight::default(),
                log_end: None,
                resumption: LaterResumption::default(),
            });
        }
        // Another client may have created the thread meanwhile.
        let made = db::threads::lock(tx, id).await?;
        let thread = made.ok_or(StartError::NoThread(id))?;
        Ok(TargetThread {
            thread,
            is_new: false,
            // Its metadata were not checked.
            stored: StoredThread::Unreadable,
            in_flight: db::runs::count_in_flight(tx, id).await?,
            log_end: None,
            resumption: LaterResumption::default(),
        })
    }
}

/// The state of the row of a thread before a run enters it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum StoredThread {
    /// There is no row yet: it is stored together with the run.
    Nothing,
    /// The row has the metadata of the thread.
    Known,
    /// The row may have metadata that could not be read.
    Unreadable,
}

/// The thread of a request, locked if it is stored.
pub(super) struct TargetThread {
    pub(super) thread: Thread,
    /// True if it was created for the request.
    pub(super) is_new: bool,
    pub(super) stored: StoredThread,
    /// The number of runs on it.
    pub(super) in_flight: InFlight,
    /// The end of its log, if it is to be read already.
    pub(super) log_end: Option<LaterLogEnd>,
    pub(super) resumption: LaterResumption,
}
