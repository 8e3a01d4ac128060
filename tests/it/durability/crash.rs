//! A run survives its server, which may be killed at any instant.
//!
//! The run has two subagents that work side by side, approvals in one of them and in the main agent, and tools with
//! effects outside the server. The server is killed at many instants: after a random time, when a tool is called or has
//! answered, after an event was received or an answer was accepted, and sometimes once more while the next process
//! starts. The outcome has to be that of an undisturbed run.
//!
//! `ADJUTANT_KILLS` sets the number of kills on each engine (50), `ADJUTANT_KILL_SEED` repeats a test, and
//! `ADJUTANT_KILL_PROGRAM` names another build of the program, such as a release.

use std::time::{Duration, Instant};

use tokio::sync::watch;

use super::random::{Random, kills, seed};
use crate::support::{TestServer, on_both_engines};

mod handover;
mod reviewer;
mod scenario;

use reviewer::{Progress, Reviewer};
use scenario::{Measure, Outcome};

/// The number of servers that are killed side by side.
const SERVERS: u64 = 4;

/// The time limit of one disturbed run.
const PATIENCE: Duration = Duration::from_secs(90);

/// An instant at which the server is killed.
#[derive(Debug, Clone)]
struct Kill {
    when: When,
    /// The delay after that.
    delay: Duration,
    /// The delay after the start of the next process at which that one is killed as well.
    again: Option<Duration>,
}

#[derive(Debug, Clone, Copy)]
enum When {
    /// This long after the start.
    Elapsed(Duration),
    /// When tools have been called this often.
    Called(usize),
    /// When tools have answered this often.
    Answered(usize),
    /// When the reviewer has received this many events.
    Events(usize),
    /// When the server has accepted this many answers of the reviewer.
    Accepted(usize),
}

impl Kill {
    fn random(random: &mut Random, number: u64, measure: &Measure) -> Self {
        let took = u64::try_from(measure.took.as_micros()).expect("a short run");
        let mut one_of = |most: usize| {
            let most = u64::try_from(most).expect("a small number");
            1 + usize::try_from(random.below(most)).expect("a small number")
        };
        let when = match number % 5 {
            0 => When::Elapsed(Duration::from_micros(random.below(took))),
            1 => When::Called(one_of(measure.called)),
            2 => When::Answered(one_of(measure.answered)),
            3 => When::Events(one_of(measure.progress.events)),
            _ => When::Accepted(one_of(measure.progress.accepted)),
        };
        // Mostly without delay: the windows that matter are narrow.
        let longest = [0, 2_000, 10_000, 50_000][usize::try_from(random.below(4)).expect("below four")];
        let delay = Duration::from_micros(random.below(longest));
        let again = random.once_in(4).then(|| Duration::from_micros(random.below(400_000)));
        Self { when, delay, again }
    }

    /// Waits for the instant, or for the end of the run if that is earlier, and kills the server.
    async fn strikes(
        self,
        server: TestServer,
        mut progress: watch::Receiver<Progress>,
        mut end: watch::Receiver<bool>,
    ) {
        let instant = async {
            match self.when {
                When::Elapsed(delay) => tokio::time::sleep(delay).await,
                When::Called(times) => server.tools.any_called(times).await,
                When::Answered(times) => server.tools.any_answered(times).await,
                When::Events(times) => {
                    let waited = progress.wait_for(|progress| progress.events >= times).await;
                    waited.expect("the reviewer goes on");
                }
                When::Accepted(times) => {
                    let waited = progress.wait_for(|progress| progress.accepted >= times).await;
                    waited.expect("the reviewer goes on");
                }
            }
        };
        tokio::select! {
            () = instant => {}
            _ = end.wait_for(|has_ended| *has_ended) => {}
        }
        tokio::time::sleep(self.delay).await;
        match self.again {
            Some(delay) => server.is_killed_twice_and_started_again(delay).await,
            None => server.is_killed_and_started_again().await,
        }
    }
}

/// Runs the server as a process with the agents of these tests. Leases are short, since on a shared database a dead
/// process keeps its runs for that long.
async fn runs_in_a_process(server: &TestServer) {
    let agents = include_str!("crash/agents.toml").replace("TOOLS", &server.tools.base);
    server.is_configured_with(&agents).await;
    let leases = ["lease_s = 2.0\nheartbeat_s = 0.5", "lease_s = 1.0\nheartbeat_s = 0.2"];
    server.is_reconfigured(leases[0], leases[1]).await;
    server.moves_into_a_process().await;
}

