//! The unfinished steps of a thread that is copied: those of the main agent and of the subagents for which it waits, and their
//! open interrupts. Each step continues in the copy, after a checkpoint that only the copy has, so that its tasks, interrupts and
//! subagents have ids of their own.

use std::collections::BTreeMap;

use crate::db::checkpoints::{self, Head, NewCheckpoint};
use crate::db::interrupts::{self, InterruptRecord, InterruptState};
use crate::db::{DbResult, Tx, runs};
use crate::domain::access::may_prioritise;
use crate::domain::account::{Account, RunQueue};
use crate::domain::checkpoint::Lane;
use crate::domain::id::{CheckpointId, RunId, ThreadId};
use crate::domain::identity::Identity;
use crate::domain::interrupt::Interrupt;
use crate::domain::machine::{CopiedChild, CopiedStep, Machine, Phase, Position};
use crate::domain::run::{Lineage, Run, RunRequest, RunStatus};
use crate::domain::time::Timestamp;

/// The steps that go on in a copy.
#[derive(Debug)]
pub(super) struct WaitingSteps {
    /// The run of the main agent from which they go on: a copy of the one that has asked last.
    run: Run,
    /// The agents with their positions in the copy; callers come before those that they have called.
    agents: Vec<(CopiedAgent, Position)>,
    /// The open interrupts, in the order in which they were raised.
    interrupts: Vec<InterruptRecord>,
}

/// An agent whose step goes on in a copy.
#[derive(Debug)]
struct CopiedAgent {
    /// Its history in the original.
    from: Lane,
    /// Its newest checkpoint there.
    head: Head,
    /// Its history in the copy.
    to: Lane,
    /// The checkpoint of the copy after which the step goes on.
    fork: CheckpointId,
    /// Its run in the copy; none for the main agent.
    run: Option<Run>,
    /// Its caller, by the index among the agents.
    caller: Option<usize>,
}

/// A thread and its copy.
#[derive(Debug, Clone, Copy)]
struct ThreadCopy {
    from: ThreadId,
    to: ThreadId,
    /// The run of the main agent in the copy.
    root: RunId,
    now: Timestamp,
}

/// Returns whether a step waits for answers that can be given in a copy. A program has its work elsewhere.
fn can_wait_in_copy(position: &Position) -> bool {
    let is_step = matches!(position.phase, Phase::Hooks { .. } | Phase::Tools { .. });
    is_step && position.has_waited() && position.failure.is_none()
}

impl WaitingSteps {
    /// Returns what waits on the thread `from` at the newest checkpoint `main` of its main agent, and goes on in its copy
    /// `to`; none if nothing does, if a run is at work, or if some of it is answered already.
    pub(super) async fn of(
        tx: &mut Tx<'_>,
        from: ThreadId,
        to: ThreadId,
        main: Head,
        now: Timestamp,
    ) -> DbResult<Option<Self>> {
        if !can_wait_in_copy(&main.position) || runs::count_in_flight(tx, from).await?.at_work > 0 {
            return Ok(None);
        }
        let threads = ThreadCopy {
            from,
            to,
            root: RunId::mint(),
            now,
        };
        let agents = agents_of(tx, threads, main).await?;
        let asked = interrupts::of_thread(tx, from, None).await?;
        let is_open = |wanted: &Interrupt| {
            let mut open = asked.iter().filter(|record| record.status == InterruptState::Pending);
            open.any(|record| record.interrupt.id == wanted.id)
        };
        let all_asked = agents.iter().flat_map(|agent| &agent.head.position.asked);
        let mut waiting = all_asked.filter(|asked| asked.answer.is_none());
        if !waiting.all(is_open) {
            return Ok(None);
        }
        let Continued {
            positions,
            mut interrupts,
            waits,
        } = Continued::of(&agents, &asked, threads);
        if !waits {
            return Ok(None);
        }
        interrupts.sort_by_key(|record| (record.seq, record.ordinal));
        let Some(last) = interrupts.last() else {
            return Ok(None);
        };
        let Some(run) = runs::get_by_id(tx, last.run).await? else {
            return Ok(None);
        };
        for record in &mut interrupts {
            record.run = threads.root;
        }
        Ok(Some(Self {
            run: run_in_copy(run, threads),
            agents: agents.into_iter().zip(positions).collect(),
            interrupts,
        }))
    }

