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

/** What a decision covers beyond its call: later calls on the thread, perhaps only those with the same arguments. */
export interface Reach {
  scope?: "thread";
  for?: "same_arguments";
}

export type Decision =
  | ({ type: "approve" } & Reach)
  | { type: "edit"; edited_action: { name: string; args: JsonObject } }
  | ({ type: "reject"; message?: string } & Reach)
  | { type: "respond"; message: string };

/** A decision that holds for the rest of a thread. */
export interface RememberedDecision {
  id: string;
  thread_id: string;
  interrupt_id: string;
  agent_name: string;
  agent_path: string[];
  tool: string;
  decision: "approve" | "reject";
  message: string | null;
  /** The condition on the arguments: tables of tests by argument, one of which has to hold. */
  for: JsonObject | JsonObject[] | null;
  decided_by: string | null;
  created_at: string;
}

/** A question of the tool `ask_user`. */
export interface UserQuestion {
  question: string;
  type: "text" | "multiple_choice" | "multi_select" | "json";
  choices?: { value: string; description?: string }[];
  allow_other?: boolean;
  required?: boolean;
  schema?: JsonObject;
}

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

/** The calls that an interrupt asks about; none for other questions. */
export function actionsOf({ kind, value }: Interrupt): ActionRequest[] {
  if (kind === "tool_approval" && value["type"] === "tool_approval") return [value as unknown as ActionRequest];
  return value.action_requests ?? [];
}

/** The schema of the decision about a call. */
function decisionSchema(interrupt: Interrupt, index: number): JsonObject {
  const properties = (interrupt.response_schema["properties"] ?? {}) as JsonObject;
  if (interrupt.value["type"] === "tool_approval") return properties;
  const list = (properties["decisions"] ?? {}) as JsonObject;
  const positions = Array.isArray(list["prefixItems"]) ? list["prefixItems"] : [];
  return (((positions[index] ?? {}) as JsonObject)["properties"] ?? {}) as JsonObject;
}

function wordsOf(schema: JsonObject, name: string): string[] {
  const words = ((schema[name] ?? {}) as JsonObject)["enum"];
  return Array.isArray(words) ? words.filter((word): word is string => typeof word === "string") : [];
}

/** The decisions that are allowed about a call. */
export function allowedFor(interrupt: Interrupt, index: number): Decision["type"][] {
  const action = actionsOf(interrupt)[index];
  const config = interrupt.value.review_configs?.find(({ action_name }) => action_name === action?.name);
  const words = config?.allowed_decisions ?? (wordsOf(decisionSchema(interrupt, index), "type") as Decision["type"][]);
  return words.length > 0 ? words : ["approve", "reject"];
}

/** Whether a decision about a call may be remembered for the rest of the thread. */
export function mayBeRemembered(interrupt: Interrupt, index: number): boolean {
  return wordsOf(decisionSchema(interrupt, index), "scope").includes("thread");
}

/** The questions of the tool `ask_user`, if the interrupt is one. */
export function questionsOf({ value }: Interrupt): UserQuestion[] | undefined {
  const questions = value["questions"];
  return value["type"] === "ask_user" && Array.isArray(questions) ? (questions as unknown as UserQuestion[]) : undefined;
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

/** The decisions that hold for the rest of a thread, the oldest first. */
export function useRememberedDecisions(threadId: string) {
  return useQuery({
    queryKey: ["interrupts", threadId, "remembered"],
    queryFn: async ({ signal }) => (await request<{ approvals: RememberedDecision[] }>(`/threads/${threadId}/approvals`, { signal })).approvals,
    refetchInterval: 5_000,
  });
}

export function revokeDecision({ thread_id, id }: RememberedDecision): Promise<unknown> {
  return request(`/threads/${thread_id}/approvals/${id}`, { method: "DELETE" });
}

export function resolveInterrupt(interrupt: Interrupt, answer: { decisions: Decision[] } | { response: Json }): Promise<unknown> {
  return request(`/threads/${interrupt.thread_id}/interrupts/${interrupt.id}/resolve`, { body: answer });
}
