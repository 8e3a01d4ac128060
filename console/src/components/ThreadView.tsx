import { useMutation, useQuery, useQueryClient } from "@tanstack/react-query";
import { type ReactNode, useCallback, useEffect, useRef, useState } from "react";

import { request, sdk } from "../api/client";
import { actionsOf, type Interrupt } from "../api/interrupts";
import { type ThreadStorage, useRuns, useThread, useThreadInterrupts } from "../api/threads";
import type { JsonObject } from "../api/types";
import { useAgents } from "../lib/feed";
import { bytes, count, plural } from "../lib/format";
import { leftMessages } from "../lib/messages";
import { navigate, setQuery, useLocation } from "../lib/router";
import { AgentTree } from "./AgentTree";
import { Composer } from "./Composer";
import { MessageList } from "./Conversation";
import { InterruptCard } from "./InterruptCard";
import { JsonView } from "./JsonView";
import { RememberedDecisions } from "./RememberedDecisions";
import { type Session, SessionProvider, useFeed } from "./Session";
import { StateView } from "./StateView";
import { Timeline } from "./Timeline";
import { Button, classes, CopyId, Dialog, EmptyState, ErrorNotice, Loading, StatusBadge, TabPanel, Tabs, Time } from "./ui";

type Tab = "conversation" | "agents" | "state" | "timeline" | "details";
const tabs: Tab[] = ["conversation", "agents", "state", "timeline", "details"];

/** Keeps the end in view while it grows, unless somebody has scrolled away from it. */
function useStickToEnd(): { scroller: React.RefObject<HTMLDivElement | null>; content: React.RefObject<HTMLDivElement | null> } {
  const scroller = useRef<HTMLDivElement>(null);
  const content = useRef<HTMLDivElement>(null);
  useEffect(() => {
    const outer = scroller.current;
    const inner = content.current;
    if (!outer || !inner) return;
    let isAtEnd = true;
    const onScroll = () => {
      isAtEnd = outer.scrollHeight - outer.scrollTop - outer.clientHeight < 80;
    };
    const observer = new ResizeObserver(() => {
      if (isAtEnd) outer.scrollTop = outer.scrollHeight;
    });
    observer.observe(inner);
    outer.addEventListener("scroll", onScroll, { passive: true });
    return () => {
      observer.disconnect();
      outer.removeEventListener("scroll", onScroll);
    };
  }, []);
  return { scroller, content };
}

/** Tells those who hear the page who begins and who is done, not each token. */
function Announcer({ isLoading, waiting }: { isLoading: boolean; waiting: number }) {
  const { feed } = useFeed();
  const agents = useAgents(feed);
  const before = useRef(new Map<string, string>());
  const [words, setWords] = useState("");
  useEffect(() => {
    const news: string[] = [];
    for (const agent of agents) {
      if (agent.namespace.length > 0 && before.current.has(agent.key) && before.current.get(agent.key) !== agent.status) news.push(`${agent.name} ${agent.status}`);
      before.current.set(agent.key, agent.status);
    }
    if (news.length > 0) setWords(news.join(", "));
  }, [agents]);
  const main = waiting > 0 ? `${waiting} waiting for an answer.` : isLoading ? "The agent is working." : "The agent is idle.";
  return (
    <p className="visually-hidden" role="status">
      {main} {words}
    </p>
  );
}

/** What a human has decided, in words. */
function decisionOf(interrupt: Interrupt): string {
  const answer = interrupt.resolution?.answer;
  const given = answer && typeof answer === "object" && !Array.isArray(answer) ? answer : {};
  const decisions = given["decisions"];
  if (!Array.isArray(decisions)) {
    // The decision about one call alone, and the answer to questions of the agent, are in no list.
    if (typeof given["type"] === "string") return given["type"];
    return interrupt.status === "resolved" ? "answered" : interrupt.status;
  }
  return decisions.map((decision) => (decision && typeof decision === "object" && !Array.isArray(decision) ? String(decision["type"]) : "?")).join(", ");
}

/** The questions of the thread that are answered, or were dropped. */
function PastQuestions({ threadId }: { threadId: string }) {
  const questions = useQuery({
    queryKey: ["interrupts", threadId, "all"],
    queryFn: async ({ signal }) => (await request<{ interrupts: Interrupt[] }>(`/threads/${threadId}/interrupts`, { signal })).interrupts,
  });
  const past = questions.data?.filter((interrupt) => interrupt.status !== "pending").reverse() ?? [];
  if (past.length === 0) return null;
  return (
    <section>
      <h2 className="panel-heading">Past questions</h2>
      <ul className="stack">
        {past.slice(0, 50).map((interrupt) => (
          <li key={interrupt.id} className="past-question">
            <span className="row">
              <StatusBadge status={interrupt.status} label={decisionOf(interrupt)} />
              <span className="mono">{actionsOf(interrupt).map((action) => action.name).join(", ") || "question"}</span>
            </span>
            <span className="muted">
              {interrupt.agent_path.join(" › ")}, <Time value={interrupt.resolution?.resolved_at ?? interrupt.created_at} />
            </span>
          </li>
        ))}
      </ul>
    </section>
  );
}

