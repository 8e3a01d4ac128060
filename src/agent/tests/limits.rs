//! Property tests of limits: they hold for every way to delegate, and across crashes.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::cast::{COUNT, SPAWN, World, agent_of};
use super::memory::Crash;
use super::{Stage, says};
use crate::agent::subagent_registry::{Build, SubagentRegistry};
use crate::agent::{Agent, LoopOutcome};
use crate::domain::checkpoint::Lane;
use crate::domain::event::Fact;
use crate::domain::id::RunId;
use crate::domain::limits::Limits;
use crate::domain::machine::MODEL;
use crate::domain::run::Lineage;
use crate::middleware::Middleware;
use crate::middleware::limits::UsageLimits;

/// An action of an agent.
#[derive(Debug, Clone)]
enum Action {
    Count,
    /// Delegate these actions to a subagent, in one of the possible ways.
    Delegate(&'static str, ActionScript),
}

/// Steps of calls that run in parallel.
type ActionScript = Vec<Vec<Action>>;

fn action(below: u32) -> BoxedStrategy<Action> {
    if below == 0 {
        return Just(Action::Count).boxed();
    }
    let door = proptest::sample::select(vec!["task", SPAWN]);
    let delegate = (door, actions(below - 1)).prop_map(|(door, actions)| Action::Delegate(door, actions));
    prop_oneof![1 => Just(Action::Count), 3 => delegate].boxed()
}

fn actions(below: u32) -> impl Strategy<Value = ActionScript> {
    prop::collection::vec(prop::collection::vec(action(below), 1..=4), 1..=2)
}

fn limits() -> impl Strategy<Value = Limits> {
    let small = || prop::option::weighted(0.4, 1..6_u64);
    let depth = prop::option::weighted(0.3, 1..3_u32);
    (depth, small(), small(), small(), small()).prop_map(|(depth, total, at_once, model_calls, tool_calls)| Limits {
        depth,
        children_total: total,
        children_at_once: at_once,
        model_calls,
        tool_calls,
        ..Limits::default()
    })
}

/// Returns the plot as a script for the scripted model.
fn scripted(actions: &ActionScript, place: &str) -> String {
    let call = |step: usize, at: usize, action: &Action| {
        let id = format!("{place}.{step}-{at}");
        match action {
            Action::Count => json!({"id": id, "name": COUNT, "args": {}}),
            Action::Delegate(door, below) => {
                let args = json!({"description": scripted(below, &id), "subagent_type": "one"});
                json!({"id": id, "name": door, "args": args})
            }
        }
    };
    let steps = actions.iter().enumerate().map(|(step, calls)| {
        let calls = calls.iter().enumerate();
        let calls: Vec<Value> = calls.map(|(at, action)| call(step, at, action)).collect();
        json!({"tool_calls": calls})
    });
    let steps: Vec<Value> = steps.chain([json!({"text": "done"})]).collect();
    json!({ "script": steps }).to_string()
}

fn agent(world: &Arc<World>, main: &Limits, below: &Limits) -> Agent {
    let policies = || vec![Arc::new(UsageLimits) as Arc<dyn Middleware>];
    let builders = ["one", "two"].map(|name| {
        let world = Arc::clone(world);
        let limits = below.clone();
        let build: Build = Box::new(move |roster, _| Agent {
            limits: limits.clone(),
            ..agent_of(name, &world, roster, policies())
        });
        (name.to_owned(), build)
    });
    let roster = SubagentRegistry::new(3, builders, BTreeMap::new(), BTreeMap::new());
    Agent {
        limits: main.clone(),
        ..agent_of("main", world, Some(roster), policies())
    }
}

/// Returns the maximum number of runs at the same time: in the whole tree, and below one run.
fn max_at_once(stage: &Stage, children: &BTreeMap<RunId, Lineage>) -> (u64, u64) {
    let mut now = 0_u64;
    let mut by_parent = BTreeMap::<RunId, u64>::new();
    let mut most = (0, 0);
    for (lane, fact) in stage.store.course() {
        let Lane::Child(child) = lane else { continue };
        let own = by_parent.entry(children[&child].parent.unwrap()).or_default();
        match fact {
            Fact::Started { .. } => (now, *own) = (now + 1, *own + 1),
            Fact::Ended { .. } => (now, *own) = (now - 1, *own - 1),
            _ => {}
        }
        most = (most.0.max(now), most.1.max(*own));
    }
    most
}

fn holds(stage: &Stage, main: &Limits, below: &Limits) {
    let children: BTreeMap<RunId, Lineage> = stage.store.children().into_iter().collect();
    let tree = main.tree.as_deref().cloned().unwrap_or_default();
    let within = |limit: Option<u64>, count: usize| limit.is_none_or(|limit| u64::try_from(count).unwrap() <= limit);
    let asked = |lane| stage.store.rows(lane).iter().filter(|row| row.node == MODEL).count();
    let all: usize = children.keys().map(|child| asked(Lane::Child(*child))).sum::<usize>() + asked(Lane::Main);
    assert!(
        within(tree.model_calls, all) && within(main.model_calls, asked(Lane::Main)),
        "questions: {all}"
    );
    assert!(
        children
            .keys()
            .all(|child| within(below.model_calls, asked(Lane::Child(*child))))
    );
    assert!(
        within(tree.children_total, children.len()),
        "children: {}",
        children.len()
    );
    let mut delegated = BTreeMap::<RunId, usize>::new();
    for lineage in children.values() {
        *delegated.entry(lineage.parent.unwrap()).or_default() += 1;
        let deepest = main.depth.unwrap_or(9).min(tree.depth.unwrap_or(9));
        assert!(lineage.depth <= deepest, "depth: {lineage:?}");
        assert!(
            lineage.depth < 2 || below.depth.is_none_or(|levels| lineage.depth <= 1 + levels),
            "depth: {lineage:?}"
        );
    }
    for (parent, count) in delegated {
        let limit = if children.contains_key(&parent) {
            below.children_total
        } else {
            main.children_total
        };
        assert!(within(limit, count), "children of {parent}: {count}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn no_tree_of_runs_goes_beyond_a_limit(
        actions in actions(3), main in limits(), below in limits(), tree in limits(), crash in prop::option::of(1..30_usize),
    ) {
        let main = Limits { tree: Some(Box::new(tree.clone())), ..main };
        let world = Arc::new(World::default());
        let stage = Stage::new(agent(&world, &main, &below));
        let run = RunId::mint();
        let input = says(scripted(&actions, "m"));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut outcome = Err(crate::agent::ExitReason::LeaseLost);
        if let Some(at) = crash {
            stage.restarts(Some(Crash::Before(at)));
            outcome = runtime.block_on(stage.attempt(run, &input));
            stage.restarts(None);
        }
        if outcome.is_err() {
            outcome = runtime.block_on(stage.attempt(run, &input));
        }
        match outcome {
            Ok(LoopOutcome::Done) => {}
            Ok(LoopOutcome::Failed(failure)) => prop_assert_eq!(failure.class, "LimitExceededError"),
            other => prop_assert!(false, "{:?}", other),
        }
        holds(&stage, &main, &below);
        if crash.is_none() {
            let children: BTreeMap<RunId, Lineage> = stage.store.children().into_iter().collect();
            let (all, one) = max_at_once(&stage, &children);
            prop_assert!(tree.children_at_once.is_none_or(|limit| all <= limit), "at once: {}", all);
            let widest = main.children_at_once.zip(below.children_at_once).map(|(main, below)| main.max(below));
            prop_assert!(widest.is_none_or(|limit| one <= limit), "at once for one: {}", one);
            let called: usize = world.effects().values().sum::<usize>() + children.len();
            prop_assert!(tree.tool_calls.is_none_or(|limit| u64::try_from(called).unwrap() <= limit), "calls: {}", called);
        }
    }
}
