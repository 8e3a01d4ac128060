import { useMemo } from "react";

import { actionsOf, type Interrupt, PENDING_LIMIT, usePendingInterrupts } from "../api/interrupts";
import { InterruptCard } from "../components/InterruptCard";
import { EmptyState, ErrorNotice, Loading, PageHeader } from "../components/ui";
import { plural } from "../lib/format";
import { setQuery, useLocation } from "../lib/router";

/** What a question is about, as the filter shows it: the agent and its tools. */
function topics(interrupt: Interrupt): string[] {
  return [...new Set(actionsOf(interrupt).map((action) => action.name))];
}

/** The questions of all threads that wait for a human. */
export default function Approvals() {
  const { query } = useLocation();
  const pending = usePendingInterrupts();
  const agent = query.get("agent") ?? "";
  const tool = query.get("tool") ?? "";
  const agents = useMemo(() => [...new Set(pending.data?.map((interrupt) => interrupt.agent_name))].sort(), [pending.data]);
  const tools = useMemo(() => [...new Set(pending.data?.flatMap(topics))].sort(), [pending.data]);
  const shown = pending.data?.filter((interrupt) => (!agent || interrupt.agent_name === agent) && (!tool || topics(interrupt).includes(tool)));
  const waiting = pending.data?.length ?? 0;
  return (
    <>
      <PageHeader title="Approvals" lead={waiting ? `${plural(waiting, "question")} of agents, the oldest first.` : "Questions of agents from all threads."} />
      {waiting > 1 && (
        <div className="toolbar" role="search">
          <select aria-label="Agent" value={agent} onChange={(event) => setQuery({ agent: event.target.value })}>
            <option value="">All agents</option>
            {agents.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
          <select aria-label="Tool" value={tool} onChange={(event) => setQuery({ tool: event.target.value })}>
            <option value="">All tools</option>
            {tools.map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </div>
      )}
      {pending.isPending && <Loading lines={5} />}
      <ErrorNotice error={pending.error} onRetry={() => void pending.refetch()} />
      {pending.data && waiting === 0 && (
        <EmptyState icon="check" title="Nothing waits for you">
          When an agent asks before it makes a call, its question is here, whichever thread it works on. Answered questions are in the details of their thread.
        </EmptyState>
      )}
      {shown?.length === 0 && waiting > 0 && (
        <EmptyState icon="search" title="No question matches">
          Choose another agent or tool.
        </EmptyState>
      )}
      <div className="stack">
        {shown?.map((interrupt) => (
          <InterruptCard key={interrupt.id} interrupt={interrupt} showsThread />
        ))}
      </div>
      {waiting === PENDING_LIMIT && <p className="muted search-note">The oldest {PENDING_LIMIT} questions are shown. Answer some, and the next ones follow.</p>}
    </>
  );
}
