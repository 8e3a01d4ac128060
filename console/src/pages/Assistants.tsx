import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { type AssistantRow, searchAssistants, useAgentNames } from "../api/admin";
import { request } from "../api/client";
import { FormDialog, JsonField, Loaded, SearchField, Table, TextField } from "../components/admin";
import { Button, CopyId, EmptyState, Field, PageHeader, Pager, Time } from "../components/ui";
import { problemOf, readObject } from "../lib/json";
import { useOffset } from "../lib/paging";
import { href, navigate, setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 25;

function Create({ graph, onClose }: { graph: string; onClose: () => void }) {
  const names = useAgentNames().data ?? [];
  const queries = useQueryClient();
  const [graphId, setGraphId] = useState(graph);
  const [name, setName] = useState("");
  const [description, setDescription] = useState("");
  const [context, setContext] = useState("");
  const [metadata, setMetadata] = useState("");
  const agent = graphId || names[0] || "";
  const isValid = agent !== "" && !problemOf(context) && !problemOf(metadata);
  return (
    <FormDialog
      title="New assistant"
      action="Create"
      isValid={isValid}
      onClose={onClose}
      onSubmit={async () => {
        const made = await request<AssistantRow>("/assistants", {
          body: { graph_id: agent, name: name || undefined, description: description || undefined, context: readObject(context), metadata: readObject(metadata) },
        });
        await queries.invalidateQueries({ queryKey: ["assistants"] });
        navigate(`/assistants/${made.assistant_id}`);
      }}
    >
      <Field label="Agent">
        {({ id }) => (
          <select id={id} value={agent} onChange={(event) => setGraphId(event.target.value)}>
            {names.map((each) => (
              <option key={each}>{each}</option>
            ))}
          </select>
        )}
      </Field>
      <TextField label="Name" value={name} onChange={setName} autoFocus />
      <TextField label="Description" value={description} onChange={setDescription} />
      <JsonField label="Context" hint="A JSON object that tools and prompts can read. May be empty." rows={3} value={context} onChange={setContext} />
      <JsonField label="Metadata" hint="A JSON object. May be empty." rows={3} value={metadata} onChange={setMetadata} />
    </FormDialog>
  );
}

export default function Assistants() {
  const { query } = useLocation();
  const name = query.get("name") ?? "";
  const graph = query.get("graph") ?? "";
  const [offset, setOffset] = useOffset();
  const [creates, setCreates] = useState(false);
  const names = useAgentNames().data ?? [];
  const assistants = useQuery({
    queryKey: ["assistants", "search", name, graph, offset],
    queryFn: ({ signal }) => searchAssistants({ name: name || undefined, graph_id: graph || undefined, limit: LIMIT, offset }, signal),
    placeholderData: (before) => before,
  });
  return (
    <>
      <PageHeader title="Assistants" lead="Agents with settings of their own, in versions.">
        <Button kind="primary" icon="plus" onClick={() => setCreates(true)}>New assistant</Button>
      </PageHeader>
      <div className="toolbar">
        <SearchField label="Search by name" value={name} onChange={(next) => setQuery({ name: next, offset: null })} />
        <select aria-label="Agent" value={graph} onChange={(event) => setQuery({ graph: event.target.value, offset: null })}>
          <option value="">All agents</option>
          {names.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </div>
      <Loaded query={assistants}>
        {({ items, total }) =>
          items.length === 0 ? (
            <EmptyState icon="assistants" title="No assistants are found" action={<Button onClick={() => setCreates(true)}>New assistant</Button>}>
              Each agent has a default assistant. Others have a name, a context and versions.
            </EmptyState>
          ) : (
            <>
              <Table
                label="Assistants"
                head={
                  <>
                    <th scope="col">Assistant</th>
                    <th scope="col">Agent</th>
                    <th scope="col" className="numeric">Version</th>
                    <th scope="col">Id</th>
                    <th scope="col">Changed</th>
                    <th scope="col"><span className="visually-hidden">Actions</span></th>
                  </>
                }
              >
                {items.map((assistant) => (
                  <tr key={assistant.assistant_id} className="row-link">
                    <td>
                      <a className="cell-main" href={href(`/assistants/${assistant.assistant_id}`)}>{assistant.name || assistant.graph_id}</a>
                      {assistant.description && <span className="cell-sub">{assistant.description}</span>}
                    </td>
                    <td><a href={href(`/agents/${encodeURIComponent(assistant.graph_id)}`)}>{assistant.graph_id}</a></td>
                    <td className="numeric">{assistant.version}</td>
                    <td><CopyId id={assistant.assistant_id} label="assistant id" /></td>
                    <td><Time value={assistant.updated_at} /></td>
                    <td>
                      <a className="button button-secondary button-small" href={href("/chat", { assistant: assistant.assistant_id })} aria-label={`Try it: ${assistant.name || assistant.graph_id}`}>Try it</a>
                    </td>
                  </tr>
                ))}
              </Table>
              <Pager offset={offset} limit={LIMIT} shown={items.length} total={total} onChange={setOffset} />
            </>
          )
        }
      </Loaded>
      {creates && <Create graph={graph} onClose={() => setCreates(false)} />}
    </>
  );
}