/// Measures the run without any disturbance.
async fn measured(server: &TestServer, random: Random) -> Measure {
    server.tools.forget();
    let mut reviewer = Reviewer::of(server, random);
    let began = Instant::now();
    reviewer.completes(&scenario::message("m0")).await;
    let took = began.elapsed();
    let mut outcome = scenario::outcome(&reviewer, "m0").await.expect("the server runs");
    outcome.effects = scenario::counted(&server.tools.calls(), "m0");
    assert!(!outcome.effects.is_empty(), "{outcome:#?}");
    assert!(outcome.effects.values().all(|times| *times == 1), "{outcome:#?}");
    assert_eq!(outcome.interrupts.len(), 2, "{outcome:#?}");
    assert_eq!(outcome.children.len(), 2, "{outcome:#?}");
    Measure {
        outcome,
        took,
        called: server.tools.calls().len(),
        answered: server.tools.answers(),
        progress: *reviewer.progress().borrow(),
    }
}

/// Completes a run while the server is killed. Returns what is wrong afterwards.
async fn disturbed(server: TestServer, kill: Kill, random: Random, mark: String, right: Outcome) -> Vec<String> {
    server.tools.forget();
    let mut reviewer = Reviewer::of(&server, random);
    let message = scenario::message(&mark);
    let end = watch::Sender::new(false);
    let killing = tokio::spawn(kill.strikes(server.clone(), reviewer.progress(), end.subscribe()));
    reviewer.completes(&message).await;
    end.send_replace(true);
    killing.await.expect("the server is killed");
    reviewer.completes(&message).await;
    let calls = server.tools.calls();
    let differences = scenario::differences(&reviewer, &mark, &calls, &right).await;
    differences.expect("the server runs")
}

/// Runs the experiments with these numbers on one server. Returns a text about each that failed.
async fn experiments(server: TestServer, seed: u64, numbers: Vec<u64>) -> Vec<String> {
    let measure = measured(&server, Random::of(seed, u64::MAX)).await;
    for number in numbers {
        let mut random = Random::of(seed, number);
        let kill = Kill::random(&mut random, number, &measure);
        let outcome = measure.outcome.clone();
        let experiment = tokio::spawn(disturbed(
            server.clone(),
            kill.clone(),
            random,
            format!("m{number}"),
            outcome,
        ));
        let wrong = match tokio::time::timeout(PATIENCE, experiment).await {
            Ok(Ok(differences)) => differences,
            Ok(Err(panic)) => vec![panic.to_string()],
            Err(_) => vec!["it took too long".to_owned()],
        };
        if !wrong.is_empty() {
            // A broken server would break the next experiments, too.
            let log = server.log().text();
            return vec![format!(
                "experiment {number}, {kill:?}:\n- {}\n{log}",
                wrong.join("\n- ")
            )];
        }
    }
    vec![]
}

on_both_engines! {
    a_run_survives_a_kill_of_its_server_at_any_instant,
}

async fn a_run_survives_a_kill_of_its_server_at_any_instant(first: TestServer) {
    // One engine after the other: on a busy machine the instants would not be spread over the run.
    static ONE_ENGINE: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let _guard = ONE_ENGINE.lock().await;
    let seed = seed();
    println!("{:?}: {} kills, ADJUTANT_KILL_SEED={seed}", first.engine, kills());
    let mut servers = vec![first.clone()];
    for _ in 1..SERVERS.min(kills()) {
        servers.push(TestServer::start(first.engine).await.expect("the engine is there"));
    }
    let mut running = vec![];
    for (at, server) in (0..).zip(&servers) {
        runs_in_a_process(server).await;
        let numbers = (0..kills()).filter(|number| number / 5 % SERVERS == at).collect();
        running.push(tokio::spawn(experiments(server.clone(), seed, numbers)));
    }
    let mut failures = vec![];
    for experiments in running {
        failures.extend(experiments.await.expect("the undisturbed run ends"));
    }
    assert!(
        failures.is_empty(),
        "seed {seed}: {} runs did not survive\n{}",
        failures.len(),
        failures.join("\n\n")
    );
    for server in servers.into_iter().skip(1) {
        server.finish().await;
    }
}
