import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { type Agent as AgentView, type AgentVersion, readGraph, type Schemas, useAgent } from "../api/admin";
import { request, requestPage } from "../api/client";
import type { Json, JsonObject } from "../api/types";
import { Facts, Loaded, Table } from "../components/admin";
import { GraphView } from "../components/GraphView";
import { Icon } from "../components/Icon";
import { JsonView, LongText } from "../components/JsonView";
import { Badge, Button, Card, CopyId, EmptyState, PageHeader, Pager, TabPanel, Tabs, Time } from "../components/ui";
import { diff } from "../lib/diff";
import { pathOf } from "../lib/graph";
import { isObject, strings } from "../lib/json";
import { href, setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 20;

function Problems({ agent }: { agent: AgentView }) {
  if (agent.problems.length === 0) return null;
  return (
    <div className={`notice ${agent.usable ? "notice-warning" : "notice-danger"}`} role="note">
      <Icon name="warning" />
      <ul className="notice-text">
        {agent.problems.map((problem) => (
          <li key={`${problem.field} ${problem.message}`}>
            {problem.field && <code>{problem.field}</code>} {problem.message}
            {problem.file && <span className="notice-code"> {problem.file}{problem.line ? `:${problem.line}` : ""}</span>}
          </li>
        ))}
      </ul>
    </div>
  );
}

function textOf(value: Json | undefined): string | undefined {
  return typeof value === "string" && value !== "" ? value : undefined;
}

function Names({ names }: { names: string[] }) {
  return (
    <span className="row">
      {names.map((name) => (
        <Badge key={name}>{name}</Badge>
      ))}
    </span>
  );
}

function Definition({ definition }: { definition: JsonObject }) {
  const subagents = Array.isArray(definition["subagents"]) ? definition["subagents"].filter(isObject) : [];
  const prompt = textOf(definition["system_prompt"]);
  const tools = strings(definition["tools"]);
  return (
    <div className="stack">
      <Card title="Overview">
        <div className="card-body">
          <Facts
            facts={[
              ["Name", textOf(definition["name"])],
              ["Description", textOf(definition["description"])],
              ["Model", textOf(definition["model"]) && <code>{textOf(definition["model"])}</code>],
              ["Tools", tools.length > 0 && <Names names={tools} />],
              ["Approvals", isObject(definition["interrupt_on"]) && Object.keys(definition["interrupt_on"]).length > 0 && <Names names={Object.keys(definition["interrupt_on"])} />],
            ]}
          />
        </div>
      </Card>
      {prompt && (
        <Card title="System prompt">
          <div className="card-body">
            <LongText text={prompt} label="System prompt" />
          </div>
        </Card>
      )}
      {subagents.length > 0 && (
        <Table label="Subagents" head={<><th scope="col">Subagent</th><th scope="col">Model</th><th scope="col">Tools</th></>}>
          {subagents.map((subagent, index) => (
            <tr key={textOf(subagent["name"]) ?? index}>
              <td>
                <span className="cell-main">{textOf(subagent["name"]) ?? textOf(subagent["graph_id"]) ?? "–"}</span>
                {textOf(subagent["description"]) && <span className="cell-sub">{textOf(subagent["description"])}</span>}
              </td>
              <td className="mono">{textOf(subagent["model"]) ?? "the parent's"}</td>
              <td>{strings(subagent["tools"]).length > 0 ? <Names names={strings(subagent["tools"])} /> : "–"}</td>
            </tr>
          ))}
        </Table>
      )}
      <Card title="Definition with all defaults">
        <div className="card-body">
          <JsonView value={definition} label="Definition" />
        </div>
      </Card>
    </div>
  );
}

function Versions({ agent }: { agent: AgentView }) {
  const [offset, setOffset] = useState(0);
  const [open, setOpen] = useState<number>();
  const versions = useQuery({
    queryKey: ["agents", agent.graph_id, "versions", offset],
    queryFn: ({ signal }) => requestPage<AgentVersion>(`/agents/${encodeURIComponent(agent.graph_id)}/versions`, { query: { limit: LIMIT + 1, offset }, signal }),
    placeholderData: (before) => before,
  });
  return (
    <Loaded query={versions}>
      {({ items }) => (
        <>
          <Card>
            {items.slice(0, LIMIT).map((version, index) => {
              const before = items[index + 1];
              const isOpen = open === version.version;
              const changes = isOpen && before ? diff(before.definition, version.definition) : [];
              return (
                <div key={version.version} className="version-row">
                  <span className="cell-main">Version {version.version}</span>
                  {version.version === agent.version && <Badge tone="success">current</Badge>}
                  <Badge>{version.source}</Badge>
                  {version.file && <span className="muted wrap-anywhere">{version.file}</span>}
                  <code className="muted" title={version.digest}>{version.digest.slice(0, 12)}</code>
                  <Time value={version.created_at} />
                  <Button small className="spread" aria-expanded={isOpen} onClick={() => setOpen(isOpen ? undefined : version.version)}>
                    {isOpen ? "Hide" : "Show"}
                  </Button>
                  {isOpen && (
                    <div className="version-detail stack">
                      {before && (
                        <>
                          <h3 className="label">Changed since version {before.version}</h3>
                          {changes.length === 0 ? <p className="muted">Nothing.</p> : <JsonView value={changes.map((change) => ({ ...change }))} label="Changes" />}
                        </>
                      )}
                      <h3 className="label">Definition</h3>
                      <JsonView value={version.definition} label={`Definition of version ${version.version}`} />
                    </div>
                  )}
                </div>
              );
            })}
          </Card>
          <Pager offset={offset} limit={LIMIT} shown={Math.min(items.length, LIMIT)} total={items.length > LIMIT ? undefined : offset + items.length} onChange={setOffset} />
        </>
      )}
    </Loaded>
  );
}

const schemaNames = { input_schema: "Input", output_schema: "Output", state_schema: "State", config_schema: "Configuration", context_schema: "Context" } as const;

function SchemaList({ assistantId }: { assistantId: string }) {
  const schemas = useQuery({
    queryKey: ["schemas", assistantId],
    queryFn: ({ signal }) => request<Schemas>(`/assistants/${assistantId}/schemas`, { signal }),
    staleTime: 30_000,
  });
  return (
    <Loaded query={schemas}>
      {(data) => (
        <div className="stack">
          {(Object.keys(schemaNames) as (keyof typeof schemaNames)[])
            .filter((key) => data[key] !== null)
            .map((key) => (
              <Card key={key} title={schemaNames[key]}>
                <div className="card-body">
                  <JsonView value={data[key]} label={`${schemaNames[key]} schema`} limit={2_000} />
                </div>
              </Card>
            ))}
        </div>
      )}
    </Loaded>
  );
}

function Tools({ agent }: { agent: AgentView }) {
  const graph = useQuery({
    queryKey: ["graph", agent.assistant_id, 2],
    queryFn: ({ signal }) => readGraph(agent.assistant_id, 2, signal),
    staleTime: 30_000,
  });
  return (
    <Loaded query={graph}>
      {(data) => {
        const rows = data.nodes.filter((node) => node.metadata?.__tools);
        const middleware = (path: string) => data.nodes.find((node) => pathOf(node.id) === path && node.metadata?.__middleware)?.metadata?.__middleware ?? [];
        return rows.length === 0 ? (
          <EmptyState icon="tool" title="This agent has no tools" />
        ) : (
          <Table label="Tools and middleware" head={<><th scope="col">Agent</th><th scope="col">Tools</th><th scope="col">Middleware</th></>}>
            {rows.map((node) => {
              const path = pathOf(node.id);
              return (
                <tr key={node.id}>
                  <th scope="row">{path === "" ? agent.graph_id : path.replaceAll(":", " › ")}</th>
                  <td><Names names={node.metadata?.__tools ?? []} /></td>
                  <td><Names names={middleware(path).map((name) => name.replace(/Middleware$/, ""))} /></td>
                </tr>
              );
            })}
          </Table>
        );
      }}
    </Loaded>
  );
}

const tabs = [
  { id: "graph", label: "Graph" },
  { id: "definition", label: "Definition" },
  { id: "tools", label: "Tools" },
  { id: "versions", label: "Versions" },
  { id: "schemas", label: "Schemas" },
] as const;
type Tab = (typeof tabs)[number]["id"];

export default function Agent({ graphId }: { graphId: string }) {
  const agent = useAgent(graphId);
  const chosen = useLocation().query.get("tab");
  const tab: Tab = tabs.find(({ id }) => id === chosen)?.id ?? "graph";
  return (
    <>
      <a className="link-back" href={href("/agents")}>All agents</a>
      <PageHeader title={graphId} lead={textOf(agent.data?.definition["description"])}>
        {agent.data && (
          <>
            <a className="button button-secondary" href={href("/assistants", { graph: graphId })}>Assistants</a>
            <a className="button button-primary" href={href("/chat", { assistant: agent.data.assistant_id })}>
              <Icon name="chat" /> Try it
            </a>
          </>
        )}
      </PageHeader>
      <Loaded query={agent}>
        {(data) => (
          <div className="stack">
            <div className="row">
              <Badge>{data.source}</Badge>
              <Badge>version {data.version}</Badge>
              {!data.usable && <Badge tone="danger">not usable</Badge>}
              <CopyId id={data.assistant_id} label="assistant id" />
              <span className="muted">used since <Time value={data.updated_at} /></span>
            </div>
            <Problems agent={data} />
            <Tabs label="Parts of the agent" tabs={[...tabs]} value={tab} onChange={(next) => setQuery({ tab: next === "graph" ? null : next })} />
            <TabPanel id={tab}>
              {tab === "graph" && <GraphView assistantId={data.assistant_id} mainName={textOf(data.definition["name"]) ?? graphId} />}
              {tab === "definition" && <Definition definition={data.definition} />}
              {tab === "tools" && <Tools agent={data} />}
              {tab === "versions" && <Versions agent={data} />}
              {tab === "schemas" && <SchemaList assistantId={data.assistant_id} />}
            </TabPanel>
          </div>
        )}
      </Loaded>
    </>
  );
}
