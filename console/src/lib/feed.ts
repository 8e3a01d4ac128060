// What happens on a thread, agent by agent. The events of all agents come in one stream; each agent has subscribers of
// its own, who hear of it at most once in a frame, so that the tokens of one agent cost nothing to the others.
import type { ThreadStream } from "@langchain/langgraph-sdk/client";
import { useCallback, useSyncExternalStore } from "react";

import type { Usage } from "../api/threads";
import type { Json, JsonObject } from "../api/types";
import { type Message, messagesOfValues, type ToolCall } from "./messages";

export type AgentStatus = "running" | "completed" | "failed" | "interrupted" | "cancelled";

export interface ToolRun {
  id: string;
  name: string;
  input: Json;
  status: "running" | "finished" | "error";
  output: Json | undefined;
  startedAt: number;
  endedAt: number | undefined;
}

/** An agent at one instant. A new object only when something of it has changed. */
export interface AgentSnapshot {
  key: string;
  namespace: readonly string[];
  name: string;
  path: readonly string[];
  /** The `task` call that started it. */
  taskCallId: string | null;
  status: AgentStatus;
  usage: Usage | undefined;
  messages: readonly Message[];
  values: JsonObject | undefined;
  startedAt: number;
  endedAt: number | undefined;
  displayText: string | undefined;
  error: string | undefined;
}

interface Block {
  type: string;
  text: string;
  call: ToolCall | undefined;
  args: string;
}

interface LiveMessage {
  id: string;
  role: Message["role"];
  blocks: Block[];
  isDone: boolean;
  model: string | undefined;
  usage: Message["usage"];
  /** What was made of it for the last frame. */
  made: Message | undefined;
}

interface Agent {
  snapshot: AgentSnapshot;
  settled: Message[];
  live: LiveMessage[];
  listeners: Set<() => void>;
}

interface FeedEvent {
  method: string;
  seq?: number;
  params: {
    namespace: string[];
    timestamp?: number;
    data: unknown;
    agent_name?: string;
    agent_path?: string[];
    tool_call_id?: string | null;
  };
}

interface MessageData {
  event: string;
  id?: string;
  role?: string;
  index?: number;
  content?: { type?: string; text?: string; reasoning?: string; id?: string; name?: string; args?: JsonObject | string };
  delta?: { type?: string; text?: string; reasoning?: string; args?: string };
  metadata?: { model_name?: string };
  usage?: { input_tokens?: number; output_tokens?: number };
}

const SEPARATOR = "\u0000";
const nothing: readonly AgentSnapshot[] = [];

function keyOf(namespace: readonly string[]): string {
  return namespace.join(SEPARATOR);
}

function made(live: LiveMessage): Message {
  if (live.made) return live.made;
  let text = "";
  let reasoning = "";
  const toolCalls: ToolCall[] = [];
  for (const block of live.blocks) {
    if (!block) continue;
    if (block.call) toolCalls.push(block.args && !live.isDone ? { ...block.call, args: block.args } : block.call);
    else if (block.type === "reasoning") reasoning += block.text;
    else text += block.text;
  }
  live.made = {
    id: live.id,
    role: live.role,
    text,
    reasoning,
    others: [],
    toolCalls,
    toolCallId: undefined,
    isError: false,
    name: undefined,
    model: live.model,
    usage: live.usage,
    isStreaming: !live.isDone,
  };
  return live.made;
}

export class Feed {
  readonly #agents = new Map<string, Agent>();
  readonly #byCall = new Map<string, string>();
  readonly #byTask = new Map<string, string>();
  readonly #tools = new Map<string, ToolRun>();
  readonly #toolListeners = new Map<string, Set<() => void>>();
  readonly #listListeners = new Set<() => void>();
  readonly #endListeners = new Set<(event: string) => void>();
  readonly #dirty = new Set<string>();
  readonly #dirtyTools = new Set<string>();
  readonly #accounts = new Map<string, { model: string | undefined; usage: Message["usage"] }>();
  #list: readonly AgentSnapshot[] = nothing;
  #isListDirty = false;
  #frame = 0;
  /** How many events were read, and in how many frames they were shown. */
  readonly counters = { events: 0, frames: 0 };

