//! Tasks that agents of this server do.

use std::time::Duration;

use super::{DEEPEST, PARENT_RUN, sight, status_of, strategy, told, wish_for, wish_to_give_up};
use crate::db::{self, DbError, DbResult, Tx};
use crate::domain::background::{Ancestry, Sight, TaskRecord, TaskRun, TaskStatus};
use crate::domain::id::{RunId, TaskId, ThreadId};
use crate::domain::run::{Multitask, Run};
use crate::domain::thread::Thread;
use crate::runtime::admission::{self, Admitted, House, Occasion};
use crate::runtime::{CancelAction, CancelError, Runs, StartError, Target, Wish};
use crate::tool::Scope;
use crate::tool::background::Order;
use crate::tool::budget::{Budget, Exceeded};

/// How long it is waited for a cancelled task to stop, and how often it is looked.
const STOPS_WITHIN: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(20);

/// What is said of a task that another conversation has begun, or nobody.
const STRANGER: &str = "This task was not begun in this conversation.";

/// What is said to a subagent: its work ends with its result, and nobody would be left to be told what comes of a task.
const NOT_BELOW: &str = "Only the main agent of a conversation can begin background tasks. Do the work yourself.";

/// What came of asking for a run.
enum Begun {
    /// There is one now.
    Now(Box<Admitted>),
    /// The same call asked for it before.
    Before(Box<Run>),
}

/// Who asks, as the transactions need it.
struct Asker {
    run: RunId,
    thread: ThreadId,
    depth: u32,
    budget: Budget,
}

impl Asker {
    fn of(scope: &Scope) -> Self {
        Self { run: scope.run, thread: scope.thread, depth: scope.depth, budget: scope.budget.clone() }
    }
}

impl Runs {
    /// Begins a task on this server.
    pub(super) async fn start_task(&self, scope: &Scope, order: Order<'_>) -> Result<TaskRun, String> {
        if scope.depth > 0 {
            return Err(NOT_BELOW.to_owned());
        }
        let (thread, run) = ids(scope, ThreadId::of_background)?;
        let wish = wish_for(scope, order, thread, Multitask::Reject);
        self.0.webhooks.check(&wish.request).map_err(|invalid| told(&invalid.into()))?;
        let (asker, now) = (Asker::of(scope), scope.now());
        let record = TaskRecord {
            task: thread,
            parent_thread: scope.thread,
            parent_run: scope.run,
            parent_assistant: scope.assistant,
            call: order.call.id.clone(),
            agent: order.agent.name.clone(),
            graph_id: order.agent.graph_id.clone(),
            url: None,
            ancestry: Ancestry { top: scope.run, nesting: 1, levels: None, tree: None },
            notify: order.agent.notify_parent,
            watched: true,
            told: None,
            created_at: now,
        };
        let (house, (permit, occasion)) = (self.0.house(), self.occasion());
        let write = self.0.db.write(move |tx| {
            Box::pin(async move { begin(tx, (run, &wish), record, &asker, (&house, occasion)).await })
        });
        let begun = write.await.map_err(fault)??;
        self.0.waker.arm();
        Ok(self.taken_up(begun, permit))
    }

    /// Gives a task on this server a further message.
    pub(super) async fn update_task(&self, scope: &Scope, task: ThreadId, order: Order<'_>) -> Result<TaskRun, String> {
        let (_, run) = ids(scope, |_| task)?;
        let wish = wish_for(scope, order, task, strategy(order.agent.update_strategy));
        self.0.webhooks.check(&wish.request).map_err(|invalid| told(&invalid.into()))?;
        let asker = Asker::of(scope);
        let (house, (permit, occasion)) = (self.0.house(), self.occasion());
        let write = self
            .0
            .db
            .write(move |tx| Box::pin(async move { go_on(tx, (run, &wish), task, &asker, (&house, occasion)).await }));
        let begun = write.await.map_err(fault)??;
        self.0.waker.arm();
        Ok(self.taken_up(begun, permit))
    }

    /// How a task on this server stands.
    pub(super) async fn look_at_task(&self, scope: &Scope, task: ThreadId) -> Result<Sight, String> {
        let parent = scope.thread;
        let read = self.0.db.read(move |tx| {
            Box::pin(async move {
                match own_task(tx, task, parent).await? {
                    Some(_) => sight::look(tx, task).await.map(Some),
                    None => Ok(None),
                }
            })
        });
        read.await.map_err(fault)?.ok_or_else(|| STRANGER.to_owned())
    }

