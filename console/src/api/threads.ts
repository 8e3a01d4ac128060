// Threads, runs and checkpoints, where the SDK's types say less than the server does.
import { useQuery } from "@tanstack/react-query";

import { request, requestPage, sdk } from "./client";
import type { Interrupt } from "./interrupts";
import type { Json, JsonObject } from "./types";

export interface Usage {
  model_calls: number;
  tool_calls: number;
  input_tokens: number;
  output_tokens: number;
  children: number;
  cost_micros?: number;
  seconds: number;
}

export type ThreadStatus = "idle" | "busy" | "interrupted" | "error";

export interface ThreadRow {
  thread_id: string;
  status: ThreadStatus;
  metadata: JsonObject;
  created_at: string;
  updated_at: string;
  error: { error: string; message: string } | null;
  interrupts: Record<string, unknown[]>;
  extracted?: { first?: Json; last?: Json };
}

export interface Run {
  run_id: string;
  thread_id: string;
  assistant_id: string;
  status: "pending" | "running" | "success" | "error" | "timeout" | "interrupted";
  metadata: JsonObject;
  kwargs: JsonObject;
  created_at: string;
  updated_at: string;
}

export interface RunNode {
  run_id: string;
  agent_name: string;
  agent_path: string[];
  task_call_id: string | null;
  depth: number;
  display_text: string | null;
  status: Run["status"];
  error: { error: string; message: string } | null;
  checkpoint_ns: string;
  created_at: string;
  updated_at: string;
  usage: Usage;
  children: RunNode[];
}

export interface RunTree extends RunNode {
  tree_usage: Usage;
  truncated: boolean;
  background_tasks: { task_id: string; thread_id: string; agent_name: string; status: string; created_at: string }[];
}

export interface Checkpoint {
  checkpoint_id: string;
  thread_id: string;
  checkpoint_ns: string;
}

export interface ThreadState {
  values: JsonObject;
  next: string[];
  tasks: { id: string; name: string; error: string | null; interrupts: unknown[]; result: JsonObject | null }[];
  metadata: JsonObject | null;
  created_at: string | null;
  checkpoint: Checkpoint | null;
  parent_checkpoint: Checkpoint | null;
  checkpoint_id: string | null;
  parent_checkpoint_id: string | null;
}

export interface ThreadFilter {
  status?: ThreadStatus;
  ids?: string[];
  metadata?: JsonObject;
  sort_by: "updated_at" | "created_at" | "status";
  sort_order: "asc" | "desc";
  limit: number;
  offset: number;
}

const columns = ["thread_id", "status", "metadata", "created_at", "updated_at", "interrupts", "error"];

/** Threads with their first and last message, without the rest of their states. */
export function searchThreads(filter: ThreadFilter, signal?: AbortSignal) {
  return requestPage<ThreadRow>("/threads/search", {
    body: { ...filter, select: columns, extract: { first: "values.messages[0].content", last: "values.messages[-1].content" } },
    signal,
  });
}

export function useThread(threadId: string | undefined) {
  return useQuery({
    queryKey: ["thread", threadId],
    queryFn: () => sdk().threads.get(threadId ?? ""),
    enabled: Boolean(threadId),
    refetchInterval: 5_000,
  });
}

export function useRuns(threadId: string, isBusy: boolean) {
  return useQuery({
    queryKey: ["runs", threadId],
    queryFn: async ({ signal }) => (await sdk().runs.list(threadId, { limit: 30, signal })) as unknown as Run[],
    refetchInterval: isBusy ? 3_000 : false,
  });
}

export function useRunTree(threadId: string, runId: string, isBusy: boolean, enabled = true) {
  return useQuery({
    queryKey: ["tree", threadId, runId],
    queryFn: ({ signal }) => request<RunTree>(`/threads/${threadId}/runs/${runId}/tree`, { signal }),
    refetchInterval: isBusy ? 1_500 : false,
    enabled,
  });
}

export function useRunState(threadId: string, runId: string, enabled: boolean) {
  return useQuery({
    queryKey: ["run-state", threadId, runId],
    queryFn: ({ signal }) => request<ThreadState>(`/threads/${threadId}/runs/${runId}/state`, { signal }),
    enabled,
  });
}

export function useThreadInterrupts(threadId: string) {
  return useQuery({
    queryKey: ["interrupts", threadId],
    queryFn: async ({ signal }) => (await request<{ interrupts: Interrupt[] }>(`/threads/${threadId}/interrupts`, { query: { status: "pending" }, signal })).interrupts,
    refetchInterval: 5_000,
  });
}

/** A page of the history, the newest first. `namespace` is that of a subagent. */
export function readHistory(threadId: string, options: { limit: number; before?: string; namespace?: string }, signal?: AbortSignal) {
  return request<ThreadState[]>(`/threads/${threadId}/history`, {
    body: {
      limit: options.limit,
      before: options.before ? { configurable: { checkpoint_id: options.before } } : undefined,
      checkpoint: options.namespace ? { checkpoint_ns: options.namespace } : undefined,
    },
    signal,
  });
}

export interface ThreadStorage {
  total_rows: number;
  total_bytes: number;
  checkpoints: { rows: number; bytes: number };
  events: { rows: number; bytes: number };
  runs: { rows: number; bytes: number };
  interrupts: { rows: number; bytes: number };
}

export interface Assistant {
  assistant_id: string;
  graph_id: string;
  name: string;
  description?: string | null;
  version: number;
}

export function useAssistants() {
  return useQuery({
    queryKey: ["assistants", "all"],
    queryFn: async () => (await sdk().assistants.search({ limit: 200 })) as unknown as Assistant[],
    staleTime: 30_000,
  });
}
