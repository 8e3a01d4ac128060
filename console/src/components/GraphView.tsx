import { useQuery } from "@tanstack/react-query";
import { useId, useMemo, useState } from "react";

import { type Graph, readGraph } from "../api/admin";
import { curve, pathOf, place, type PlacedAgent } from "../lib/graph";
import { Loaded } from "./admin";
import { Card, classes, IconButton } from "./ui";

const LEVELS = [0, 1, 2, 3];

function AgentBox({ agent }: { agent: PlacedAgent }) {
  return (
    <g transform={`translate(${agent.x} ${agent.y})`} data-agent={agent.path}>
      <rect className={classes("graph-box", agent.path === "" && "graph-box-main")} width={agent.width} height={agent.height} rx={10} />
      <text className="graph-title" x={18} y={22}>
        {agent.name}
      </text>
      <text className="graph-note" x={18} y={38}>
        {agent.note}
      </text>
      {agent.edges.map((edge) => (
        <path key={edge.id} className={classes("graph-edge", edge.isConditional && "graph-edge-conditional")} d={curve(edge.points)} markerEnd="url(#graph-arrow)" />
      ))}
      {agent.nodes.map((node) => (
        <g key={node.id} className={`graph-node graph-node-${node.kind}`} transform={`translate(${node.x} ${node.y})`}>
          <rect width={node.width} height={node.height} rx={node.kind === "end" ? node.height / 2 : 6} />
          <text x={node.width / 2} y={node.note ? 18 : node.height / 2 + 4} textAnchor="middle">
            {node.label}
          </text>
          {node.note && (
            <text className="graph-note" x={node.width / 2} y={33} textAnchor="middle">
              {node.note}
            </text>
          )}
        </g>
      ))}
    </g>
  );
}

/** The same in words: a drawing says nothing to those who hear the page. */
function inWords(graph: Graph, mainName: string): string {
  const agents = new Set(graph.nodes.map((node) => pathOf(node.id)));
  agents.delete("");
  const steps = graph.nodes.filter((node) => pathOf(node.id) === "").length;
  const subagents = [...agents].map((path) => path.replaceAll(":", ", then ")).join("; ");
  return `The graph of ${mainName}, with ${steps} steps. ${subagents ? `Subagents: ${subagents}.` : "It has no subagents."}`;
}

function Drawing({ graph, mainName, showsSteps, scale }: { graph: Graph; mainName: string; showsSteps: boolean; scale: number | null }) {
  const placed = useMemo(() => place(graph, mainName, showsSteps), [graph, mainName, showsSteps]);
  const size = scale === null ? { className: "graph graph-fit" } : { className: "graph", width: placed.width * scale, height: placed.height * scale };
  return (
    <div className="graph-scroll" tabIndex={0} role="region" aria-label="Graph">
      <svg {...size} viewBox={`0 0 ${placed.width} ${placed.height}`} role="img" aria-label={inWords(graph, mainName)}>
        <defs>
          <marker id="graph-arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
            <path className="graph-arrow" d="M0 0 8 4 0 8z" />
          </marker>
          <marker id="graph-arrow-link" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto-start-reverse">
            <path className="graph-arrow-link" d="M0 0 8 4 0 8z" />
          </marker>
        </defs>
        {placed.links.map(({ id, from, to }) => {
          const middle = (from.x + to.x) / 2;
          return <path key={id} className="graph-link" d={`M${from.x} ${from.y} C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`} markerStart="url(#graph-arrow-link)" markerEnd="url(#graph-arrow-link)" />;
        })}
        {placed.agents.map((agent) => (
          <AgentBox key={agent.path} agent={agent} />
        ))}
      </svg>
    </div>
  );
}

/** The graph of an assistant with as many levels of subagents as are asked for. */
export function GraphView({ assistantId, mainName }: { assistantId: string; mainName: string }) {
  const levelsId = useId();
  const [levels, setLevels] = useState(1);
  const [chosenSteps, setChosenSteps] = useState<boolean>();
  const [scale, setScale] = useState<number | null>(1);
  const graph = useQuery({
    queryKey: ["graph", assistantId, levels],
    queryFn: ({ signal }) => readGraph(assistantId, levels, signal),
    staleTime: 30_000,
    placeholderData: (before) => before,
  });
  const subagents = new Set(graph.data?.nodes.map((node) => pathOf(node.id))).size - 1;
  const showsSteps = chosenSteps ?? subagents <= 3;
  const zoom = (factor: number) => setScale((before) => Math.min(2, Math.max(0.3, (before ?? 1) * factor)));
  return (
    <Card>
      <div className="graph-tools">
        <div className="row">
          <label htmlFor={levelsId}>Levels of subagents</label>
          <select id={levelsId} value={levels} onChange={(event) => setLevels(Number(event.target.value))}>
            {LEVELS.map((level) => (
              <option key={level}>{level}</option>
            ))}
          </select>
        </div>
        <label>
          <input type="checkbox" checked={showsSteps} disabled={subagents < 1} onChange={(event) => setChosenSteps(event.target.checked)} />
          Steps of subagents
        </label>
        <span className="muted spread">Dashed: only if needed</span>
        <div className="row">
          <IconButton icon="minus" label="Smaller" onClick={() => zoom(0.8)} />
          <IconButton icon="plus" label="Larger" onClick={() => zoom(1.25)} />
          <IconButton icon="fit" label={scale === null ? "Show in full size" : "Fit to the page"} onClick={() => setScale((before) => (before === null ? 1 : null))} />
        </div>
      </div>
      <Loaded query={graph}>{(data) => <Drawing graph={data} mainName={mainName} showsSteps={showsSteps} scale={scale} />}</Loaded>
    </Card>
  );
}