function Details({ threadId }: { threadId: string }) {
  const queries = useQueryClient();
  const thread = useThread(threadId);
  const storage = useQuery({ queryKey: ["storage", threadId], queryFn: ({ signal }) => request<ThreadStorage>(`/threads/${threadId}/storage`, { signal }) });
  const [isDeleting, setIsDeleting] = useState(false);
  const copy = useMutation({ mutationFn: () => sdk().threads.copy(threadId) as unknown as Promise<{ thread_id: string }>, onSuccess: ({ thread_id }) => navigate(`/threads/${thread_id}`) });
  const remove = useMutation({
    mutationFn: () => sdk().threads.delete(threadId),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["threads"] });
      navigate("/");
    },
  });
  if (thread.isPending) return <Loading />;
  if (thread.isError) return <ErrorNotice error={thread.error} onRetry={() => void thread.refetch()} />;
  const { data } = thread;
  return (
    <div className="stack">
      <dl className="facts">
        <dt>Thread</dt>
        <dd>
          <CopyId id={threadId} label="thread id" full />
        </dd>
        <dt>Created</dt>
        <dd>
          <Time value={data.created_at} />
        </dd>
        <dt>Changed</dt>
        <dd>
          <Time value={data.updated_at} />
        </dd>
        {storage.data && (
          <>
            <dt>Storage</dt>
            <dd className="numeric">
              {bytes(storage.data.total_bytes)} in {count(storage.data.total_rows)} rows
            </dd>
            <dt>of which</dt>
            <dd className="numeric">
              checkpoints {bytes(storage.data.checkpoints.bytes)}, events {bytes(storage.data.events.bytes)}, runs {bytes(storage.data.runs.bytes)}
            </dd>
          </>
        )}
      </dl>
      <RememberedDecisions threadId={threadId} />
      <PastQuestions threadId={threadId} />
      <section>
        <h2 className="panel-heading">Metadata</h2>
        <JsonView value={data.metadata} label="Metadata" />
      </section>
      <section>
        <h2 className="panel-heading">Settings of the last run</h2>
        <JsonView value={(data as unknown as { config?: JsonObject }).config ?? {}} label="Settings" />
      </section>
      <div className="row">
        <Button icon="copy" busy={copy.isPending} onClick={() => copy.mutate()}>
          Copy the thread
        </Button>
        <Button icon="trash" kind="danger" onClick={() => setIsDeleting(true)}>
          Delete…
        </Button>
      </div>
      <ErrorNotice error={copy.error} />
      {isDeleting && (
        <Dialog title="Delete this thread?" onClose={() => setIsDeleting(false)}>
          <p>Its messages, files, checkpoints and runs are deleted. This cannot be undone.</p>
          <ErrorNotice error={remove.error} />
          <div className="dialog-actions">
            <Button onClick={() => setIsDeleting(false)}>Keep it</Button>
            <Button kind="danger" icon="trash" busy={remove.isPending} onClick={() => remove.mutate()}>
              Delete the thread
            </Button>
          </div>
        </Dialog>
      )}
    </div>
  );
}

/** Tells that the conversation shows only the newer part of the thread. */
function LeftMessages({ left, onTimeline }: { left: number; onTimeline: () => void }) {
  return (
    <div className="notice">
      <span className="notice-text">
        {plural(left, "earlier message")} {left === 1 ? "has" : "have"} left the state. A summary stands for {left === 1 ? "it" : "them"}, and earlier checkpoints have {left === 1 ? "it" : "them"}.
      </span>
      <Button small icon="replay" onClick={onTimeline}>
        Timeline
      </Button>
    </div>
  );
}