    /// Assigns the steps to this caller, on whose behalf and at whose expense they go on. Copies do not multiply a priority that
    /// the caller could not give.
    pub(super) fn assign_to(&mut self, caller: &Identity) {
        self.run.request.assign_to(caller);
        let keeps_priority = may_prioritise(caller);
        let subagents = self.agents.iter_mut().filter_map(|(agent, _)| agent.run.as_mut());
        for run in std::iter::once(&mut self.run).chain(subagents) {
            let priority = if keeps_priority { run.queue.priority } else { 0 };
            run.request.priority = run.request.priority.min(priority);
            run.queue = RunQueue::new(Account::of(caller), priority);
        }
    }

    /// Returns the histories of the subagents, each with its place in the copy and the number of its newest checkpoint.
    pub(super) fn lanes(&self) -> impl Iterator<Item = (Lane, Lane, i64)> {
        let subagents = self.agents.iter().filter(|(agent, _)| agent.run.is_some());
        subagents.map(|(agent, _)| (agent.from, agent.to, agent.head.seq))
    }

    /// Stores the steps, once the histories are stored.
    pub(super) async fn store(self, tx: &mut Tx<'_>, to: ThreadId, now: Timestamp) -> DbResult<()> {
        runs::insert(tx, &self.run, None).await?;
        let mut seq = checkpoints::max_seq(tx, to).await?;
        for (agent, position) in self.agents {
            if let Some(run) = &agent.run {
                runs::insert(tx, run, None).await?;
            }
            let mut machine = Machine {
                head: Some(agent.head.id),
                step: Some(agent.head.step),
                position,
                ..Machine::default()
            };
            let entry = machine.fork(agent.fork);
            seq += 1;
            let placed = NewCheckpoint {
                thread: to,
                lane: agent.to,
                seq,
                segment: None,
                run: Some(self.run.id),
                entry: &entry,
                position: &machine.position,
                at: now,
            };
            checkpoints::insert(tx, &placed).await?;
        }
        for (ordinal, record) in (0..).zip(self.interrupts) {
            let raised = InterruptRecord {
                seq: seq + 1,
                ordinal,
                ..record
            };
            interrupts::insert(tx, &raised).await?;
        }
        Ok(())
    }
}

/// Returns the main agent, and the subagents for which it waits, at all levels. Those that cannot go on in the copy are left
/// out.
async fn agents_of(tx: &mut Tx<'_>, threads: ThreadCopy, main: Head) -> DbResult<Vec<CopiedAgent>> {
    let mut agents = vec![CopiedAgent {
        from: Lane::Main,
        head: main,
        to: Lane::Main,
        fork: CheckpointId::mint(),
        run: None,
        caller: None,
    }];
    let mut at = 0;
    while let Some(caller) = agents.get(at) {
        let mut found = vec![];
        for child in caller.head.position.delegated() {
            found.extend(subagent(tx, threads, caller, child).await?);
        }
        agents.extend(found.into_iter().map(|agent| CopiedAgent {
            caller: Some(at),
            ..agent
        }));
        at += 1;
    }
    Ok(agents)
}

