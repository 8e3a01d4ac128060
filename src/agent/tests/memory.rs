//! A journal in memory, which stores JSON like a database and crashes on demand.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use futures::future::BoxFuture;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use crate::agent::journal::{
    Child, ChildAdmission, ChildRecord, ChildStart, ExitReason, Journal, NewChildRun, PendingWrite, WaitingAgent,
};
use crate::domain::checkpoint::Lane;
use crate::domain::event::{AgentWork, Delta, Fact, Origin};
use crate::domain::id::{CheckpointId, InterruptId, RunId};
use crate::domain::item::ItemChange;
use crate::domain::limits::Usage;
use crate::domain::machine::{Failure, Machine, Position, START};
use crate::domain::run::{DelegatedTask, Lineage};
use crate::domain::state::Update;
use crate::domain::time::Timestamp;
use crate::tool::budget::Meter;

/// The crash of a process, by the number of the commit, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Crash {
    /// This commit is not stored.
    Before(usize),
    /// This commit is the last thing that happens.
    After(usize),
    /// The process shuts down during this commit.
    ShutDown(usize),
}

#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) id: CheckpointId,
    pub(super) step: i64,
    pub(super) node: String,
    pub(super) run: RunId,
    pub(super) writes: String,
    position: String,
}

/// The data that survives a process.
#[derive(Default)]
pub(super) struct Store(Mutex<Disk>);

#[derive(Default)]
struct Disk {
    lanes: BTreeMap<Lane, Vec<Row>>,
    children: BTreeMap<RunId, (String, DelegatedTask)>,
    facts: Vec<(Lane, String)>,
    items: Vec<ItemChange>,
    deltas: usize,
    crash: Option<Crash>,
    commits: usize,
    dead: bool,
    cancelled: BTreeSet<RunId>,
    used: BTreeMap<RunId, Usage>,
    meters: BTreeMap<RunId, Arc<Meter>>,
    stop: CancellationToken,
    /// The number of subagents that have to end before the answer of a call is stored by itself.
    ends_before_answers: usize,
}

