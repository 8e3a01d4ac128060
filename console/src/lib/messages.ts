// One form for messages, whether they come from a state, from the SDK or piece by piece from a stream.
import type { BaseMessage } from "@langchain/core/messages";

import type { Json, JsonObject } from "../api/types";

export interface ToolCall {
  id: string;
  name: string;
  args: JsonObject | string;
}

export interface Message {
  id: string;
  role: "human" | "ai" | "tool" | "system";
  text: string;
  reasoning: string;
  /** Blocks that are no text, such as pictures. */
  others: Json[];
  toolCalls: ToolCall[];
  toolCallId: string | undefined;
  /** Of a tool's message: whether the call failed. */
  isError: boolean;
  name: string | undefined;
  model: string | undefined;
  usage: { input: number; output: number } | undefined;
  isStreaming: boolean;
}

interface WireMessage {
  id?: string | null;
  type?: string;
  role?: string;
  content?: unknown;
  name?: string | null;
  tool_calls?: { id?: string; name: string; args: JsonObject }[];
  invalid_tool_calls?: { id?: string; name?: string; args?: string }[];
  tool_call_id?: string;
  status?: string;
  usage_metadata?: { input_tokens?: number; output_tokens?: number };
  response_metadata?: { model_name?: string };
}

const roles: Record<string, Message["role"]> = { human: "human", user: "human", ai: "ai", assistant: "ai", tool: "tool", system: "system" };

function split(content: unknown): Pick<Message, "text" | "reasoning" | "others"> & { calls: ToolCall[] } {
  if (typeof content === "string") return { text: content, reasoning: "", others: [], calls: [] };
  const texts: string[] = [];
  const reasons: string[] = [];
  const others: Json[] = [];
  const calls: ToolCall[] = [];
  for (const block of Array.isArray(content) ? (content as unknown[]) : []) {
    if (typeof block === "string") {
      texts.push(block);
      continue;
    }
    const { type, text, reasoning, thinking, id, name, args } = block as { type?: string; text?: string; reasoning?: string; thinking?: string; id?: string; name?: string; args?: JsonObject };
    if (type === "text" || type === "output_text" || type === "input_text") texts.push(text ?? "");
    else if (type === "reasoning" || type === "thinking") reasons.push(reasoning ?? thinking ?? text ?? "");
    else if (type === "tool_call" && name) calls.push({ id: id ?? "", name, args: args ?? {} });
    else if (type !== "tool_call_chunk" && type !== "tool_use" && type !== "invalid_tool_call") others.push(block as Json);
  }
  return { text: texts.join(""), reasoning: reasons.join("\n"), others, calls };
}

export function messageOfWire(wire: WireMessage): Message {
  const { text, reasoning, others, calls } = split(wire.content);
  const named = (wire.tool_calls ?? []).map(({ id, name, args }) => ({ id: id ?? "", name, args }));
  const invalid = (wire.invalid_tool_calls ?? []).map(({ id, name, args }) => ({ id: id ?? "", name: name ?? "?", args: args ?? "" }));
  const usage = wire.usage_metadata;
  return {
    id: wire.id ?? "",
    role: roles[wire.type ?? wire.role ?? ""] ?? "system",
    text,
    reasoning,
    others,
    toolCalls: [...(named.length > 0 ? named : calls), ...invalid],
    toolCallId: wire.tool_call_id,
    isError: wire.status === "error",
    name: wire.name ?? undefined,
    model: wire.response_metadata?.model_name,
    usage: usage ? { input: usage.input_tokens ?? 0, output: usage.output_tokens ?? 0 } : undefined,
    isStreaming: false,
  };
}

const known = new WeakMap<BaseMessage, Message>();

/** The same object for the same message, so that a list renders only what has changed. */
export function messageOfSdk(message: BaseMessage): Message {
  const found = known.get(message);
  if (found) return found;
  const { id, content, name, tool_calls, invalid_tool_calls, tool_call_id, status, usage_metadata, response_metadata } = message as BaseMessage & WireMessage;
  const made = messageOfWire({ id, type: message.getType(), content, name, tool_calls, invalid_tool_calls, tool_call_id, status, usage_metadata, response_metadata });
  known.set(message, made);
  return made;
}

/** The number of messages that have left a state: a summary stands for them, and earlier checkpoints have them. */
export function leftMessages(values: JsonObject | undefined): number {
  const summarization = values?.["summarization"];
  if (typeof summarization !== "object" || summarization === null || Array.isArray(summarization)) return 0;
  const left = summarization["left_messages"];
  return typeof left === "number" ? left : 0;
}

/** The messages of a state. */
export function messagesOfValues(values: unknown): Message[] {
  const messages = (values as { messages?: unknown } | null | undefined)?.messages;
  return Array.isArray(messages) ? (messages as WireMessage[]).map(messageOfWire) : [];
}
