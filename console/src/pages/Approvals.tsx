import { useQuery } from "@tanstack/react-query";

import { request } from "../api/client";
import { type Interrupt, usePendingInterrupts } from "../api/interrupts";
import { InterruptCard } from "../components/InterruptCard";
import { Card, EmptyState, ErrorNotice, Loading, PageHeader, Pager, StatusBadge, TabPanel, Tabs, Time } from "../components/ui";
import { plural } from "../lib/format";
import { href, setQuery, useLocation } from "../lib/router";

const PAGE = 50;
type Tab = "pending" | "resolved" | "dropped" | "expired";
const tabs: { id: Tab; label: string }[] = [
  { id: "pending", label: "Waiting" },
  { id: "resolved", label: "Answered" },
  { id: "dropped", label: "Dropped" },
  { id: "expired", label: "Expired" },
];

function Waiting() {
  const pending = usePendingInterrupts();
  if (pending.isPending) return <Loading lines={5} />;
  if (pending.isError) return <ErrorNotice error={pending.error} onRetry={() => void pending.refetch()} />;
  if (pending.data.length === 0) {
    return (
      <EmptyState icon="check" title="Nothing waits for you">
        When an agent asks before it makes a call, its question is here, whichever thread it works on.
      </EmptyState>
    );
  }
  return (
    <div className="stack">
      {pending.data.map((interrupt) => (
        <InterruptCard key={interrupt.id} interrupt={interrupt} showsThread />
      ))}
    </div>
  );
}

function decisionsOf(interrupt: Interrupt): string {
  const answer = interrupt.resolution?.["answer"] ?? interrupt.resolution?.["value"] ?? interrupt.resolution;
  const decisions = answer && typeof answer === "object" && !Array.isArray(answer) ? answer["decisions"] : undefined;
  if (!Array.isArray(decisions)) return "answered";
  return decisions.map((decision) => (decision && typeof decision === "object" && !Array.isArray(decision) ? String(decision["type"]) : "?")).join(", ");
}

function Past({ status }: { status: Exclude<Tab, "pending"> }) {
  const { query } = useLocation();
  const offset = Number(query.get("offset") ?? 0) || 0;
  const past = useQuery({
    queryKey: ["interrupts", status, offset],
    queryFn: async ({ signal }) => (await request<{ interrupts: Interrupt[] }>("/interrupts", { query: { status, limit: PAGE, offset }, signal })).interrupts,
  });
  if (past.isPending) return <Loading lines={5} />;
  if (past.isError) return <ErrorNotice error={past.error} onRetry={() => void past.refetch()} />;
  if (past.data.length === 0 && offset === 0) return <EmptyState icon="inbox" title="None">No question has this status.</EmptyState>;
  return (
    <>
      <Card>
        <div className="table-scroll" tabIndex={0} role="region" aria-label="Past questions">
          <table>
            <thead>
              <tr>
                <th scope="col">Agent</th>
                <th scope="col">Calls</th>
                <th scope="col">Status</th>
                <th scope="col">Asked</th>
                <th scope="col">Thread</th>
              </tr>
            </thead>
            <tbody>
              {past.data.map((interrupt) => (
                <tr key={interrupt.id}>
                  <td>{interrupt.agent_path.join(" › ")}</td>
                  <td className="mono">{interrupt.value.action_requests?.map((action) => action.name).join(", ") ?? "question"}</td>
                  <td>{status === "resolved" ? <StatusBadge status="resolved" label={decisionsOf(interrupt)} /> : <StatusBadge status={status} />}</td>
                  <td>
                    <Time value={interrupt.created_at} />
                  </td>
                  <td>
                    <a href={href(`/threads/${interrupt.thread_id}`)}>Open</a>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </Card>
      <Pager offset={offset} limit={PAGE} shown={past.data.length} onChange={(next) => setQuery({ offset: next || null })} />
    </>
  );
}

export default function Approvals() {
  const { query } = useLocation();
  const wanted = query.get("status") as Tab | null;
  const tab = tabs.find((each) => each.id === wanted)?.id ?? "pending";
  const waiting = usePendingInterrupts().data?.length;
  return (
    <>
      <PageHeader title="Approvals" lead={waiting ? `${plural(waiting, "question")} of agents, the oldest first.` : "Questions of agents from all threads."} />
      <Tabs label="Status" value={tab} onChange={(id) => setQuery({ status: id === "pending" ? null : id, offset: null })} tabs={tabs.map(({ id, label }) => ({ id, label, badge: id === "pending" && waiting ? waiting : undefined }))} />
      <TabPanel id={tab} className="page-panel">
        {tab === "pending" ? <Waiting /> : <Past status={tab} />}
      </TabPanel>
    </>
  );
}
