import { useQuery } from "@tanstack/react-query";

import { request } from "./client";
import type { Json, JsonObject } from "./types";

export interface ActionRequest {
  name: string;
  args: JsonObject;
  description?: string;
}

export interface ReviewConfig {
  action_name: string;
  allowed_decisions: Decision["type"][];
  args_schema?: JsonObject;
}

export type Decision =
  | { type: "approve" }
  | { type: "edit"; edited_action: { name: string; args: JsonObject } }
  | { type: "reject"; message?: string }
  | { type: "respond"; message: string };

export interface Interrupt {
  id: string;
  thread_id: string;
  run_id: string;
  status: "pending" | "resolved" | "dropped" | "expired";
  kind: "tool_approval" | "unknown_outcome" | "question";
  agent_name: string;
  agent_path: string[];
  task_call_id: string | null;
  approvers: { users?: string[]; roles?: string[] } | null;
  value: { action_requests?: ActionRequest[]; review_configs?: ReviewConfig[] } & JsonObject;
  response_schema: JsonObject;
  created_at: string;
  expires_at: string | null;
  resolution: { answer: Json; resolved_at: string | null; run_id: string | null } | null;
}

/** How many waiting interrupts are read at once. */
export const PENDING_LIMIT = 100;

/** The interrupts of all threads that wait, the oldest first. */
export function usePendingInterrupts() {
  return useQuery({
    queryKey: ["interrupts", "pending"],
    queryFn: async ({ signal }) => (await request<{ interrupts: Interrupt[] }>("/interrupts", { query: { status: "pending", limit: PENDING_LIMIT }, signal })).interrupts,
    refetchInterval: 4_000,
  });
}

export function resolveInterrupt(interrupt: Interrupt, answer: { decisions: Decision[] } | { response: Json }): Promise<unknown> {
  return request(`/threads/${interrupt.thread_id}/interrupts/${interrupt.id}/resolve`, { body: answer });
}