  /** Reads the events of a thread until `signal` is aborted. */
  async follow(thread: ThreadStream, signal: AbortSignal): Promise<void> {
    const subscription = await thread.subscribe({ channels: ["lifecycle", "messages", "tools", "values"] });
    signal.addEventListener("abort", () => void subscription.unsubscribe().catch(() => undefined), { once: true });
    while (!signal.aborted) {
      for await (const event of subscription) {
        if (signal.aborted) return;
        this.apply(event as unknown as FeedEvent);
      }
      // The SDK pauses a subscription between two runs.
      if (!subscription.isPaused) return;
      await subscription.waitForResume();
    }
  }

  apply(event: FeedEvent): void {
    this.counters.events += 1;
    const { namespace, data } = event.params;
    switch (event.method) {
      case "lifecycle":
        this.#lifecycle(event);
        break;
      case "messages":
        this.#message(event, data as MessageData);
        break;
      case "tools":
        this.#tool(event, data as { event: string; tool_call_id: string; tool_name?: string; input?: Json; output?: Json; message?: string });
        break;
      case "values": {
        const values = data as JsonObject;
        const agent = this.#agent(event, namespace);
        if (!agent || typeof values !== "object") break;
        const settled = messagesOfValues(values);
        const before = new Map(agent.settled.map((message) => [message.id, message]));
        // A message that a state repeats stays the same object.
        agent.settled = settled.map((message) => {
          const old = before.get(message.id);
          return old && old.text === message.text && old.toolCalls.length === message.toolCalls.length ? old : message;
        });
        const ids = new Set(agent.settled.map((message) => message.id));
        agent.live = agent.live.filter((live) => !ids.has(live.id));
        agent.snapshot = { ...agent.snapshot, values };
        this.#changed(agent.snapshot.key);
        break;
      }
      default:
        break;
    }
  }