impl Store {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.0.lock().unwrap()
    }

    pub(super) fn revive(&self, crash: Option<Crash>, stop: CancellationToken) {
        let mut disk = self.disk();
        disk.crash = crash;
        disk.commits = 0;
        disk.dead = false;
        disk.stop = stop;
    }

    /// Returns the number of commits of this process.
    pub(super) fn commits(&self) -> usize {
        self.disk().commits
    }

    /// Lets commits of answers of single calls wait until so many subagents have ended, or a long time has passed.
    pub(super) fn hold_answers(&self, until_ended: usize) {
        self.disk().ends_before_answers = until_ended;
    }

    fn holds_answers(&self) -> bool {
        let wanted = self.disk().ends_before_answers;
        let is_end = |(lane, fact): &(Lane, Fact)| *lane != Lane::Main && matches!(fact, Fact::Ended { .. });
        self.course().iter().filter(|event| is_end(event)).count() < wanted
    }

    pub(super) fn rows(&self, lane: Lane) -> Vec<Row> {
        self.disk().lanes.get(&lane).cloned().unwrap_or_default()
    }

    pub(super) fn children(&self) -> Vec<(RunId, Lineage)> {
        let disk = self.disk();
        disk.children
            .iter()
            .map(|(id, (lineage, _))| (*id, serde_json::from_str(lineage).unwrap()))
            .collect()
    }

    pub(super) fn facts(&self, lane: Lane) -> Vec<Fact> {
        let disk = self.disk();
        let here = disk.facts.iter().filter(|(of, _)| *of == lane);
        here.map(|(_, fact)| serde_json::from_str(fact).unwrap()).collect()
    }

    /// Returns all events, in order.
    pub(super) fn course(&self) -> Vec<(Lane, Fact)> {
        self.disk()
            .facts
            .iter()
            .map(|(lane, fact)| (*lane, serde_json::from_str(fact).unwrap()))
            .collect()
    }

    pub(super) fn deltas(&self) -> usize {
        self.disk().deltas
    }

    /// Returns the run that stored the newest step of the lane.
    pub(super) fn owner(&self, lane: Lane) -> Option<RunId> {
        Some(self.disk().lanes.get(&lane)?.last()?.run)
    }

    /// Loads a machine from the stored data.
    pub(super) fn machine(&self, lane: Lane) -> Machine {
        let rows = self.rows(lane);
        let mut machine = Machine::default();
        for row in &rows {
            for update in serde_json::from_str::<Vec<Update>>(&row.writes).unwrap() {
                machine.state.apply(&update);
            }
        }
        if let Some(last) = rows.last() {
            machine.head = Some(last.id);
            machine.step = Some(last.step);
            machine.position = serde_json::from_str(&last.position).unwrap();
        }
        machine
    }

    fn write(&self, change: impl FnOnce(&mut Disk)) -> Result<(), ExitReason> {
        let mut disk = self.disk();
        let this = disk.commits + 1;
        if disk.dead || disk.crash == Some(Crash::Before(this)) {
            disk.dead = true;
            return Err(ExitReason::LeaseLost);
        }
        change(&mut disk);
        disk.commits = this;
        if disk.crash == Some(Crash::ShutDown(this)) {
            disk.stop.cancel();
        }
        if disk.crash == Some(Crash::After(this)) {
            disk.dead = true;
            return Err(ExitReason::Fault(Failure::new("StorageError", "the process is dead")));
        }
        Ok(())
    }

    /// Delivers answers in one transaction; a repetition changes nothing.
    pub(super) fn deliver(&self, answers: &BTreeMap<InterruptId, Value>) -> Result<(), ExitReason> {
        let mut changed = BTreeMap::new();
        for (id, answer) in answers {
            let lanes: Vec<Lane> = self.disk().lanes.keys().copied().collect();
            for asker in lanes {
                let mut machine = changed.remove(&asker).unwrap_or_else(|| self.machine(asker));
                let mut lane = asker;
                if machine.resolve(id, answer.clone()) {
                    while let Lane::Child(child) = lane {
                        changed.insert(lane, machine);
                        lane = self.parent(child);
                        machine = changed.remove(&lane).unwrap_or_else(|| self.machine(lane));
                        machine.unpark(child);
                    }
                }
                changed.insert(lane, machine);
            }
        }
        self.write(|disk| {
            for (lane, machine) in &changed {
                disk.put_position(*lane, &machine.position);
            }
        })
    }

    fn parent(&self, child: RunId) -> Lane {
        let lineage = self.children().into_iter().find(|(id, _)| *id == child).unwrap().1;
        lineage.calling_subagent().map_or(Lane::Main, Lane::Child)
    }

    /// Returns the token that cancels a child run: the process's, or that of a client's request.
    fn stop_of(&self, child: RunId) -> CancellationToken {
        let disk = self.disk();
        let stop = disk.stop.child_token();
        if disk.cancelled.contains(&child) {
            stop.cancel();
        }
        stop
    }

    /// Returns the stored usage of a run.
    pub(super) fn meter_of(&self, run: RunId) -> Arc<Meter> {
        let mut disk = self.disk();
        let used = disk.used.get(&run).copied().unwrap_or_default();
        let meter = Arc::new(Meter::new(used, Timestamp(0)));
        disk.meters.insert(run, Arc::clone(&meter));
        meter
    }

    /// Returns the stored usage of all runs.
    pub(super) fn used(&self) -> BTreeMap<RunId, Usage> {
        self.disk().used.clone()
    }

    /// Cancels a parked child run, as a client does.
    pub(super) fn cancel(&self, child: RunId) {
        self.disk().cancelled.insert(child);
    }

    fn waiting_agents(&self, child: RunId) -> Vec<WaitingAgent> {
        let lane = Lane::Child(child);
        let machine = self.machine(lane);
        let (lineage, _) = self.disk().children[&child].clone();
        let lineage: Lineage = serde_json::from_str(&lineage).unwrap();
        let agent = WaitingAgent {
            origin: Arc::new(Origin {
                lane,
                agent: lineage.agent().to_owned(),
                namespace: lineage.namespace,
                path: lineage.path,
                cause: lineage.cause,
                visibility: lineage.visibility,
                display_text: None,
            }),
            head: machine.head,
            carried_from: machine.position.carried_from,
            open: machine.open_questions().cloned().collect(),
        };
        let below = machine.parked_children().into_iter();
        std::iter::once(agent)
            .chain(below.flat_map(|child| self.waiting_agents(child)))
            .collect()
    }
}

