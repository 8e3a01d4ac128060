// Where the boxes and lines of an agent's graph are drawn. Each agent is a box with its loop inside; the boxes of its subagents
// are to the right of it, one below the other.
import { Graph as Layout, layout } from "@dagrejs/dagre";

import type { Graph, GraphNode } from "../api/admin";

export interface PlacedNode {
  id: string;
  label: string;
  note: string;
  kind: "model" | "tools" | "hook" | "end";
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface PlacedEdge {
  id: string;
  isConditional: boolean;
  points: { x: number; y: number }[];
}

export interface PlacedAgent {
  /** The names of the agents above it and its own, joined by colons; empty for the main agent. */
  path: string;
  name: string;
  depth: number;
  note: string;
  x: number;
  y: number;
  width: number;
  height: number;
  nodes: PlacedNode[];
  edges: PlacedEdge[];
}

export interface PlacedLink {
  id: string;
  from: { x: number; y: number };
  to: { x: number; y: number };
}

export interface Placed {
  width: number;
  height: number;
  agents: PlacedAgent[];
  links: PlacedLink[];
}

const PADDING = 18;
const HEADER = 56;
const COLUMN_GAP = 76;
const ROW_GAP = 24;
const MARGIN = 20;
const START = "__start__";
const END = "__end__";

export function pathOf(id: string): string {
  const end = id.lastIndexOf(":");
  return end < 0 ? "" : id.slice(0, end);
}

export function ownName(id: string): string {
  return id.slice(id.lastIndexOf(":") + 1);
}

function parentOf(path: string): string | undefined {
  return path === "" ? undefined : pathOf(path);
}

function plural(count: number, one: string): string {
  return `${count} ${one}${count === 1 ? "" : "s"}`;
}

function textWidth(text: string, perLetter: number): number {
  return Math.ceil(text.length * perLetter);
}

function describe(node: GraphNode, label: string): Omit<PlacedNode, "x" | "y"> {
  const name = ownName(node.id);
  const tools = node.metadata?.__tools;
  const middleware = node.metadata?.__middleware;
  const kind = name === START || name === END ? "end" : tools ? "tools" : middleware ? "model" : "hook";
  const note = tools ? plural(tools.length, "tool") : middleware ? `${middleware.length} middleware` : "";
  return { id: node.id, label, note, kind, width: Math.max(textWidth(label, 6.7), textWidth(note, 6.2)) + 26, height: note ? 42 : 28 };
}

/** `HumanInTheLoopMiddleware.after_model` is long, and in a box `HumanInTheLoop · after model` says the same. */
function labelOf(node: GraphNode): string {
  const name = ownName(node.id);
  if (name === START) return "start";
  if (name === END) return "end";
  const [owner, hook] = node.data.name.split(".");
  return hook ? `${(owner ?? "").replace(/Middleware$/, "")} · ${hook.replaceAll("_", " ")}` : node.data.name;
}

type Loop = Pick<PlacedAgent, "nodes" | "edges" | "width" | "height">;

/** The loop of one agent. That of a subagent gets a beginning and an end of its own, which the graph draws at its parent. */
function placeLoop(path: string, graph: Graph): Loop {
  const own = graph.nodes.filter((node) => pathOf(node.id) === path);
  const ids = new Set(own.map((node) => node.id));
  const loop = new Layout();
  loop.setGraph({ rankdir: "TB", nodesep: 26, ranksep: 30, marginx: 0, marginy: 0 });
  loop.setDefaultEdgeLabel(() => ({}));
  const described = own.map((node) => describe(node, labelOf(node)));
  const conditional = new Set<string>();
  const lines: [string, string][] = [];
  for (const edge of graph.edges) {
    if (ids.has(edge.source) && ids.has(edge.target)) {
      lines.push([edge.source, edge.target]);
      if (edge.conditional) conditional.add(`${edge.source} ${edge.target}`);
    } else if (path !== "" && ids.has(edge.target) && pathOf(edge.source) !== path && !ids.has(edge.source)) {
      if (parentOf(path) === pathOf(edge.source)) lines.push([START, edge.target]);
    } else if (path !== "" && ids.has(edge.source) && parentOf(path) === pathOf(edge.target)) {
      lines.push([edge.source, END]);
      conditional.add(`${edge.source} ${END}`);
    }
  }
  if (path !== "") {
    described.push(describe({ id: START, data: { name: START } }, "task"), describe({ id: END, data: { name: END } }, "result"));
  }
  for (const node of described) loop.setNode(node.id, { width: node.width, height: node.height });
  // Main way first: the layout keeps the order of lines that come later out of its way.
  for (const [source, target] of lines) loop.setEdge(source, target, {});
  layout(loop);
  const nodes = described.map((node) => {
    const at = loop.node(node.id) as { x: number; y: number };
    return { ...node, x: at.x - node.width / 2, y: at.y - node.height / 2 };
  });
  const edges = loop.edges().map(({ v, w }) => ({
    id: `${v} ${w}`,
    isConditional: conditional.has(`${v} ${w}`),
    points: ((loop.edge({ v, w }) as { points?: { x: number; y: number }[] }).points ?? []).map(({ x, y }) => ({ x, y })),
  }));
  const all = [...nodes.flatMap((node) => [node.x + node.width]), ...edges.flatMap((edge) => edge.points.map((point) => point.x))];
  const left = Math.min(0, ...nodes.map((node) => node.x), ...edges.flatMap((edge) => edge.points.map((point) => point.x)));
  const bottom = Math.max(...nodes.map((node) => node.y + node.height));
  const shift = (at: { x: number; y: number }) => ({ x: at.x - left + PADDING, y: at.y + HEADER });
  return {
    nodes: nodes.map((node) => ({ ...node, ...shift(node) })),
    edges: edges.map((edge) => ({ ...edge, points: edge.points.map(shift) })),
    width: Math.max(...all) - left + 2 * PADDING,
    height: bottom + HEADER + PADDING,
  };
}

function noteOf(path: string, graph: Graph): string {
  const own = graph.nodes.filter((node) => pathOf(node.id) === path);
  const tools = own.find((node) => node.metadata?.__tools)?.metadata?.__tools?.length ?? 0;
  const middleware = own.find((node) => node.metadata?.__middleware)?.metadata?.__middleware?.length ?? 0;
  return `${plural(tools, "tool")}, ${middleware} middleware`;
}

/** Places a graph. `showsSteps` says whether the loops of subagents are drawn, or only their names. */
export function place(graph: Graph, mainName: string, showsSteps: boolean): Placed {
  const paths = [...new Set(graph.nodes.map((node) => pathOf(node.id)))].sort((a, b) => a.localeCompare(b));
  const made = new Map<string, PlacedAgent>();
  for (const path of paths) {
    const name = path === "" ? mainName : ownName(path);
    const note = noteOf(path, graph);
    const title = Math.max(textWidth(name, 7.6), textWidth(note, 6.2)) + 2 * PADDING;
    const loop: Loop = path === "" || showsSteps ? placeLoop(path, graph) : { nodes: [], edges: [], width: 0, height: HEADER };
    made.set(path, { path, name, note, depth: path === "" ? 0 : path.split(":").length, x: 0, y: 0, ...loop, width: Math.max(loop.width, title) });
  }
  const children = (path: string) => paths.filter((other) => other !== "" && parentOf(other) === path);
  const heights = new Map<string, number>();
  const measure = (path: string): number => {
    const below = children(path).map(measure);
    const height = Math.max(made.get(path)?.height ?? 0, below.reduce((sum, each) => sum + each, 0) + Math.max(0, below.length - 1) * ROW_GAP);
    heights.set(path, height);
    return height;
  };
  measure("");
  const columns: number[] = [];
  for (const agent of made.values()) columns[agent.depth] = Math.max(columns[agent.depth] ?? 0, agent.width);
  const left = (depth: number) => MARGIN + columns.slice(0, depth).reduce((sum, width) => sum + width + COLUMN_GAP, 0);
  const links: PlacedLink[] = [];
  const put = (path: string, top: number): void => {
    const agent = made.get(path);
    if (!agent) return;
    const height = heights.get(path) ?? agent.height;
    agent.x = left(agent.depth);
    agent.y = top + (height - agent.height) / 2;
    const below = children(path);
    const needed = below.reduce((sum, child) => sum + (heights.get(child) ?? 0), 0) + Math.max(0, below.length - 1) * ROW_GAP;
    let next = top + (height - needed) / 2;
    const tools = agent.nodes.find((node) => node.kind === "tools");
    const from = { x: agent.x + agent.width, y: agent.y + (tools ? tools.y + tools.height / 2 : agent.height / 2) };
    for (const child of below) {
      put(child, next);
      next += (heights.get(child) ?? 0) + ROW_GAP;
      const box = made.get(child);
      if (box) links.push({ id: child, from, to: { x: box.x, y: box.y + HEADER / 2 } });
    }
  };
  put("", MARGIN);
  const agents = [...made.values()];
  return {
    agents,
    links,
    width: Math.max(...agents.map((agent) => agent.x + agent.width)) + MARGIN,
    height: Math.max(...agents.map((agent) => agent.y + agent.height)) + MARGIN,
  };
}

/** A smooth line through points. */
export function curve(points: { x: number; y: number }[]): string {
  const [first, ...rest] = points;
  if (!first) return "";
  let text = `M${first.x.toFixed(1)} ${first.y.toFixed(1)}`;
  rest.forEach((point, index) => {
    const next = rest[index + 1];
    if (!next) text += ` L${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    else text += ` Q${point.x.toFixed(1)} ${point.y.toFixed(1)} ${((point.x + next.x) / 2).toFixed(1)} ${((point.y + next.y) / 2).toFixed(1)}`;
  });
  return text;
}