function View({ session, agentName, header }: { session: Session; agentName: string; header: ReactNode }) {
  const { threadId, isLoading } = session;
  const { query } = useLocation();
  const wanted = query.get("tab") as Tab | null;
  const tab: Tab = wanted && tabs.includes(wanted) ? wanted : "conversation";
  // On wide screens the conversation is always there, and the panel beside it shows the agents when no other tab is chosen.
  const panel = tab === "conversation" ? "agents" : tab;
  const thread = useThread(threadId);
  const interrupts = useThreadInterrupts(threadId);
  const waiting = interrupts.data ?? [];
  // The session counts what this page has sent. What was sent before a reload, or elsewhere, waits at the server.
  const runs = useRuns(threadId, isLoading).data ?? [];
  const waitingRuns = runs.some((run) => run.status === "running") ? runs.filter((run) => run.status === "pending").length : 0;
  const left = leftMessages(session.values);
  const { scroller, content } = useStickToEnd();
  const goOn = useCallback((checkpointId: string) => session.goOn(checkpointId), [session]);
  const failed = (thread.data as unknown as { error?: { error: string; message: string } | null } | undefined)?.error;
  const choose = (id: Tab) => setQuery({ tab: id });
  return (
    <div className={classes("thread", "full", tab === "conversation" && "thread-conversation")}>
      <div className="thread-main">
        {header}
        <div className="thread-narrow-tabs">
          <Tabs prefix="narrow-" label="Parts of the thread" value={tab} onChange={choose} tabs={tabs.map((id) => ({ id, label: labels[id] }))} />
        </div>
        <div className="thread-scroll" id="panel-conversation" ref={scroller} tabIndex={0} role="region" aria-label="Conversation">
          <div className="thread-column" ref={content}>
            {session.isThreadLoading && session.messages.length === 0 ? (
              <Loading lines={6} />
            ) : session.messages.length === 0 && !isLoading ? (
              <EmptyState icon="chat" title="Nothing is said yet">
                Write a message below. What each agent says and does is shown here while it happens.
              </EmptyState>
            ) : (
              <>
                {left > 0 && <LeftMessages left={left} onTimeline={() => choose("timeline")} />}
                <MessageList messages={session.messages} agentName={agentName} />
              </>
            )}
            {waiting.map((interrupt) => (
              <InterruptCard key={interrupt.id} interrupt={interrupt} />
            ))}
            {isLoading && waiting.length === 0 && (
              <p className="working" aria-hidden="true">
                <span className="spinner" /> Working
              </p>
            )}
            {!isLoading && failed?.error === "UserInterrupt" && waiting.length === 0 && (
              <div className="notice">
                <span className="notice-text">The run was stopped.</span>
                <Button small icon="replay" onClick={() => void session.goOn()}>
                  Continue
                </Button>
              </div>
            )}
            {!isLoading && failed && failed.error !== "UserInterrupt" && <ErrorNotice title={`The last run has failed: ${failed.error}`} error={new Error(failed.message)} onRetry={() => void session.goOn()} />}
            {Boolean(session.error) && !failed && <ErrorNotice error={session.error} />}
          </div>
        </div>
        <Composer
          isBusy={isLoading}
          queued={session.queued + waitingRuns}
          placeholder={`Message to ${agentName}`}
          note={waiting.length > 0 && !isLoading ? "A question is open above. A message instead of an answer drops it." : undefined}
          onSend={session.say}
          onStop={session.stop}
        />
      </div>
      <aside className="thread-panel" aria-label="Details of the thread">
        <div className="thread-wide-tabs">
          <Tabs label="Details" value={panel} onChange={choose} tabs={tabs.filter((id) => id !== "conversation").map((id) => ({ id, label: labels[id] }))} />
        </div>
        <TabPanel id={panel} className="thread-panel-body">
          {panel === "agents" && <AgentTree isBusy={isLoading} />}
          {panel === "state" && <StateView values={session.values} />}
          {panel === "timeline" && <Timeline isBusy={isLoading} onRun={goOn} />}
          {panel === "details" && <Details threadId={threadId} />}
        </TabPanel>
      </aside>
      <Announcer isLoading={isLoading} waiting={waiting.length} />
    </div>
  );
}

const labels: Record<Tab, string> = { conversation: "Conversation", agents: "Agents", state: "State", timeline: "Timeline", details: "Details" };

/** A whole thread: the conversation, and beside it its agents, state, timeline and details. */
export function ThreadView({ threadId, assistantId, agentName, title, first, onFirst }: { threadId: string; assistantId: string; agentName: string; title: ReactNode; first?: string; onFirst?: () => void }) {
  const thread = useThread(threadId);
  return (
    <SessionProvider threadId={threadId} assistantId={assistantId} first={first} onFirst={onFirst}>
      {(session) => (
        <View
          session={session}
          agentName={agentName}
          header={
            <header className="thread-head">
              <div className="thread-title">
                {title}
                <CopyId id={threadId} label="thread id" />
              </div>
              <StatusBadge status={session.isLoading ? "busy" : (thread.data?.status ?? "idle")} />
            </header>
          }
        />
      )}
    </SessionProvider>
  );
}