impl Disk {
    fn note_usage(&mut self, run: RunId) {
        if let Some(meter) = self.meters.get(&run) {
            self.used.insert(run, meter.usage(Timestamp(0)));
        }
    }

    fn put_position(&mut self, lane: Lane, position: &Position) {
        if let Some(last) = self.lanes.get_mut(&lane).and_then(|rows| rows.last_mut()) {
            last.position = serde_json::to_string(position).unwrap();
        }
    }
}

/// The journal of one lane.
pub(super) struct Memory {
    store: Arc<Store>,
    lane: Lane,
    run: RunId,
    root: RunId,
}

impl Memory {
    pub(super) fn new(store: &Arc<Store>, lane: Lane, run: RunId, root: RunId) -> Self {
        Self {
            store: Arc::clone(store),
            lane,
            run,
            root,
        }
    }

    fn put_writes(&self, disk: &mut Disk, pending: Vec<PendingWrite>) {
        for note in pending {
            match note {
                PendingWrite::Entry { entry, position } => {
                    let row = Row {
                        id: entry.id,
                        step: entry.step,
                        node: entry.node,
                        run: self.root,
                        writes: serde_json::to_string(&entry.writes).unwrap(),
                        position: serde_json::to_string(&position).unwrap(),
                    };
                    let rows = disk.lanes.entry(self.lane).or_default();
                    assert_eq!(rows.last().map(|row| row.id), entry.parent, "a history without holes");
                    rows.push(row);
                }
                PendingWrite::Items(changes) => disk.items.extend(changes),
                PendingWrite::Left(..) => {}
                PendingWrite::Fact(fact) => disk.facts.push((self.lane, serde_json::to_string(&fact).unwrap())),
                PendingWrite::Repeated {
                    agent,
                    head,
                    carried_from,
                    interrupts,
                } => {
                    let lane = agent.map_or(self.lane, |agent| agent.lane);
                    let asked = Fact::Asked {
                        head,
                        carried_from,
                        interrupts,
                    };
                    disk.facts.push((lane, serde_json::to_string(&asked).unwrap()));
                }
            }
        }
    }

    fn below(&self, child: RunId) -> Box<dyn Journal> {
        Box::new(Self::new(&self.store, Lane::Child(child), child, self.root))
    }
}

