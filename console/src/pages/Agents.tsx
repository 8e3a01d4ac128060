import { useQuery } from "@tanstack/react-query";

import { type Agent, searchAgents } from "../api/admin";
import { Loaded, SearchField, Table } from "../components/admin";
import { Badge, EmptyState, PageHeader, Pager, Time } from "../components/ui";
import { useOffset } from "../lib/paging";
import { href, setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 25;

function subagentCount(agent: Agent): number {
  const { subagents } = agent.definition;
  return Array.isArray(subagents) ? subagents.length : 0;
}

export default function Agents() {
  const name = useLocation().query.get("name") ?? "";
  const [offset, setOffset] = useOffset();
  const agents = useQuery({
    queryKey: ["agents", "search", name, offset],
    queryFn: ({ signal }) => searchAgents({ name: name || undefined, limit: LIMIT, offset }, signal),
    placeholderData: (before) => before,
  });
  return (
    <>
      <PageHeader title="Agents" lead="The definitions that this server runs, from files and from the API." />
      <div className="toolbar">
        <SearchField label="Search by name" value={name} onChange={(next) => setQuery({ name: next, offset: null })} />
      </div>
      <Loaded query={agents}>
        {({ items, total }) =>
          items.length === 0 ? (
            <EmptyState icon="agents" title={name ? "No agent has such a name" : "There are no agents"}>
              {name ? "Search for a part of the name or of the graph id." : "Define agents in adjutant.toml, in a folder, or over the API."}
            </EmptyState>
          ) : (
            <>
              <Table
                label="Agents"
                head={
                  <>
                    <th scope="col">Agent</th>
                    <th scope="col">Model</th>
                    <th scope="col" className="numeric">Subagents</th>
                    <th scope="col" className="numeric">Version</th>
                    <th scope="col">Source</th>
                    <th scope="col">Used since</th>
                    <th scope="col"><span className="visually-hidden">Actions</span></th>
                  </>
                }
              >
                {items.map((agent) => (
                  <tr key={agent.graph_id} className="row-link">
                    <td>
                      <a className="cell-main" href={href(`/agents/${encodeURIComponent(agent.graph_id)}`)}>{agent.graph_id}</a>
                      {typeof agent.definition["description"] === "string" && <span className="cell-sub">{agent.definition["description"]}</span>}
                    </td>
                    <td className="mono">{typeof agent.definition["model"] === "string" ? agent.definition["model"] : "–"}</td>
                    <td className="numeric">{subagentCount(agent)}</td>
                    <td className="numeric">{agent.version}</td>
                    <td>
                      <span className="row">
                        <Badge>{agent.source}</Badge>
                        {!agent.usable && <Badge tone="danger">not usable</Badge>}
                        {agent.usable && agent.problems.length > 0 && <Badge tone="warning">{agent.problems.length === 1 ? "1 warning" : `${agent.problems.length} warnings`}</Badge>}
                      </span>
                    </td>
                    <td><Time value={agent.updated_at} /></td>
                    <td>
                      <a className="button button-secondary button-small" href={href("/chat", { assistant: agent.assistant_id })} aria-label={`Try it: ${agent.graph_id}`}>Try it</a>
                    </td>
                  </tr>
                ))}
              </Table>
              <Pager offset={offset} limit={LIMIT} shown={items.length} total={total} onChange={setOffset} />
            </>
          )
        }
      </Loaded>
    </>
  );
}