/// Returns the subagent of a run for which `caller` waits; none if it cannot go on in the copy.
async fn subagent(
    tx: &mut Tx<'_>,
    threads: ThreadCopy,
    caller: &CopiedAgent,
    child: RunId,
) -> DbResult<Option<CopiedAgent>> {
    let waits = |run: &Run| run.status == RunStatus::Interrupted && run.error.is_none();
    let Some(run) = runs::find(tx, threads.from, child).await?.filter(waits) else {
        return Ok(None);
    };
    let from = Lane::Child(child);
    let head = checkpoints::head(tx, threads.from, from).await?;
    let Some(head) = head.filter(|head| can_wait_in_copy(&head.position)) else {
        return Ok(None);
    };
    let then = run.order().unwrap_or_default().then;
    let Some(task) = caller.head.position.delegation_in_copy(caller.fork, child, then) else {
        return Ok(None);
    };
    let id = RunId::of_child(task);
    let calling = caller.run.as_ref();
    let mut namespace = calling.map(|run| run.lineage.namespace.clone()).unwrap_or_default();
    namespace.push(task);
    let lineage = Lineage {
        root: threads.root,
        parent: Some(calling.map_or(threads.root, |run| run.id)),
        namespace,
        ..run.lineage.clone()
    };
    let run = Run {
        id,
        thread: threads.to,
        lineage,
        created_at: threads.now,
        updated_at: threads.now,
        due_at: threads.now,
        ..run
    };
    Ok(Some(CopiedAgent {
        from,
        head,
        to: Lane::Child(id),
        fork: CheckpointId::mint(),
        run: Some(run),
        caller: None,
    }))
}

/// The steps of agents as they go on in a copy.
struct Continued {
    /// The positions of the agents.
    positions: Vec<Position>,
    /// The open interrupts, each with the number and the ordinal that it has in the original.
    interrupts: Vec<InterruptRecord>,
    /// True if the main agent waits for one of them.
    waits: bool,
}

impl Continued {
    fn of(agents: &[CopiedAgent], asked: &[InterruptRecord], threads: ThreadCopy) -> Self {
        let mut positions = vec![Position::default(); agents.len()];
        let mut waits = vec![false; agents.len()];
        let mut interrupts = vec![];
        // From the last agent on, since callers come before those that they have called.
        for (at, agent) in agents.iter().enumerate().rev() {
            let called = agents.iter().zip(&waits).filter(|(other, _)| other.caller == Some(at));
            let children: BTreeMap<RunId, CopiedChild> = called
                .filter_map(|(other, waits)| match (other.from, other.to) {
                    (Lane::Child(from), Lane::Child(run)) => Some((from, CopiedChild { run, waits: *waits })),
                    (_, _) => None,
                })
                .collect();
            let step = agent.head.position.clone().continued_in_copy(agent.fork, &children);
            waits[at] = !step.interrupts.is_empty() || children.values().any(|child| child.waits);
            let CopiedStep {
                position,
                interrupts: open,
            } = step;
            positions[at] = position;
            for (before, interrupt) in open {
                let original = asked.iter().find(|record| record.interrupt.id == before);
                interrupts.extend(original.map(|original| InterruptRecord {
                    interrupt,
                    thread: threads.to,
                    lane: agent.to,
                    status: InterruptState::Pending,
                    resolution: None,
                    resumed_by: None,
                    created_at: threads.now,
                    resolved_at: None,
                    ..original.clone()
                }));
            }
        }
        Self {
            positions,
            interrupts,
            waits: waits.first().copied().unwrap_or(false),
        }
    }
}

/// Returns the run of the main agent for the copy. It has ended there, since it waits.
fn run_in_copy(run: Run, threads: ThreadCopy) -> Run {
    Run {
        id: threads.root,
        thread: threads.to,
        lineage: Lineage {
            root: threads.root,
            ..run.lineage
        },
        status: RunStatus::Success,
        request: RunRequest {
            agent: run.request.agent,
            config: run.request.config,
            context: run.request.context,
            stream_mode: run.request.stream_mode,
            priority: run.request.priority,
            ..RunRequest::default()
        },
        error: None,
        attempt: 1,
        created_at: threads.now,
        updated_at: threads.now,
        due_at: threads.now,
        ..run
    }
}
