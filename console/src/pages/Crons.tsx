import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { type Cron, deleteCron, searchCrons, setCronEnabled } from "../api/admin";
import { request } from "../api/client";
import { useAssistants } from "../api/threads";
import { Confirm, Facts, FormDialog, JsonField, Loaded, Table, TextField } from "../components/admin";
import { JsonView } from "../components/JsonView";
import { Badge, Button, CopyId, Dialog, EmptyState, ErrorNotice, Field, PageHeader, Pager, Time } from "../components/ui";
import { absoluteTime } from "../lib/format";
import { problemOf, readObject } from "../lib/json";
import { useOffset } from "../lib/paging";
import { href } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 25;

function AssistantName({ id }: { id: string }) {
  const found = useAssistants().data?.find((assistant) => assistant.assistant_id === id);
  return <a href={href(`/assistants/${id}`)}>{found ? found.name || found.graph_id : id.slice(0, 8)}</a>;
}

function Create({ onClose }: { onClose: () => void }) {
  const queries = useQueryClient();
  const assistants = useAssistants().data ?? [];
  const [assistant, setAssistant] = useState("");
  const [schedule, setSchedule] = useState("0 8 * * 1-5");
  const [timezone, setTimezone] = useState(Intl.DateTimeFormat().resolvedOptions().timeZone);
  const [message, setMessage] = useState("");
  const [input, setInput] = useState("");
  const [threadId, setThreadId] = useState("");
  const [keeps, setKeeps] = useState(true);
  const chosen = assistant || assistants[0]?.assistant_id || "";
  return (
    <FormDialog
      title="New cron"
      action="Create"
      isValid={chosen !== "" && schedule.trim() !== "" && !problemOf(input)}
      onClose={onClose}
      onSubmit={async () => {
        const body = {
          assistant_id: chosen,
          schedule: schedule.trim(),
          timezone: timezone.trim() || undefined,
          input: readObject(input) ?? (message ? { messages: [{ role: "user", content: message }] } : undefined),
          on_run_completed: threadId.trim() ? undefined : keeps ? "keep" : "delete",
        };
        await request(threadId.trim() ? `/threads/${encodeURIComponent(threadId.trim())}/runs/crons` : "/runs/crons", { body });
        await queries.invalidateQueries({ queryKey: ["crons"] });
      }}
    >
      <Field label="Assistant">
        {({ id }) => (
          <select id={id} value={chosen} onChange={(event) => setAssistant(event.target.value)}>
            {assistants.map((each) => (
              <option key={each.assistant_id} value={each.assistant_id}>{each.name || each.graph_id}</option>
            ))}
          </select>
        )}
      </Field>
      <TextField label="Schedule" hint="Five fields: minute, hour, day of the month, month, day of the week." value={schedule} onChange={setSchedule} required />
      <TextField label="Time zone" hint="Such as Europe/Berlin. Without one, UTC." value={timezone} onChange={setTimezone} />
      <Field label="Message" hint="What the agent is told at each run.">
        {({ id, describedBy }) => <textarea id={id} rows={3} value={message} aria-describedby={describedBy} onChange={(event) => setMessage(event.target.value)} />}
      </Field>
      <details>
        <summary>More</summary>
        <div className="stack">
          <JsonField label="Input" hint="A JSON object, instead of the message." rows={4} value={input} onChange={setInput} />
          <TextField label="Thread" hint="The id of a thread for all runs. Without one, each run gets a new thread." value={threadId} onChange={setThreadId} />
          <label className="checkbox">
            <input type="checkbox" checked={keeps} disabled={threadId.trim() !== ""} onChange={(event) => setKeeps(event.target.checked)} />
            Keep the threads of the runs
          </label>
        </div>
      </details>
    </FormDialog>
  );
}

function Details({ cron, onClose }: { cron: Cron; onClose: () => void }) {
  return (
    <Dialog title="Cron" onClose={onClose} wide>
      <div className="stack">
        <Facts
          facts={[
            ["Id", <CopyId key="id" id={cron.cron_id} label="cron id" full />],
            ["Assistant", <AssistantName key="assistant" id={cron.assistant_id} />],
            ["Schedule", <code key="schedule">{cron.schedule}</code>],
            ["Time zone", cron.timezone ?? "UTC"],
            ["Thread", cron.thread_id ? <a key="thread" href={href(`/threads/${cron.thread_id}`)}>{cron.thread_id}</a> : "a new one for each run"],
            ["Threads of its runs", cron.on_run_completed === "delete" ? "deleted" : cron.on_run_completed === "keep" ? "kept" : null],
            ["Next run", cron.next_run_date ? absoluteTime(new Date(cron.next_run_date)) : "none"],
            ["Ends", cron.end_time && <Time key="end" value={cron.end_time} />],
            ["Created", <Time key="created" value={cron.created_at} />],
            ["Changed", <Time key="changed" value={cron.updated_at} />],
          ]}
        />
        <h3 className="label">Request of each run</h3>
        <JsonView value={cron.payload} label="Request of each run" />
        <h3 className="label">Metadata</h3>
        <JsonView value={cron.metadata} label="Metadata" />
        <p><a href={href("/", { q: `cron_id:${cron.cron_id}` })}>Threads of this cron</a></p>
      </div>
    </Dialog>
  );
}