  #agent({ params }: FeedEvent, namespace: readonly string[]): Agent | undefined {
    const key = keyOf(namespace);
    const found = this.#agents.get(key);
    if (found) return found;
    const path = params.agent_path ?? [params.agent_name ?? "agent"];
    // Results of tools have a namespace below the agent that called them.
    if (path.length !== namespace.length + 1) return undefined;
    const agent: Agent = {
      snapshot: {
        key,
        namespace: [...namespace],
        name: params.agent_name ?? path.at(-1) ?? "agent",
        path,
        taskCallId: params.tool_call_id ?? null,
        status: "running",
        usage: undefined,
        messages: [],
        values: undefined,
        startedAt: params.timestamp ?? Date.now(),
        endedAt: undefined,
        displayText: undefined,
        error: undefined,
      },
      settled: [],
      live: [],
      listeners: new Set(),
    };
    this.#agents.set(key, agent);
    const last = namespace.at(-1);
    if (last) {
      this.#byTask.set(last, key);
      if (params.tool_call_id) this.#byCall.set(keyOf([...namespace.slice(0, -1), params.tool_call_id]), key);
    }
    this.#isListDirty = true;
    this.#changed(key);
    return agent;
  }

  #lifecycle(event: FeedEvent): void {
    const { namespace, timestamp } = event.params;
    const data = event.params.data as { event: string; usage?: Usage; error?: unknown; display_text?: string };
    const agent = this.#agent(event, namespace);
    if (!agent) return;
    const isRunning = data.event === "running" || data.event === "started";
    const error = data.error as { message?: string } | string | undefined;
    agent.snapshot = {
      ...agent.snapshot,
      status: isRunning ? "running" : (data.event as AgentStatus),
      usage: data.usage ?? agent.snapshot.usage,
      displayText: data.display_text ?? agent.snapshot.displayText,
      startedAt: isRunning && agent.snapshot.endedAt !== undefined ? (timestamp ?? Date.now()) : agent.snapshot.startedAt,
      endedAt: isRunning ? undefined : (timestamp ?? Date.now()),
      error: typeof error === "string" ? error : (error?.message ?? undefined),
    };
    if (!isRunning) {
      for (const live of agent.live) {
        live.isDone = true;
        live.made = undefined;
      }
    }
    this.#isListDirty = true;
    this.#changed(agent.snapshot.key);
    this.#endListeners.forEach((listener) => listener(namespace.length === 0 ? `root-${data.event}` : data.event));
  }

  #message(event: FeedEvent, data: MessageData): void {
    const agent = this.#agent(event, event.params.namespace);
    if (!agent) return;
    if (data.event === "message-start") {
      const id = data.id ?? "";
      if (data.role === "tool" || agent.settled.some((message) => message.id === id)) return;
      agent.live = agent.live.filter((live) => live.id !== id);
      agent.live.push({ id, role: "ai", blocks: [], isDone: false, model: undefined, usage: undefined, made: undefined });
      this.#changed(agent.snapshot.key);
      return;
    }
    const live = agent.live.at(-1);
    if (!live || live.isDone) return;
    const index = data.index ?? 0;
    const { content, delta } = data;
    if (data.event === "content-block-start" || (data.event === "content-block-finish" && content)) {
      const isCall = content?.type === "tool_call" || content?.type === "tool_call_chunk";
      const before = live.blocks[index];
      live.blocks[index] = {
        type: content?.type ?? "text",
        text: content?.text ?? content?.reasoning ?? before?.text ?? "",
        call: isCall ? { id: content?.id ?? before?.call?.id ?? "", name: content?.name ?? before?.call?.name ?? "", args: content?.args ?? {} } : undefined,
        args: data.event === "content-block-finish" ? "" : typeof content?.args === "string" ? content.args : "",
      };
    } else if (data.event === "content-block-delta") {
      const block = (live.blocks[index] ??= { type: "text", text: "", call: undefined, args: "" });
      if (delta?.args !== undefined) block.args += delta.args;
      else block.text += delta?.text ?? delta?.reasoning ?? content?.text ?? "";
    } else if (data.event === "message-finish") {
      live.isDone = true;
      live.model = data.metadata?.model_name;
      if (data.usage) live.usage = { input: data.usage.input_tokens ?? 0, output: data.usage.output_tokens ?? 0 };
      this.#accounts.set(live.id, { model: live.model, usage: live.usage });
    } else {
      live.isDone = true;
    }
    live.made = undefined;
    this.#changed(agent.snapshot.key);
  }

  #tool({ params }: FeedEvent, data: { event: string; tool_call_id: string; tool_name?: string; input?: Json; output?: Json; message?: string }): void {
    const key = keyOf([...params.namespace, data.tool_call_id]);
    const at = params.timestamp ?? Date.now();
    const before = this.#tools.get(key);
    if (data.event === "tool-started") {
      this.#tools.set(key, { id: data.tool_call_id, name: data.tool_name ?? "", input: data.input ?? null, status: "running", output: undefined, startedAt: at, endedAt: undefined });
    } else if (data.event === "tool-finished" || data.event === "tool-error") {
      this.#tools.set(key, {
        id: data.tool_call_id,
        name: data.tool_name ?? before?.name ?? "",
        input: before?.input ?? null,
        status: data.event === "tool-error" ? "error" : "finished",
        output: data.output ?? data.message,
        startedAt: before?.startedAt ?? at,
        endedAt: at,
      });
    } else {
      return;
    }
    this.#dirtyTools.add(key);
    this.#schedule();
  }

  #changed(key: string): void {
    this.#dirty.add(key);
    this.#schedule();
  }

  #schedule(): void {
    if (this.#frame) return;
    // A page in the background gets no frames, and needs none, but shall not fall behind without bound.
    this.#frame = document.hidden ? window.setTimeout(this.#flush, 250) : requestAnimationFrame(this.#flush);
  }

  readonly #flush = (): void => {
    this.#frame = 0;
    this.counters.frames += 1;
    for (const key of this.#dirty) {
      const agent = this.#agents.get(key);
      if (!agent) continue;
      agent.snapshot = { ...agent.snapshot, messages: [...agent.settled, ...agent.live.map(made)] };
      agent.listeners.forEach((listener) => listener());
    }
    this.#dirty.clear();
    for (const key of this.#dirtyTools) this.#toolListeners.get(key)?.forEach((listener) => listener());
    this.#dirtyTools.clear();
    if (this.#isListDirty) {
      this.#isListDirty = false;
      this.#list = [...this.#agents.values()].map((agent) => agent.snapshot);
      this.#listListeners.forEach((listener) => listener());
    }
  };

  agent(key: string | undefined): AgentSnapshot | undefined {
    return key === undefined ? undefined : this.#agents.get(key)?.snapshot;
  }

  /** The key of the agent that a call of the agent at `namespace` started. */
  keyOfCall(namespace: readonly string[], callId: string): string | undefined {
    return this.#byCall.get(keyOf([...namespace, callId]));
  }

  /** The key of the agent with this last segment of its namespace, as `checkpoint_ns` of a run has it. */
  keyOfTask(checkpointNs: string): string | undefined {
    return checkpointNs === "" ? "" : this.#byTask.get(checkpointNs.split("|").at(-1) ?? "");
  }

  tool(namespace: readonly string[], callId: string): ToolRun | undefined {
    return this.#tools.get(keyOf([...namespace, callId]));
  }

  /** The model of a message and its tokens, which the end of its pieces tells and a state does not. */
  accountOf(messageId: string): { model: string | undefined; usage: Message["usage"] } | undefined {
    return this.#accounts.get(messageId);
  }

  list(): readonly AgentSnapshot[] {
    return this.#list;
  }

  subscribeAgent(key: string, listener: () => void): () => void {
    const agent = this.#agents.get(key);
    if (!agent) return this.subscribeList(listener);
    agent.listeners.add(listener);
    return () => agent.listeners.delete(listener);
  }

  subscribeTool(key: string, listener: () => void): () => void {
    const listeners = this.#toolListeners.get(key) ?? new Set();
    this.#toolListeners.set(key, listeners);
    listeners.add(listener);
    return () => listeners.delete(listener);
  }

  subscribeList(listener: () => void): () => void {
    this.#listListeners.add(listener);
    return () => this.#listListeners.delete(listener);
  }

  /** Calls `listener` with the name of each event by which an agent begins, waits or ends. */
  onLifecycle(listener: (event: string) => void): () => void {
    this.#endListeners.add(listener);
    return () => this.#endListeners.delete(listener);
  }

  dispose(): void {
    if (this.#frame) {
      cancelAnimationFrame(this.#frame);
      window.clearTimeout(this.#frame);
      this.#frame = 0;
    }
  }
}

/** One agent; renders only for what happens to it. */
export function useAgent(feed: Feed, key: string | undefined): AgentSnapshot | undefined {
  return useSyncExternalStore(
    useCallback((listener) => (key === undefined ? feed.subscribeList(listener) : feed.subscribeAgent(key, listener)), [feed, key]),
    useCallback(() => feed.agent(key), [feed, key]),
  );
}

/** The key of the agent that a `task` call started, as soon as it is known. */
export function useKeyOfCall(feed: Feed, namespace: readonly string[], callId: string): string | undefined {
  return useSyncExternalStore(
    useCallback((listener) => feed.subscribeList(listener), [feed]),
    () => feed.keyOfCall(namespace, callId),
  );
}

export function useTool(feed: Feed, namespace: readonly string[], callId: string): ToolRun | undefined {
  const key = keyOf([...namespace, callId]);
  return useSyncExternalStore(
    useCallback((listener) => feed.subscribeTool(key, listener), [feed, key]),
    () => feed.tool(namespace, callId),
  );
}

export function useAgents(feed: Feed): readonly AgentSnapshot[] {
  return useSyncExternalStore(
    useCallback((listener) => feed.subscribeList(listener), [feed]),
    () => feed.list(),
  );
}