impl Journal for Memory {
    fn commit<'a>(&'a self, machine: &'a Machine, pending: Vec<PendingWrite>) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let is_answer = |write: &PendingWrite| matches!(write, PendingWrite::Fact(Fact::Answered { .. }));
            let answers = pending.iter().any(is_answer);
            for _ in 0..1000 {
                if !answers || !self.store.holds_answers() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            self.store.write(|disk| {
                self.put_writes(disk, pending);
                disk.put_position(self.lane, &machine.position);
                disk.note_usage(self.run);
            })
        })
    }

    fn wait_for_commits(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    fn publish(&self, _: Delta) {
        self.store.disk().deltas += 1;
    }

    fn publish_start(&self, _: AgentWork) {}

    fn publish_output(&self, _: String, _: String) {}

    fn child<'a>(
        &'a self,
        parent: &'a Machine,
        input: NewChildRun,
    ) -> BoxFuture<'a, Result<ChildAdmission, ExitReason>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            if input.lineage.depth > input.max_depth {
                return Ok(ChildAdmission::Refused(format!("not deeper than {}", input.max_depth)));
            }
            self.store.write(|disk| {
                let lineage = serde_json::to_string(&input.lineage).unwrap();
                disk.children.entry(input.id).or_insert((lineage, input.order));
                disk.put_position(self.lane, &parent.position);
                disk.note_usage(self.run);
            })?;
            let (_, child) = self.find_child(input.id).await?.unwrap();
            Ok(ChildAdmission::Admitted(Box::new(child)))
        })
    }

    fn new_children<'a>(
        &'a self,
        parent: &'a Machine,
        pending: Vec<PendingWrite>,
        requests: Vec<(NewChildRun, Option<ChildStart>)>,
    ) -> BoxFuture<'a, Result<Option<Vec<Child>>, ExitReason>> {
        Box::pin(async move {
            tokio::task::yield_now().await;
            let is_known = |request: &NewChildRun| self.store.disk().children.contains_key(&request.id);
            let is_refused = |request: &NewChildRun| request.lineage.depth > request.max_depth;
            if requests
                .iter()
                .any(|(request, _)| is_known(request) || is_refused(request))
            {
                return Ok(None);
            }
            self.store.write(|disk| {
                self.put_writes(disk, pending);
                for (request, start) in &requests {
                    let lineage = serde_json::to_string(&request.lineage).unwrap();
                    disk.children.insert(request.id, (lineage, request.order.clone()));
                    if let Some(start) = start {
                        let lane = Lane::Child(request.id);
                        let child = Self::new(&self.store, lane, request.id, self.root);
                        child.put_writes(disk, start.pending.clone());
                        disk.put_position(lane, &start.machine.position);
                    }
                }
                disk.put_position(self.lane, &parent.position);
                disk.note_usage(self.run);
            })?;
            let mut children = vec![];
            for (request, start) in requests {
                let (_, child) = self.find_child(request.id).await?.unwrap();
                children.push(match start {
                    Some(start) => Child {
                        machine: start.machine,
                        input: Some(start.input),
                        is_begun: true,
                        ..child
                    },
                    None => child,
                });
            }
            Ok(Some(children))
        })
    }

    fn run(&self) -> RunId {
        self.run
    }

    fn find_child<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<(Lineage, Child)>, ExitReason>> {
        Box::pin(async move {
            let Some((lineage, order)) = self.store.disk().children.get(&child).cloned() else {
                return Ok(None);
            };
            let lane = Lane::Child(child);
            let mut machine = self.store.machine(lane);
            if machine.position.failure.is_none() && machine.position.asked.iter().any(|asked| asked.answer.is_some()) {
                machine.prepare_for_run();
            }
            let begun = self
                .store
                .rows(lane)
                .into_iter()
                .find(|row| row.node == START && row.step == 0);
            let input = begun.map(|row| serde_json::from_str::<Vec<Update>>(&row.writes).unwrap().remove(0));
            let stop = self.store.stop_of(child);
            let meter = self.store.meter_of(child);
            let child = Child {
                id: child,
                machine,
                order,
                stop,
                meter,
                input,
                known: None,
                is_begun: false,
                journal: self.below(child),
            };
            Ok(Some((serde_json::from_str(&lineage).unwrap(), child)))
        })
    }

    fn child_record<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Option<ChildRecord>, ExitReason>> {
        Box::pin(async move {
            let found = self.find_child(child).await?;
            Ok(found.map(|(lineage, child)| ChildRecord {
                lineage,
                machine: child.machine,
                order: child.order,
                known: child.known,
                input: child.input,
            }))
        })
    }

    fn waiting_agents<'a>(&'a self, child: RunId) -> BoxFuture<'a, Result<Vec<WaitingAgent>, ExitReason>> {
        Box::pin(async move { Ok(self.store.waiting_agents(child)) })
    }

    fn child_cancelled<'a>(&'a self, _: RunId) -> BoxFuture<'a, Result<(), ExitReason>> {
        Box::pin(async move { std::future::pending().await })
    }
}
