import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { request } from "../api/client";
import { type Run, type RunNode, useRuns, useRunState, useRunTree, useThreadInterrupts } from "../api/threads";
import { useAgent } from "../lib/feed";
import { plural } from "../lib/format";
import { useNow } from "../lib/frame";
import { messagesOfValues } from "../lib/messages";
import { href } from "../lib/router";
import { AgentConversation, Elapsed, MessageList, UsageLine } from "./Conversation";
import { Icon } from "./Icon";
import { useFeed } from "./Session";
import { StateView } from "./StateView";
import { Button, classes, CopyId, Dialog, EmptyState, ErrorNotice, Loading, StatusBadge, TabPanel, Tabs, Time } from "./ui";

function isAtWork(status: Run["status"]): boolean {
  return status === "pending" || status === "running";
}

interface RowProperties {
  node: RunNode;
  waits?: boolean;
  onOpen: (node: RunNode) => void;
}

function statusWord(node: RunNode, live: string | undefined): string {
  if (live === "running" && isAtWork(node.status)) return "running";
  if (node.status === "interrupted") return node.error ? "stopped" : "waits";
  return node.status;
}

function AgentRow({ node, waits = false, onOpen }: RowProperties) {
  const { feed } = useFeed();
  const live = useAgent(feed, feed.keyOfTask(node.checkpoint_ns));
  const [isOpen, setIsOpen] = useState(true);
  const word = waits ? "waits" : statusWord(node, live?.status);
  const isRunning = isAtWork(node.status);
  useNow(isRunning);
  return (
    <li>
      <div className="agent-row">
        {node.children.length > 0 ? (
          <button type="button" className="tree-toggle" aria-expanded={isOpen} aria-label={`Subagents of ${node.agent_name}`} onClick={() => setIsOpen(!isOpen)}>
            <Icon name="chevron" size={13} />
          </button>
        ) : (
          <span className="tree-toggle" />
        )}
        <button type="button" className="agent-open" data-agent-row={node.agent_name} onClick={() => onOpen(node)}>
          <span className="agent-name">
            <strong className="truncate">{node.agent_name}</strong>
            <StatusBadge status={word === "waits" ? "interrupted" : word === "stopped" ? "cancelled" : word} label={word} />
          </span>
          {node.display_text && <span className="muted truncate">{node.display_text}</span>}
          <span className="agent-facts muted">
            <Elapsed from={Date.parse(node.created_at)} to={isRunning ? undefined : Date.parse(node.updated_at)} />
            <UsageLine usage={node.usage} />
            {node.usage.tool_calls > 0 && <span className="numeric">{plural(node.usage.tool_calls, "call")}</span>}
          </span>
          {node.error && word !== "stopped" && <span className="field-error">{node.error.message}</span>}
        </button>
      </div>
      {isOpen && node.children.length > 0 && (
        <ul className="agent-children">
          {node.children.map((child) => (
            <AgentRow key={child.run_id} node={child} onOpen={onOpen} />
          ))}
        </ul>
      )}
    </li>
  );
}

type DetailTab = "conversation" | "state";

/** One agent: what it said and did, and its state. */
function AgentDialog({ node, onClose }: { node: RunNode; onClose: () => void }) {
  const { feed, threadId } = useFeed();
  const queries = useQueryClient();
  const key = feed.keyOfTask(node.checkpoint_ns);
  const live = useAgent(feed, key);
  const isInFeed = key !== undefined && live !== undefined && live.messages.length > 0;
  const state = useRunState(threadId, node.run_id, !isInFeed);
  const [tab, setTab] = useState<DetailTab>("conversation");
  const cancel = useMutation({
    mutationFn: () => request(`/threads/${threadId}/runs/${node.run_id}/cancel`, { method: "POST" }),
    onSuccess: () => queries.invalidateQueries({ queryKey: ["tree", threadId] }),
  });
  const canStop = node.depth > 0 && (isAtWork(node.status) || node.status === "interrupted");
  return (
    <Dialog title={node.agent_path.join(" › ")} wide onClose={onClose}>
      <div className="row agent-facts">
        <StatusBadge status={node.status} />
        <UsageLine usage={node.usage} />
        <Time value={node.created_at} />
        <CopyId id={node.run_id} label="run id" />
        {canStop && (
          <Button small kind="danger" icon="stop" busy={cancel.isPending} onClick={() => cancel.mutate()}>
            Stop this agent
          </Button>
        )}
      </div>
      <ErrorNotice error={cancel.error} />
      <Tabs label="Agent" value={tab} onChange={setTab} tabs={[{ id: "conversation", label: "Conversation" }, { id: "state", label: "State" }]} />
      <TabPanel id={tab} className="dialog-panel">
        {!isInFeed && state.isPending && <Loading lines={4} />}
        {!isInFeed && <ErrorNotice error={state.error} onRetry={() => void state.refetch()} />}
        {tab === "conversation" &&
          (isInFeed && key !== undefined ? <AgentConversation agentKey={key} /> : state.data && <MessageList messages={messagesOfValues(state.data.values)} agentName={node.agent_name} namespace={live?.namespace} />)}
        {tab === "state" && <StateView values={live?.values ?? state.data?.values} />}
      </TabPanel>
    </Dialog>
  );
}

