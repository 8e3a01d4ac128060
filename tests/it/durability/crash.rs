//! The server may die at any instant, and nobody has to know.
//!
//! A run with two subagents at work side by side, approvals in one of them and in the main agent, and tools that do
//! things in the world is disturbed at many instants: by chance, when a tool is called or has just answered, right after
//! an event was seen, right after an answer was accepted, and once more while the next process recovers. Each time the
//! story has to end like the undisturbed one.
//!
//! `ADJUTANT_KILLS` says how many instants on each engine (50), `ADJUTANT_KILL_SEED` repeats what chance did,
//! `ADJUTANT_KILL_PROGRAM` names another build of the program, such as a release.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::support::Engine;

mod chance;
mod client;
mod effects;
mod handover;
mod process;
mod scenario;

use chance::Chance;
use client::Client;
use effects::{EffectLog, Progress};
use process::{Environment, KillableServer};
use scenario::{Measure, Outcome};

/// How many houses are at work side by side.
const HOUSES: u64 = 4;

/// How long one disturbed run may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// An instant at which the server dies.
#[derive(Debug, Clone)]
struct Kill {
    when: When,
    /// How long after that.
    then: Duration,
    /// How long after its start the next process dies as well.
    again: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum When {
    /// So long after the wish was sent.
    After(Duration),
    /// When tools were called so often.
    Called(u64),
    /// When they have answered so often.
    Answered(u64),
    /// When the client has seen so many events.
    Events(u64),
    /// When so many answers of the client were accepted.
    Resumed(u64),
}

impl Kill {
    fn by(chance: &mut Chance, number: u64, measure: &Measure) -> Self {
        let Progress {
            called,
            answered,
            events,
            resumed,
        } = measure.seen;
        let took = u64::try_from(measure.took.as_micros()).expect("a short run");
        let when = match number % 5 {
            0 => When::After(Duration::from_micros(chance.below(took))),
            1 => When::Called(1 + chance.below(called)),
            2 => When::Answered(1 + chance.below(answered)),
            3 => When::Events(1 + chance.below(events)),
            _ => When::Resumed(1 + chance.below(resumed)),
        };
        // Mostly at once: the windows that matter are narrow.
        let longest = [0, 2_000, 10_000, 50_000][usize::try_from(chance.below(4)).expect("below four")];
        let then = Duration::from_micros(chance.below(longest));
        let again = chance.once_in(4).then(|| Duration::from_micros(chance.below(400_000)));
        Self { when, then, again }
    }

    /// Waits for the instant and kills.
    async fn strikes(self, house: Arc<KillableServer>) {
        match self.when {
            When::After(delay) => tokio::time::sleep(delay).await,
            When::Called(times) => house.desk.waits_for(|seen| seen.called >= times).await,
            When::Answered(times) => house.desk.waits_for(|seen| seen.answered >= times).await,
            When::Events(times) => house.desk.waits_for(|seen| seen.events >= times).await,
            When::Resumed(times) => house.desk.waits_for(|seen| seen.resumed >= times).await,
        }
        tokio::time::sleep(self.then).await;
        house.is_killed_and_started_again(self.again).await;
    }
}

/// Has the run done without any disturbance.
async fn measured(house: &Arc<KillableServer>, chance: Chance) -> Measure {
    house.desk.forgets();
    let mut client = Client::of(house, chance, uuid::Uuid::new_v4().to_string());
    let began = Instant::now();
    client.has_its_way(&scenario::wish("m0")).await;
    let took = began.elapsed();
    let mut outcome = scenario::outcome(&client, "m0").await.expect("nobody disturbs");
    outcome.effects = scenario::counted(&house.desk.effects(), "m0");
    assert!(outcome.effects.values().all(|times| *times == 1), "{outcome:#?}");
    assert_eq!(outcome.asked.len(), 2, "{outcome:#?}");
    assert_eq!(outcome.children.len(), 2, "{outcome:#?}");
    Measure {
        outcome,
        took,
        seen: house.desk.seen(),
    }
}

/// Has the run done and the server killed meanwhile. Everything that is wrong afterwards.
async fn disturbed(
    house: Arc<KillableServer>,
    kill: Kill,
    chance: Chance,
    mark: String,
    right: Outcome,
) -> Vec<String> {
    house.desk.forgets();
    let mut client = Client::of(&house, chance, uuid::Uuid::new_v4().to_string());
    let wish = scenario::wish(&mark);
    let striking = tokio::spawn(kill.strikes(Arc::clone(&house)));
    client.has_its_way(&wish).await;
    // An instant that did not come in this run, as when fewer events were seen, comes now.
    house.desk.note(|seen| {
        *seen = Progress {
            called: u64::MAX,
            answered: u64::MAX,
            events: u64::MAX,
            resumed: u64::MAX,
        }
    });
    striking.await.expect("the killer does not fail");
    client.has_its_way(&wish).await;
    let effects = house.desk.effects();
    scenario::complaints(&client, &mark, &effects, &right)
        .await
        .expect("nobody disturbs any more")
}

/// The experiments of one house. Their failures.
async fn experiments(engine: Engine, seed: u64, numbers: Vec<u64>) -> Option<Vec<String>> {
    let ground = Environment::fresh(engine).await?;
    let house = KillableServer::build(&ground, &EffectLog::open().await).await;
    let measure = measured(&house, Chance::of(seed, u64::MAX)).await;
    let mut failures = vec![];
    for number in numbers {
        let mut chance = Chance::of(seed, number);
        let kill = Kill::by(&mut chance, number, &measure);
        let story = disturbed(
            Arc::clone(&house),
            kill.clone(),
            chance,
            format!("m{number}"),
            measure.outcome.clone(),
        );
        let told = match tokio::time::timeout(PATIENCE, tokio::spawn(story)).await {
            Ok(Ok(complaints)) => complaints,
            Ok(Err(panic)) => vec![panic.to_string()],
            Err(_) => vec!["it took too long".to_owned()],
        };
        if !told.is_empty() {
            let log = house.log();
            failures.push(format!(
                "experiment {number}, {kill:?}:\n- {}\n{log}",
                told.join("\n- ")
            ));
            // What is broken would break the next experiments too.
            break;
        }
    }
    house.is_torn_down().await;
    if failures.is_empty() {
        ground.clear().await;
    }
    Some(failures)
}

async fn a_run_survives_its_server(engine: Engine) {
    // One engine after the other: the machine has to be quick enough for the instants to be spread.
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = TURN.lock().await;
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let kills = number("ADJUTANT_KILLS").unwrap_or(50);
    let seed = number("ADJUTANT_KILL_SEED").unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0);
    println!("{engine:?}: {kills} kills, ADJUTANT_KILL_SEED={seed}");
    let houses = (0..HOUSES.min(kills)).map(|house| {
        let numbers = (0..kills).filter(|number| number / 5 % HOUSES == house).collect();
        tokio::spawn(experiments(engine, seed, numbers))
    });
    let mut failures = vec![];
    for house in houses.collect::<Vec<_>>() {
        let Some(told) = house.await.expect("a house does not fall") else {
            assert!(
                !crate::support::server::is_everything_required(),
                "there is no {engine:?}, and a skip is a failure"
            );
            return;
        };
        failures.extend(told);
    }
    drop(turn);
    assert!(
        failures.is_empty(),
        "seed {seed}: {} runs did not survive\n{}",
        failures.len(),
        failures.join("\n\n")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_server_at_any_instant_on_sqlite() {
    a_run_survives_its_server(Engine::Sqlite).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_survives_its_server_at_any_instant_on_postgres() {
    a_run_survives_its_server(Engine::Postgres).await;
}