    /// Stops a task on this server: its runs, those that wait for their turn first, or what it waits for.
    pub(super) async fn cancel_task(&self, scope: &Scope, task: ThreadId) -> Result<Sight, String> {
        let seen = self.look_at_task(scope, task).await?;
        if seen.status == TaskStatus::Waiting {
            return self.give_up_task(scope, task, seen).await;
        }
        if seen.status.is_final() {
            return Ok(seen);
        }
        let in_flight = self.0.db.read(move |tx| Box::pin(db::runs::in_flight(tx, task)));
        for run in in_flight.await.map_err(fault)?.into_iter().rev() {
            match self.cancel(task, run.id, CancelAction::Interrupt).await {
                Ok(()) | Err(CancelError::NoRun | CancelError::Over | CancelError::NoUndo) => {}
                Err(CancelError::Fault(error)) => return Err(fault(error)),
            }
        }
        let began = tokio::time::Instant::now();
        loop {
            let seen = self.look_at_task(scope, task).await?;
            if seen.status.is_outcome() {
                return Ok(seen);
            }
            if began.elapsed() >= STOPS_WITHIN {
                // It was told to stop and cannot help but do so.
                return Ok(Sight { status: TaskStatus::Cancelled, ..seen });
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Gives up what a task waits for: nobody is asked any more.
    async fn give_up_task(&self, scope: &Scope, task: ThreadId, seen: Sight) -> Result<Sight, String> {
        let (_, run) = ids(scope, |_| task)?;
        let parent = scope.thread;
        let record = self.0.db.read(move |tx| Box::pin(own_task(tx, task, parent))).await.map_err(fault)?;
        let wish = wish_to_give_up(scope, task, &record.ok_or_else(|| STRANGER.to_owned())?.graph_id);
        let (house, (permit, occasion)) = (self.0.house(), self.occasion());
        let write = self.0.db.write(move |tx| {
            Box::pin(async move {
                if let Some(before) = db::runs::get_by_id(tx, run).await? {
                    return Ok(Ok(Begun::Before(Box::new(before))));
                }
                let admitted = admission::start_as(tx, run, &wish, &house, occasion).await?;
                Ok(admitted.map(|admitted| Begun::Now(Box::new(admitted))))
            })
        });
        let begun = write.await.map_err(fault)?.map_err(|error: StartError| told(&error))?;
        self.taken_up(begun, permit);
        Ok(Sight { status: TaskStatus::Cancelled, interrupts: vec![], ..seen })
    }

    /// Begins with a run that was asked for, if it was not asked for before.
    fn taken_up(&self, begun: Begun, permit: Option<tokio::sync::OwnedSemaphorePermit>) -> TaskRun {
        let run = match begun {
            Begun::Now(admitted) => self.take_up(*admitted, permit),
            Begun::Before(run) => *run,
        };
        TaskRun { thread: run.thread.to_string(), run: run.id.to_string(), status: status_of(run.status) }
    }
}

/// The thread and the run that a call makes.
fn ids(scope: &Scope, thread: impl FnOnce(TaskId) -> ThreadId) -> Result<(ThreadId, RunId), String> {
    let task = scope.task.ok_or_else(|| "Background tasks are begun by tool calls only.".to_owned())?;
    Ok((thread(task), RunId::of_background(task)))
}

/// The record of a task that this conversation has begun.
async fn own_task(tx: &mut Tx<'_>, task: ThreadId, parent: ThreadId) -> DbResult<Option<TaskRecord>> {
    Ok(db::background::find(tx, task).await?.filter(|record| record.parent_thread == parent))
}

/// Begins a task, if that is allowed. Everything is checked and counted under the lock of the thread that asks, so that
/// calls side by side see each other.
async fn begin(
    tx: &mut Tx<'_>,
    (id, wish): (RunId, &Wish),
    record: TaskRecord,
    asker: &Asker,
    (house, occasion): (&House, Occasion),
) -> DbResult<Result<Begun, String>> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Ok(Begun::Before(Box::new(before))));
    }
    let locked = db::threads::lock(tx, asker.thread).await?;
    let launcher = db::runs::get_by_id(tx, asker.run).await?;
    let (Some(_), Some(launcher)) = (locked, launcher) else {
        return Ok(Err("The conversation is being deleted; nothing was started.".to_owned()));
    };
    let ancestry = match descend(&launcher, asker) {
        Ok(ancestry) => ancestry,
        Err(refusal) => return Ok(Err(refusal)),
    };
    if let Some(refused) = beyond_tree(tx, &ancestry).await? {
        return Ok(Err(limited(&refused)));
    }
    let not_over = count(db::background::not_over(tx, asker.thread).await?);
    if let Err(refused) = asker.budget.spend_background(asker.depth, not_over, occasion.now) {
        return Ok(Err(limited(&refused)));
    }
    let record = TaskRecord { ancestry: ancestry.clone(), ..record };
    let mut wish = wish.clone();
    wish.request.background = Some(ancestry);
    match admission::start_as(tx, id, &wish, house, occasion).await? {
        Ok(admitted) => {
            db::background::insert(tx, &record).await?;
            Ok(Ok(Begun::Now(Box::new(admitted))))
        }
        Err(refusal) => {
            asker.budget.not_begun(not_over);
            Ok(Err(told(&refusal)))
        }
    }
}

