import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { AssistantRow, AssistantVersion } from "../api/admin";
import { request, requestPage, sdk } from "../api/client";
import { Confirm, Facts, FormDialog, JsonField, Loaded, TextField } from "../components/admin";
import { GraphView } from "../components/GraphView";
import { Icon } from "../components/Icon";
import { JsonView } from "../components/JsonView";
import { Badge, Button, Card, CopyId, ErrorNotice, PageHeader, Pager, TabPanel, Tabs, Time } from "../components/ui";
import { pretty, problemOf, readObject } from "../lib/json";
import { href, navigate, setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 20;

function Edit({ assistant, onClose }: { assistant: AssistantRow; onClose: () => void }) {
  const queries = useQueryClient();
  const [name, setName] = useState(assistant.name);
  const [description, setDescription] = useState(assistant.description ?? "");
  const [context, setContext] = useState(pretty(assistant.context));
  const [metadata, setMetadata] = useState(pretty(assistant.metadata));
  return (
    <FormDialog
      title="Change the assistant"
      action="Save as a new version"
      isValid={!problemOf(context) && !problemOf(metadata)}
      onClose={onClose}
      onSubmit={async () => {
        const changed = readObject(context) ?? {};
        // The context is also `config.configurable`, so both are sent only if it has changed.
        const isNew = pretty(changed) !== pretty(assistant.context);
        await request(`/assistants/${assistant.assistant_id}`, {
          method: "PATCH",
          body: { name, description, metadata: readObject(metadata) ?? {}, ...(isNew && { context: changed }) },
        });
        await queries.invalidateQueries({ queryKey: ["assistants"] });
      }}
    >
      <TextField label="Name" value={name} onChange={setName} autoFocus />
      <TextField label="Description" value={description} onChange={setDescription} />
      <JsonField label="Context" rows={5} value={context} onChange={setContext} />
      <JsonField label="Metadata" hint="Keys that are left out are kept." rows={5} value={metadata} onChange={setMetadata} />
    </FormDialog>
  );
}

function Versions({ assistant }: { assistant: AssistantRow }) {
  const queries = useQueryClient();
  const [offset, setOffset] = useState(0);
  const [open, setOpen] = useState<number>();
  const [error, setError] = useState<unknown>();
  const path = `/assistants/${assistant.assistant_id}`;
  const versions = useQuery({
    queryKey: ["assistants", assistant.assistant_id, "versions", offset],
    queryFn: ({ signal }) => requestPage<AssistantVersion>(`${path}/versions`, { body: { limit: LIMIT, offset }, signal }),
    placeholderData: (before) => before,
  });
  const use = async (version: number) => {
    setError(undefined);
    try {
      await request(`${path}/latest`, { body: { version } });
      await queries.invalidateQueries({ queryKey: ["assistants"] });
    } catch (failure) {
      setError(failure);
    }
  };
  return (
    <Loaded query={versions}>
      {({ items, total }) => (
        <>
          {error !== undefined && <ErrorNotice title="The version was not changed" error={error} />}
          <Card>
            {items.map((version) => {
              const isOpen = open === version.version;
              return (
                <div key={version.version} className="version-row">
                  <span className="cell-main">Version {version.version}</span>
                  {version.version === assistant.version && <Badge tone="success">current</Badge>}
                  <span>{version.name}</span>
                  <Time value={version.created_at} />
                  <span className="row spread">
                    {version.version !== assistant.version && (
                      <Button small onClick={() => void use(version.version)} aria-label={`Use it: version ${version.version}`}>Use it</Button>
                    )}
                    <Button small aria-expanded={isOpen} aria-label={`${isOpen ? "Hide" : "Show"} version ${version.version}`} onClick={() => setOpen(isOpen ? undefined : version.version)}>
                      {isOpen ? "Hide" : "Show"}
                    </Button>
                  </span>
                  {isOpen && (
                    <div className="version-detail">
                      <JsonView value={version} label={`Version ${version.version}`} />
                    </div>
                  )}
                </div>
              );
            })}
          </Card>
          <Pager offset={offset} limit={LIMIT} shown={items.length} total={total} onChange={setOffset} />
        </>
      )}
    </Loaded>
  );
}

const tabs = [
  { id: "settings", label: "Settings" },
  { id: "versions", label: "Versions" },
  { id: "graph", label: "Graph" },
] as const;
type Tab = (typeof tabs)[number]["id"];

export default function Assistant({ assistantId }: { assistantId: string }) {
  const queries = useQueryClient();
  const chosen = useLocation().query.get("tab");
  const tab: Tab = tabs.find(({ id }) => id === chosen)?.id ?? "settings";
  const [dialog, setDialog] = useState<"edit" | "delete">();
  const assistant = useQuery({
    queryKey: ["assistants", assistantId],
    queryFn: ({ signal }) => request<AssistantRow>(`/assistants/${encodeURIComponent(assistantId)}`, { signal }),
  });
  const isDefault = assistant.data?.metadata["created_by"] === "system";
  return (
    <>
      <a className="link-back" href={href("/assistants")}>All assistants</a>
      <PageHeader title={assistant.data?.name || assistant.data?.graph_id || "Assistant"} lead={assistant.data?.description ?? undefined}>
        {assistant.data && (
          <>
            {!isDefault && <Button onClick={() => setDialog("edit")}>Change</Button>}
            {!isDefault && <Button kind="danger" icon="trash" onClick={() => setDialog("delete")}>Delete</Button>}
            <a className="button button-primary" href={href("/chat", { assistant: assistantId })}>
              <Icon name="chat" /> Try it
            </a>
          </>
        )}
      </PageHeader>
      <Loaded query={assistant}>
        {(data) => (
          <div className="stack">
            <Tabs label="Parts of the assistant" tabs={[...tabs]} value={tab} onChange={(next) => setQuery({ tab: next === "settings" ? null : next })} />
            <TabPanel id={tab} className="stack">
              {tab === "settings" && (
                <>
                  <Card title="Overview">
                    <div className="card-body">
                      <Facts
                        facts={[
                          ["Id", <CopyId key="id" id={data.assistant_id} label="assistant id" full />],
                          ["Agent", <a key="agent" href={href(`/agents/${encodeURIComponent(data.graph_id)}`)}>{data.graph_id}</a>],
                          ["Version", data.version],
                          ["Created", <Time key="created" value={data.created_at} />],
                          ["Changed", <Time key="changed" value={data.updated_at} />],
                        ]}
                      />
                    </div>
                  </Card>
                  <Card title="Configuration"><div className="card-body"><JsonView value={data.config} label="Configuration" /></div></Card>
                  <Card title="Context"><div className="card-body"><JsonView value={data.context} label="Context" /></div></Card>
                  <Card title="Metadata"><div className="card-body"><JsonView value={data.metadata} label="Metadata" /></div></Card>
                </>
              )}
              {tab === "versions" && <Versions assistant={data} />}
              {tab === "graph" && <GraphView assistantId={data.assistant_id} mainName={data.name || data.graph_id} />}
            </TabPanel>
            {dialog === "edit" && <Edit assistant={data} onClose={() => setDialog(undefined)} />}
            {dialog === "delete" && (
              <Confirm
                title="Delete this assistant?"
                action="Delete"
                onClose={() => setDialog(undefined)}
                onConfirm={async () => {
                  await sdk().assistants.delete(data.assistant_id);
                  navigate("/assistants");
                  await queries.invalidateQueries({ queryKey: ["assistants", "search"] });
                }}
              >
                All versions of {data.name || data.graph_id} are deleted. Its threads are kept.
              </Confirm>
            )}
          </div>
        )}
      </Loaded>
    </>
  );
}