function RunTreeView({ run, isNewest, number, onOpen }: { run: Run; isNewest: boolean; number: number; onOpen: (node: RunNode) => void }) {
  const [isOpen, setIsOpen] = useState(isNewest);
  const isBusy = isAtWork(run.status);
  const tree = useRunTree(run.thread_id, run.run_id, isBusy, isOpen);
  const waits = useThreadInterrupts(run.thread_id).data?.some((interrupt) => interrupt.run_id === run.run_id) ?? false;
  return (
    <section className={classes("run", isOpen && "run-open")} aria-label={`Run ${number}`}>
      <button type="button" className="run-head" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
        <Icon name="chevron" size={13} />
        <strong>Run {number}</strong>
        <span className="muted">
          <Time value={run.created_at} />
        </span>
        <span className="run-end">
          {tree.data && <UsageLine usage={tree.data.tree_usage} />}
          {/* The wire calls a run that waits for a human a success. */}
          {waits ? <StatusBadge status="interrupted" label="waits" /> : <StatusBadge status={run.status} label={run.status === "interrupted" ? "stopped" : undefined} />}
        </span>
      </button>
      {isOpen && (
        <div className="run-body">
          {tree.isPending && <Loading lines={2} />}
          <ErrorNotice error={tree.error} onRetry={() => void tree.refetch()} />
          {tree.data && (
            <>
              <ul className="agent-tree">
                <AgentRow node={tree.data} waits={waits} onOpen={onOpen} />
              </ul>
              {tree.data.truncated && <p className="muted">The tree is larger; its upper levels are shown.</p>}
              {tree.data.background_tasks.length > 0 && (
                <>
                  <h2 className="panel-heading">Background tasks</h2>
                  <ul className="stack">
                    {tree.data.background_tasks.map((task) => (
                      <li key={task.task_id} className="row">
                        <a href={href(`/threads/${task.thread_id}`)}>{task.agent_name}</a>
                        <StatusBadge status={task.status} />
                      </li>
                    ))}
                  </ul>
                </>
              )}
            </>
          )}
        </div>
      )}
    </section>
  );
}

/** The runs of a thread, the newest first, each with the tree of its agents. */
export function AgentTree({ isBusy }: { isBusy: boolean }) {
  const { threadId } = useFeed();
  const runs = useRuns(threadId, isBusy);
  const [opened, setOpened] = useState<RunNode>();
  if (runs.isPending) return <Loading lines={4} />;
  if (runs.isError) return <ErrorNotice error={runs.error} onRetry={() => void runs.refetch()} />;
  if (runs.data.length === 0) {
    return (
      <EmptyState icon="tree" title="No run yet">
        Send a message: the agent that works on it, and all subagents below it, are here.
      </EmptyState>
    );
  }
  return (
    <div className="runs">
      {runs.data.map((run, index) => (
        <RunTreeView key={run.run_id} run={run} isNewest={index === 0 || isAtWork(run.status)} number={runs.data.length - index} onOpen={setOpened} />
      ))}
      {opened && <AgentDialog node={opened} onClose={() => setOpened(undefined)} />}
    </div>
  );
}