/// The place of a task below the run that asks for it.
fn descend(launcher: &Run, asker: &Asker) -> Result<Ancestry, String> {
    let above = launcher.request.background.as_ref();
    let nesting = above.map_or(0, |above| above.nesting) + 1;
    let levels = asker.budget.levels_below(asker.depth);
    if levels.is_none() && nesting > DEEPEST {
        return Err(format!(
            "Background tasks nest at most {DEEPEST} deep, and this one would be number {nesting}. Nothing was started; \
             do the work yourself."
        ));
    }
    let of_tree = asker.budget.of_tree();
    let tree = above.and_then(|above| above.tree.clone());
    Ok(Ancestry {
        top: above.map_or(launcher.id, |above| above.top),
        nesting,
        levels: levels.map(|levels| levels.saturating_sub(1)),
        tree: tree.or_else(|| (*of_tree != Default::default()).then(|| Box::new(of_tree.clone()))),
    })
}

/// The limit of the whole tree that one more task would break. Whoever else begins one in the tree waits until this one is
/// there.
async fn beyond_tree(tx: &mut Tx<'_>, ancestry: &Ancestry) -> DbResult<Option<Exceeded>> {
    let Some(tree) = &ancestry.tree else { return Ok(None) };
    db::background::lock_tree(tx, ancestry.top).await?;
    let (total, not_over) = db::background::in_tree(tx, ancestry.top).await?;
    let limits =
        [("children_total", tree.children_total, total), ("children_at_once", tree.children_at_once, not_over)];
    let broken =
        limits.into_iter().find_map(|(limit, most, used)| Some((limit, most.filter(|most| count(used) >= *most)?)));
    Ok(broken.map(|(limit, most)| Exceeded { limit, value: most.to_string(), of_tree: true }))
}

/// Gives a task a further message, if that is allowed.
async fn go_on(
    tx: &mut Tx<'_>,
    (id, wish): (RunId, &Wish),
    task: ThreadId,
    asker: &Asker,
    (house, occasion): (&House, Occasion),
) -> DbResult<Result<Begun, String>> {
    if let Some(before) = db::runs::get_by_id(tx, id).await? {
        return Ok(Ok(Begun::Before(Box::new(before))));
    }
    db::threads::lock(tx, asker.thread).await?;
    let Some(record) = own_task(tx, task, asker.thread).await? else {
        return Ok(Err(STRANGER.to_owned()));
    };
    let in_flight = db::runs::in_flight(tx, task).await?;
    let mine = serde_json::json!(asker.run);
    let is_mine = |run: &Run| run.metadata.get(PARENT_RUN) == Some(&mine);
    let waits = in_flight.iter().any(|run| status_of(run.status) == TaskStatus::Pending && is_mine(run));
    if wish.request.multitask == Multitask::Enqueue && waits {
        return Ok(Err(
            "A message to this task waits already for its turn; nothing was added. Put all that is to be said \
            into one message, or wait until the task has taken it up."
                .to_owned(),
        ));
    }
    if in_flight.is_empty() {
        let not_over = count(db::background::not_over(tx, asker.thread).await?);
        if let Err(refused) = asker.budget.room_in_background(not_over) {
            return Ok(Err(limited(&refused)));
        }
    }
    let mut wish = wish.clone();
    wish.target = Target::Thread(task);
    wish.request.background = Some(record.ancestry);
    match admission::start_as(tx, id, &wish, house, occasion).await? {
        Ok(admitted) => {
            db::background::watch(tx, task).await?;
            Ok(Ok(Begun::Now(Box::new(admitted))))
        }
        Err(refusal) => Ok(Err(told(&refusal))),
    }
}

fn count(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

fn limited(refused: &Exceeded) -> String {
    format!("{refused} Nothing was started; do the work yourself, or wait until a task is over.")
}

fn fault(error: DbError) -> String {
    told(&StartError::Fault(error))
}

/// The ancestry of a run that somebody asks for on the thread of a task: that of the task.
pub(in crate::runtime) async fn inherited(tx: &mut Tx<'_>, thread: &Thread) -> DbResult<Option<Ancestry>> {
    if !thread.metadata.contains_key("parent_thread_id") {
        return Ok(None);
    }
    Ok(db::background::find(tx, thread.id).await?.map(|record| record.ancestry))
}
