// Agents, assistants, crons, deliveries, the Store, metrics, the audit and API keys.
import { useQuery } from "@tanstack/react-query";

import { request, requestPage, sdk } from "./client";
import type { Json, JsonObject } from "./types";

export interface Diagnostic {
  severity: "error" | "warning";
  field: string;
  message: string;
  file?: string | null;
  line?: number | null;
}

export interface Agent {
  graph_id: string;
  assistant_id: string;
  source: "file" | "http";
  file: string | null;
  version: number;
  digest: string;
  usable: boolean;
  definition: JsonObject;
  problems: Diagnostic[];
  updated_at: string;
}

export interface AgentVersion {
  graph_id: string;
  version: number;
  source: "file" | "http";
  file: string | null;
  digest: string;
  definition: JsonObject;
  created_at: string;
}

export interface GraphNode {
  id: string;
  data: { name: string };
  metadata?: { __tools?: string[]; __middleware?: string[]; lc_agent_name?: string } | null;
}

export interface GraphEdge {
  source: string;
  target: string;
  conditional?: boolean | null;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
}

export interface Schemas {
  graph_id: string;
  input_schema: JsonObject;
  output_schema: JsonObject;
  state_schema: JsonObject;
  config_schema: JsonObject;
  context_schema: JsonObject | null;
}

export interface AssistantRow {
  assistant_id: string;
  graph_id: string;
  name: string;
  description: string | null;
  config: JsonObject;
  context: JsonObject;
  metadata: JsonObject;
  version: number;
  created_at: string;
  updated_at: string;
}

export interface AssistantVersion extends Omit<AssistantRow, "updated_at"> {}

export interface Cron {
  cron_id: string;
  assistant_id: string;
  thread_id: string | null;
  schedule: string;
  timezone: string | null;
  end_time: string | null;
  next_run_date: string | null;
  enabled: boolean;
  payload: JsonObject;
  metadata: JsonObject;
  on_run_completed: string | null;
  created_at: string;
  updated_at: string;
}

export interface Delivery {
  delivery_id: string;
  run_id: string;
  thread_id: string;
  url: string;
  status: "pending" | "delivered" | "dead";
  attempts: number;
  next_attempt_at: string | null;
  response_status: number | null;
  error: string | null;
  created_at: string;
  finished_at: string | null;
  payload?: JsonObject | null;
}

export interface Item {
  namespace: string[];
  key: string;
  value: JsonObject;
  created_at: string;
  updated_at: string;
  score?: number | null;
}

export interface Sample {
  name: string;
  labels: Record<string, string>;
  value: number | null;
}

export interface MetricsAnswer {
  queue: { n_pending: number | null; n_running: number | null; pending_runs_wait_time_max_secs: number | null };
  workers: { max: number | null; active: number | null; available: number | null };
  metrics: Sample[];
}

export interface AuditEntry {
  id: string;
  created_at: string;
  tenant: string;
  user: string;
  credential: string;
  action: string;
  resource: string;
  outcome: "allowed" | "denied";
  address: string | null;
  detail: JsonObject;
}

export interface ApiKey {
  key_id: string;
  name: string;
  tenant: string;
  user: string;
  roles: string[];
  scopes: string[] | null;
  created_at: string;
  expires_at: string | null;
  last_used_at: string | null;
  rotated_at: string | null;
  revoked_at: string | null;
}

export interface IssuedKey extends ApiKey {
  /** Shown once. */
  api_key: string;
}

export function searchAgents(filter: { name?: string; limit: number; offset: number }, signal?: AbortSignal) {
  return requestPage<Agent>("/agents/search", { body: filter, signal });
}

export function useAgent(graphId: string) {
  return useQuery({
    queryKey: ["agents", graphId],
    queryFn: ({ signal }) => request<Agent>(`/agents/${encodeURIComponent(graphId)}`, { signal }),
  });
}

/** The names of all agents, for choices. */
export function useAgentNames() {
  return useQuery({
    queryKey: ["agents", "names"],
    queryFn: async ({ signal }) => {
      const { items } = await requestPage<{ graph_id: string }>("/agents/search", { body: { limit: 1000, select: ["graph_id"] }, signal });
      return items.map((agent) => agent.graph_id).sort();
    },
    staleTime: 30_000,
  });
}

export function readGraph(assistantId: string, levels: number, signal?: AbortSignal) {
  return request<Graph>(`/assistants/${assistantId}/graph`, { query: { xray: levels === 0 ? undefined : levels }, signal });
}

export async function searchAssistants(filter: { name?: string; graph_id?: string; limit: number; offset: number }, signal?: AbortSignal) {
  return requestPage<AssistantRow>("/assistants/search", { body: { ...filter, sort_by: "updated_at", sort_order: "desc" }, signal });
}

export function searchCrons(limit: number, offset: number, signal?: AbortSignal) {
  return requestPage<Cron>("/runs/crons/search", { body: { limit, offset }, signal });
}

export function setCronEnabled(cronId: string, enabled: boolean): Promise<unknown> {
  return request(`/runs/crons/${cronId}`, { method: "PATCH", body: { enabled } });
}

export function deleteCron(cronId: string): Promise<unknown> {
  return sdk().crons.delete(cronId);
}

export function listNamespaces(prefix: string[], signal?: AbortSignal) {
  return sdk().store.listNamespaces({ prefix: prefix.length > 0 ? prefix : undefined, limit: 500 }).then((answer) => {
    signal?.throwIfAborted();
    return answer.namespaces;
  });
}

export async function searchItems(search: { prefix: string[]; query?: string; limit: number; offset: number }, signal?: AbortSignal): Promise<Item[]> {
  const body = { namespace_prefix: search.prefix, query: search.query || undefined, limit: search.limit, offset: search.offset, refresh_ttl: false };
  return (await request<{ items: Item[] }>("/store/items/search", { body, signal })).items;
}

export function putItem(item: { namespace: string[]; key: string; value: Json; ttl?: number }): Promise<unknown> {
  return request("/store/items", { method: "PUT", body: item });
}

export function deleteItem(namespace: string[], key: string): Promise<unknown> {
  return request("/store/items", { method: "DELETE", body: { namespace, key } });
}
