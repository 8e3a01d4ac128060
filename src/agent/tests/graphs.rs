//! Tests of the graph of an agent.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::cast::{World, agent_of, careful, careful_agent, plain_agent, roster};
use crate::domain::graph::{Edge, Graph};

/// Returns whether every edge connects two nodes, and all names are unique.
fn is_connected(graph: &Graph) -> bool {
    let names: BTreeSet<&str> = graph.nodes.iter().map(|node| node.id.as_str()).collect();
    let ends = |edge: &Edge| names.contains(edge.source.as_str()) && names.contains(edge.target.as_str());
    names.len() == graph.nodes.len() && graph.edges.iter().all(ends)
}

#[test]
fn an_agent_without_policies_asks_its_model_and_runs_its_tools() {
    let graph = agent_of("main", &Arc::new(World::default()), None, vec![]).graph(9);
    let nodes: Vec<&str> = graph.nodes.iter().map(|node| node.id.as_str()).collect();
    assert_eq!(nodes, ["__start__", "model", "tools", "__end__"]);
    let edge = |source: &str, target: &str, conditional| Edge {
        source: source.to_owned(),
        target: target.to_owned(),
        conditional,
    };
    let expected = [
        edge("__start__", "model", false),
        edge("model", "__end__", true),
        edge("model", "tools", true),
        edge("tools", "model", true),
    ];
    assert_eq!(graph.edges, expected);
}

#[test]
fn hooks_are_drawn_in_running_order() {
    let graph = careful_agent(&Arc::new(World::default()), 0).graph(0);
    let plan = careful_agent(&Arc::new(World::default()), 0).plan;
    let leads = |source: &str, target: &str| {
        let found = graph
            .edges
            .iter()
            .find(|edge| edge.source == source && edge.target == target);
        found
            .unwrap_or_else(|| panic!("{source} does not lead to {target} in {:#?}", graph.edges))
            .conditional
    };
    assert!(!leads("__start__", &plan.before_agent[0]));
    assert!(!leads(plan.before_agent.last().expect("a hook"), &plan.before_model[0]));
    assert!(!leads(plan.before_model.last().expect("a hook"), "model"));
    assert!(!leads("model", &plan.after_model[0]));
    let decides = plan.after_model.last().expect("a hook");
    assert!(leads(decides, "tools") && leads(decides, &plan.before_model[0]) && leads(decides, &plan.after_agent[0]));
    assert!(leads("tools", &plan.before_model[0]));
    assert!(!leads(plan.after_agent.last().expect("a hook"), "__end__"));
    assert!(is_connected(&graph));
}

#[test]
fn a_graph_is_finite_even_if_subagents_delegate_to_each_other() {
    let world = Arc::new(World::default());
    let agent = agent_of("main", &world, Some(roster(&world, 30, careful)), careful(&world));
    let whole = agent.graph(u32::MAX);
    assert!(
        whole.nodes.len() > 500 && whole.nodes.len() <= 1_000,
        "{} nodes",
        whole.nodes.len()
    );
    assert!(is_connected(&whole));
    assert_eq!(agent.subagent_schemas(None, true).len(), 1_000);
    let deep = vec!["two"; 30].join("|");
    let found: Vec<String> = agent
        .subagent_schemas(Some(&deep), true)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(found, [deep]);
}

#[test]
fn levels_are_counted_from_the_main_agent() {
    let agent = plain_agent(&Arc::new(World::default()), 2);
    let size = |levels| agent.graph(levels).nodes.len();
    // Each subagent adds its model and its tools.
    assert_eq!(
        [size(0), size(1), size(2), size(3)],
        [4, 4 + 2 * 2, 4 + 6 * 2, 4 + 6 * 2]
    );
    let names = |recurse| {
        agent
            .subagent_schemas(None, recurse)
            .into_iter()
            .map(|(name, _)| name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(false), ["one", "two"]);
    assert_eq!(names(true), ["one", "two", "one|one", "one|two", "two|one", "two|two"]);
}