export default function Crons() {
  const queries = useQueryClient();
  const [offset, setOffset] = useOffset();
  const [creates, setCreates] = useState(false);
  const [shown, setShown] = useState<Cron>();
  const [toDelete, setToDelete] = useState<Cron>();
  const [changing, setChanging] = useState<string>();
  const [error, setError] = useState<unknown>();
  const crons = useQuery({
    queryKey: ["crons", offset],
    queryFn: ({ signal }) => searchCrons(LIMIT, offset, signal),
    refetchInterval: 10_000,
    placeholderData: (before) => before,
  });
  const toggle = async (cron: Cron) => {
    setChanging(cron.cron_id);
    setError(undefined);
    try {
      await setCronEnabled(cron.cron_id, !cron.enabled);
      await queries.invalidateQueries({ queryKey: ["crons"] });
    } catch (failure) {
      setError(failure);
    } finally {
      setChanging(undefined);
    }
  };
  return (
    <>
      <PageHeader title="Crons" lead="Schedules that start runs.">
        <Button kind="primary" icon="plus" onClick={() => setCreates(true)}>New cron</Button>
      </PageHeader>
      {error !== undefined && <ErrorNotice title="The cron was not changed" error={error} />}
      <Loaded query={crons}>
        {({ items, total }) =>
          items.length === 0 ? (
            <EmptyState icon="crons" title="There are no crons" action={<Button onClick={() => setCreates(true)}>New cron</Button>}>
              A cron starts an assistant at the times of its schedule, on one thread or each time on a new one.
            </EmptyState>
          ) : (
            <>
              <Table
                label="Crons"
                head={
                  <>
                    <th scope="col">Schedule</th>
                    <th scope="col">Assistant</th>
                    <th scope="col">Thread</th>
                    <th scope="col">State</th>
                    <th scope="col">Next run</th>
                    <th scope="col"><span className="visually-hidden">Actions</span></th>
                  </>
                }
              >
                {items.map((cron) => (
                  <tr key={cron.cron_id}>
                    <td>
                      <code className="cell-main">{cron.schedule}</code>
                      <span className="cell-sub">{cron.timezone ?? "UTC"}</span>
                    </td>
                    <td><AssistantName id={cron.assistant_id} /></td>
                    <td>{cron.thread_id ? <a href={href(`/threads/${cron.thread_id}`)}>{cron.thread_id.slice(0, 8)}</a> : <span className="muted">new each time</span>}</td>
                    <td>{cron.enabled ? <Badge tone="success">on</Badge> : <Badge>paused</Badge>}</td>
                    <td>{cron.enabled ? <Time value={cron.next_run_date} /> : <span className="muted">–</span>}</td>
                    <td>
                      <span className="row-tight">
                        <Button small icon={cron.enabled ? "pause" : "play"} busy={changing === cron.cron_id} onClick={() => void toggle(cron)} aria-label={`${cron.enabled ? "Pause" : "Resume"} ${cron.schedule}`}>
                          {cron.enabled ? "Pause" : "Resume"}
                        </Button>
                        <Button small onClick={() => setShown(cron)} aria-label={`Details of ${cron.schedule}`}>Details</Button>
                        <Button small kind="danger" onClick={() => setToDelete(cron)} aria-label={`Delete ${cron.schedule}`}>Delete</Button>
                      </span>
                    </td>
                  </tr>
                ))}
              </Table>
              <Pager offset={offset} limit={LIMIT} shown={items.length} total={total} onChange={setOffset} />
            </>
          )
        }
      </Loaded>
      {creates && <Create onClose={() => setCreates(false)} />}
      {shown && <Details cron={shown} onClose={() => setShown(undefined)} />}
      {toDelete && (
        <Confirm
          title="Delete this cron?"
          action="Delete"
          onClose={() => setToDelete(undefined)}
          onConfirm={async () => {
            await deleteCron(toDelete.cron_id);
            await queries.invalidateQueries({ queryKey: ["crons"] });
          }}
        >
          It starts no more runs. The threads of its runs are kept.
        </Confirm>
      )}
    </>
  );
}
