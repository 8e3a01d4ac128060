//! Random trees of agents, which grow by every kind of delegation, never exceed a limit.
//!
//! The trees follow from a seed, which a failing test prints; `ADJUTANT_TEST_SEED` sets another one.

use std::fmt::Write;

use serde_json::{Value, json};

use crate::support::actors::Run;
use crate::support::mcp::{McpTransport, docs};
use crate::support::proxy::Proxy;
use crate::support::{Human, TestServer, call, eventually, lookup, on_both_engines, script, task};

/// Random numbers that follow from a seed.
struct Dice(u64);

impl Dice {
    fn seeded() -> (Self, u64) {
        let seed = std::env::var("ADJUTANT_TEST_SEED")
            .ok()
            .and_then(|seed| seed.parse().ok())
            .unwrap_or(20_261_122);
        (Self(seed), seed)
    }

    /// Returns a number below `sides`.
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).expect("31 bits") % sides
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.roll(all.len())]
    }
}

/// The names of the limits that are chosen at random.
const NAMES: [&str; 5] = [
    "depth",
    "children_total",
    "children_at_once",
    "model_calls",
    "tool_calls",
];

/// The limits of an agent or a tree; an absent one is not limited.
#[derive(Debug, Clone, Default)]
struct Limits(Vec<(&'static str, f64)>);

impl Limits {
    fn drawn(dice: &mut Dice, more: &[(&'static str, f64)]) -> Self {
        let mut drawn: Vec<(&'static str, f64)> = vec![];
        for name in NAMES {
            if dice.roll(5) < 2 {
                let most = if name == "depth" { 2 } else { 6 };
                drawn.push((name, f64::from(u8::try_from(1 + dice.roll(most)).expect("small"))));
            }
        }
        drawn.extend(more.iter().filter(|_| dice.roll(2) == 0));
        Self(drawn)
    }

    fn of(&self, name: &str) -> Option<f64> {
        self.0.iter().find(|(other, _)| *other == name).map(|(_, most)| *most)
    }

    fn toml(&self, more: &str) -> String {
        let mut text = String::new();
        for (name, most) in &self.0 {
            let most = if *name == "wall_s" {
                format!("{most:?}")
            } else {
                most.to_string()
            };
            write!(text, "{name} = {most}, ").expect("a text");
        }
        format!("{{ {} }}", format!("{text}{more}").trim_end_matches(", "))
    }
}

/// A kind of agent, with every kind of delegation to its subagents.
#[derive(Debug, Clone)]
struct Kind {
    name: String,
    main: Limits,
    below: Limits,
    tree: Limits,
}

impl Kind {
    fn drawn(dice: &mut Dice, number: usize) -> Self {
        let main = Limits::drawn(dice, &[]);
        let below = Limits::drawn(dice, &[]);
        // Time is limited for every third kind; its models take theirs.
        let more: &[(&'static str, f64)] = if number % 3 == 2 {
            &[("wall_s", 0.6)]
        } else {
            &[("tokens", 900.0)]
        };
        Self {
            name: format!("wild{number}"),
            main,
            below,
            tree: Limits::drawn(dice, more),
        }
    }

    fn toml(&self, door: &str) -> String {
        let Self {
            name,
            main,
            below,
            tree,
        } = self;
        let tree = format!("tree = {}", tree.toml(""));
        let below = below.toml("");
        let main = main.toml(&tree);
        let tools = r#"tools = ["lookup", "spawn", "hand_over", "docs/*"]"#;
        let model = "model = \"scripted:mock\"";
        let one = |agent: &str| {
            format!(
                "[[agents.{agent}.subagents]]\nname = \"one\"\ndescription = \"One of them.\"\nsystem_prompt = \"One.\"\n\
                 {tools}\nlimits = {below}\n"
            )
        };
        let other = |named: &str, more: &str| {
            format!("[[agents.{name}.subagents]]\nname = \"{named}\"\ndescription = \"Another one.\"\n{more}\n")
        };
        let elsewhere = format!("graph_id = \"{name}er\"");
        [
            format!("[agents.{name}]\n{model}\n{tools}\nmax_subagent_depth = 3\nlimits = {main}\n"),
            one(name),
            other("twin", &format!("mode = \"fork\"\nlimits = {below}")),
            other("parrot", "runnable = \"echo\""),
            other("clerk", &format!("{elsewhere}\nasync = false")),
            other("far", &format!("{elsewhere}\nasync = false\nurl = \"{door}\"")),
            other("back", &format!("{elsewhere}\nnotify_parent = false")),
            format!("[agents.{name}er]\n{model}\n{tools}\nmax_subagent_depth = 2\nlimits = {below}\n"),
            one(&format!("{name}er")),
        ]
        .concat()
    }

    fn limits_of(&self, node: &Value) -> Limits {
        match node["agent_name"].as_str().expect("a name") {
            name if name == self.name => self.main.clone(),
            "one" | "twin" | "clerk" => self.below.clone(),
            name if name == format!("{}er", self.name) => self.below.clone(),
            _ => Limits::default(),
        }
    }
}

/// Returns a random script for an agent with this many levels below it; the ids of its calls start with `place`.
fn drawn(dice: &mut Dice, levels: usize, place: &str, ponders: bool) -> String {
    let mut text = script();
    for step in 0..=dice.roll(2) {
        let calls: Vec<Value> = (0..=dice.roll(3))
            .map(|at| {
                let id = format!("{place}.{step}{at}");
                match levels {
                    0 => lookup(&id, "x"),
                    _ => deed(dice, levels, &id, ponders),
                }
            })
            .collect();
        text = text.calls_all(calls);
    }
    let ends = if ponders && dice.roll(3) == 0 {
        json!({"text": "at last", "first_ms": 60_000})
    } else {
        json!({"text": "done"})
    };
    text.turn(ends).to_string()
}

/// Returns a random call: of a tool, or a delegation of one of the kinds.
fn deed(dice: &mut Dice, levels: usize, id: &str, ponders: bool) -> Value {
    let door = dice.one_of(&["lookup", "task", "task", "spawn", "hand_over", "mcp", "background"]);
    if door == "lookup" {
        return lookup(id, "x");
    }
    let work = drawn(dice, levels - 1, id, ponders);
    let whom = dice.one_of(&["one", "one", "twin", "parrot", "clerk", "far"]);
    match door {
        "spawn" => call(id, "spawn", json!({"description": work, "subagent_type": whom})),
        "hand_over" => call(id, "hand_over", json!({"to": whom, "work": work})),
        "mcp" => call(id, "docs__spawn", json!({"to": whom, "work": work})),
        "background" => call(
            id,
            "start_async_task",
            json!({"description": work, "subagent_type": "back"}),
        ),
        _ => task(id, whom, work),
    }
}

/// A run of an agent, and its time.
struct Seen {
    node: Value,
    limits: Limits,
    level: u64,
    path: String,
    last_answer: f64,
    /// The number of results that name a reached limit.
    told: usize,
}

fn number(value: &Value, name: &str) -> f64 {
    value[name].as_f64().unwrap_or_else(|| panic!("no {name}: {value}"))
}

fn tokens(usage: &Value) -> f64 {
    number(usage, "input_tokens") + number(usage, "output_tokens")
}

/// Adds all agents in the tree of a run, `above` levels below its root, and in the background tasks below it.
async fn all_in(human: &Human, run: &Run, kind: &Kind, above: u64, seen: &mut Vec<Seen>, tasks: &mut Vec<Value>) {
    let tree = human.client().get(&format!("{}/tree", run.path)).await.ok();
    let mut nodes = vec![tree.clone()];
    while let Some(node) = nodes.pop() {
        nodes.extend(node["children"].as_array().expect("a list").iter().cloned());
        let own = human.run(&node);
        let state = human.client().get(&format!("{}/state", own.path)).await.ok();
        let messages = state["values"]["messages"].as_array().cloned().unwrap_or_default();
        let last = messages
            .iter()
            .rev()
            .find(|message| !message["usage_metadata"].is_null());
        let last_answer = last.map_or(0.0, |message| tokens(&message["usage_metadata"]));
        let told = messages
            .iter()
            .filter(|message| message["content"].to_string().contains("is reached."))
            .count();
        let limits = kind.limits_of(&node);
        let level = above + node["depth"].as_u64().expect("a depth");
        seen.push(Seen {
            limits,
            level,
            path: own.path.clone(),
            last_answer,
            told,
            node,
        });
    }
    for task in tree["background_tasks"].as_array().expect("a list") {
        let mut task = task.clone();
        task["parent"] = tree["run_id"].clone();
        tasks.push(task.clone());
        let worker = human.on(task["thread_id"].as_str().expect("an id"));
        for record in worker.runs().await {
            Box::pin(all_in(&worker, &worker.run(&record), kind, above + 1, seen, tasks)).await;
        }
    }
}

/// Returns the largest number of these that ran at the same time.
fn most_at_once(all: &[(String, String)]) -> usize {
    let during = |at: &String| all.iter().filter(|(from, until)| from <= at && at < until).count();
    all.iter().map(|(from, _)| during(from)).max().unwrap_or(0)
}

fn stretch(record: &Value) -> (String, String) {
    let text = |name: &str| record[name].as_str().expect("a time").to_owned();
    (text("created_at"), text("updated_at"))
}

/// Returns the number of levels of subagents below an agent.
fn levels_below(node: &Value) -> u32 {
    let children = node["children"].as_array().expect("a list");
    children.iter().map(|child| 1 + levels_below(child)).max().unwrap_or(0)
}

fn count(all: usize) -> f64 {
    f64::from(u32::try_from(all).expect("a small number"))
}

/// Checks that a number does not exceed its limit.
fn within(limits: &Limits, name: &str, used: f64, who: &str) {
    let most = limits.of(name).unwrap_or(f64::INFINITY);
    assert!(used <= most, "{used} {name} are more than {most}: {who}");
}

/// Checks that each agent has kept its own limits.
fn each_keeps(seen: &[Seen], tasks: &[Value], told: &str) {
    for Seen { node, limits, path, .. } in seen {
        let usage = &node["usage"];
        let who = format!("{path} of {told}");
        within(limits, "model_calls", number(usage, "model_calls"), &who);
        within(limits, "tool_calls", number(usage, "tool_calls"), &who);
        within(limits, "depth", f64::from(levels_below(node)), &who);
        let children = node["children"].as_array().expect("a list");
        let begun = tasks.iter().filter(|task| task["parent"] == node["run_id"]).count();
        within(limits, "children_total", count(children.len() + begun), &who);
        let at_once: Vec<_> = children.iter().map(stretch).collect();
        within(limits, "children_at_once", count(most_at_once(&at_once)), &who);
    }
}

/// Checks that one tree, with the background tasks below it, has kept all limits. Returns the number of its agents, and
/// of the results that name a reached limit.
async fn has_kept_to_them(human: &Human, run: &Run, kind: &Kind, seed: u64) -> (usize, usize) {
    let mut seen = vec![];
    let mut tasks = vec![];
    all_in(human, run, kind, 0, &mut seen, &mut tasks).await;
    let told = format!("seed {seed}: {kind:#?}");
    each_keeps(&seen, &tasks, &told);
    let mut at_once: Vec<(String, String)> = vec![];
    for Seen { node, level, .. } in &seen {
        let level = f64::from(u32::try_from(*level).expect("small"));
        within(&kind.tree, "depth", level, &told);
        within(&kind.main, "depth", level, &told);
        if node["depth"] != 0 {
            at_once.push(stretch(node));
        }
        if let Some(most) = kind.tree.of("wall_s") {
            // A slow answer takes a minute; on a busy machine, cancelling takes a while.
            assert!(number(&node["usage"], "seconds") < most + 20.0, "{node:#}: {told}");
        }
    }
    let sum = |name: &str| seen.iter().map(|seen| number(&seen.node["usage"], name)).sum::<f64>();
    within(&kind.tree, "model_calls", sum("model_calls"), &told);
    within(&kind.tree, "tool_calls", sum("tool_calls"), &told);
    within(&kind.tree, "children_total", count(at_once.len() + tasks.len()), &told);
    for task in &tasks {
        let worker = human.on(task["thread_id"].as_str().expect("an id"));
        let until = worker
            .runs()
            .await
            .iter()
            .map(|run| stretch(run).1)
            .max()
            .expect("a run");
        at_once.push((task["created_at"].as_str().expect("a time").to_owned(), until));
    }
    within(&kind.tree, "children_at_once", count(most_at_once(&at_once)), &told);
    // At the last model call the limit was not reached; since then each agent has received one answer at most.
    let before = seen
        .iter()
        .map(|seen| tokens(&seen.node["usage"]) - seen.last_answer)
        .sum::<f64>();
    within(&kind.tree, "tokens", before, &told);
    (seen.len(), seen.iter().map(|seen| seen.told).sum())
}

/// Checks that the agents that another server called have kept their own limits.
async fn those_asked_from_afar_keep_to_them(server: &TestServer, kind: &Kind, seed: u64) -> usize {
    let wanted = json!({"metadata": {"graph_id": format!("{}er", kind.name)}, "limit": 100});
    let threads = server.client().post("/threads/search", wanted).await.ok();
    let mut seen = vec![];
    let mut tasks = vec![];
    for thread in threads.as_array().expect("a list") {
        let worker = server
            .human(&kind.name)
            .await
            .on(thread["thread_id"].as_str().expect("an id"));
        for record in worker.runs().await {
            all_in(&worker, &worker.run(&record), kind, 0, &mut seen, &mut tasks).await;
        }
    }
    each_keeps(&seen, &tasks, &format!("seed {seed}: {kind:#?}"));
    seen.len()
}

/// Waits until no thread is busy.
async fn all_is_over(server: &TestServer) {
    let busy = json!({"status": "busy", "limit": 1});
    let is_quiet = async || server.client().post("/threads/search", busy.clone()).await.ok() == json!([]);
    // Many trees at once may take longer than one is waited for.
    for _ in 0..5 {
        let seen = std::panic::AssertUnwindSafe(eventually(&is_quiet));
        if futures::FutureExt::catch_unwind(seen).await.is_ok() {
            return;
        }
    }
    let busy = server
        .client()
        .post("/threads/search", json!({"status": "busy", "limit": 9}))
        .await
        .ok();
    panic!("something is still at work: {busy:#}");
}

/// Configures random kinds of agents on an embedded server. Their remote agents are on the same server, behind the
/// proxy.
async fn kinds(
    server: &TestServer,
    dice: &mut Dice,
    many: usize,
) -> Option<(Vec<Kind>, Proxy, crate::support::mcp::McpDocsServer)> {
    let kinds: Vec<Kind> = (0..many).map(|number| Kind::drawn(dice, number)).collect();
    let door = Proxy::before(server.client()).await;
    let docs = docs(server, McpTransport::Stdio, "").await?;
    server.is_embedded().await;
    let toml: String = kinds.iter().map(|kind| kind.toml(&door.base)).collect();
    server.is_configured_with(&toml).await;
    Some((kinds, door, docs))
}

on_both_engines! {
    no_random_tree_exceeds_a_limit,
    no_random_tree_exceeds_a_limit_over_kills,
}

async fn no_random_tree_exceeds_a_limit(server: TestServer) {
    let (mut dice, seed) = Dice::seeded();
    let Some((kinds, _door, _docs)) = kinds(&server, &mut dice, 9).await else {
        return;
    };
    let mut grown = vec![];
    for kind in &kinds {
        for _ in 0..3 {
            let human = server.human(&kind.name).await;
            let text = drawn(&mut dice, 3, "c", kind.tree.of("wall_s").is_some());
            let run = human.asks(text).await;
            grown.push((human, run, kind));
        }
    }
    all_is_over(&server).await;
    let mut agents = 0;
    let mut told = 0;
    let mut asked = 0;
    for (human, run, kind) in &grown {
        let (at_work, refused) = has_kept_to_them(human, run, kind, seed).await;
        (agents, told) = (agents + at_work, told + refused);
    }
    for kind in &kinds {
        asked += those_asked_from_afar_keep_to_them(&server, kind, seed).await;
    }
    assert!(
        asked > 0,
        "seed {seed}: {asked} were asked from afar, {told} were told of a limit"
    );
    assert!(
        told > 0,
        "seed {seed}: {asked} were asked from afar, {told} were told of a limit"
    );
    assert!(
        agents > 3 * grown.len() / 2,
        "seed {seed}: the trees are too small: {agents} of {}",
        grown.len()
    );
}

async fn no_random_tree_exceeds_a_limit_over_kills(server: TestServer) {
    let (mut dice, seed) = Dice::seeded();
    dice.roll(7);
    let Some((kinds, _door, _docs)) = kinds(&server, &mut dice, 6).await else {
        return;
    };
    let kinds: Vec<Kind> = kinds
        .into_iter()
        .filter(|kind| kind.tree.of("wall_s").is_none())
        .collect();
    server.moves_into_a_process().await;
    server.tools.hold("lookup");
    let mut grown = vec![];
    for kind in &kinds {
        for _ in 0..2 {
            let human = server.human(&kind.name).await;
            let run = human.asks(drawn(&mut dice, 3, "c", false)).await;
            grown.push((human, run, kind));
        }
    }
    server.tools.called("lookup", 1).await;
    server.is_killed_and_started_again().await;
    server.tools.let_go("lookup");
    all_is_over(&server).await;
    for (human, run, kind) in &grown {
        has_kept_to_them(human, run, kind, seed).await;
    }
}
