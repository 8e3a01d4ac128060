// The tools of an MCP server of this process (`McpServer` or `Server` of the MCP SDK), over a transport in memory.

import { Result, Suspended } from "./call.js";
import { ToolError } from "./error.js";

const VERSION = "2025-06-18";

export function isMcpServer(source) {
  const kind = source?.constructor?.name;
  return typeof source?.connect === "function" && (kind === "McpServer" || kind === "Server");
}

/** A client that speaks to one server in this process. */
class Peer {
  #next = 1;
  #waiting = new Map();
  #calls = new Map();
  transport = {
    start: async () => {},
    close: async () => this.transport.onclose?.(),
    send: async (message) => this.#receive(message),
  };

  async open(server) {
    await server.connect(this.transport);
    const clientInfo = { name: "adjutant-tools", version: "0.1.0" };
    await this.request("initialize", { protocolVersion: VERSION, capabilities: { elicitation: {} }, clientInfo });
    this.#send({ method: "notifications/initialized" });
  }

  /** Sends a request, and waits for its result. What the server reports meanwhile belongs to `own`. */
  async request(method, params, own) {
    const id = this.#next++;
    const answered = new Promise((resolve, reject) => this.#waiting.set(id, { resolve, reject }));
    const meta = { ...params._meta, progressToken: id };
    if (own !== undefined) this.#calls.set(id, own);
    this.#send({ id, method, params: own === undefined ? params : { ...params, _meta: meta } });
    try {
      return await answered;
    } finally {
      this.#waiting.delete(id);
      this.#calls.delete(id);
    }
  }

  #send(message) {
    queueMicrotask(() => this.transport.onmessage?.({ jsonrpc: "2.0", ...message }));
  }

  #receive(message) {
    if (message.method === undefined) {
      const waiting = this.#waiting.get(message.id);
      if (message.error) waiting?.reject(new ToolError(message.error.message));
      else waiting?.resolve(message.result);
    } else if (message.method === "notifications/progress") {
      const { progressToken, ...told } = message.params;
      this.#calls.get(progressToken)?.own.emit({ custom: [told] });
    } else if (message.id !== undefined) {
      this.#answer(message);
    }
  }

  /** Answers a request of the server. A question can be asked by the only call there is. */
  #answer({ id, method, params }) {
    if (method === "ping") return this.#send({ id, result: {} });
    const calls = [...this.#calls.values()];
    if (method !== "elicitation/create" || calls.length !== 1) {
      return this.#send({ id, error: { code: -32601, message: `${method} is not supported here` } });
    }
    try {
      const [content] = calls[0].own.ask([{ value: params.message, schema: params.requestedSchema }]);
      this.#send({ id, result: { action: "accept", content } });
    } catch (suspended) {
      calls[0].suspended = suspended;
      this.#send({ id, result: { action: "cancel" } });
    }
  }
}

/** Returns the tools that the server has now. */
export async function ofMcpServer(server) {
  const peer = new Peer();
  await peer.open(server);
  const listed = [];
  let cursor;
  do {
    const page = await peer.request("tools/list", cursor === undefined ? {} : { cursor });
    listed.push(...page.tools);
    cursor = page.nextCursor;
  } while (cursor !== undefined && listed.length < 1_000);
  return listed.map((entry) => ({
    name: entry.name,
    description: entry.description ?? entry.title,
    parameters: entry.inputSchema,
    idempotent: entry.annotations?.idempotentHint === true || entry.annotations?.readOnlyHint === true,
    async run(args, own) {
      const call = { own, suspended: undefined };
      const params = { name: entry.name, arguments: args, _meta: { "adjutant/call": about(own.context) } };
      const result = await peer.request("tools/call", params, call);
      if (call.suspended instanceof Suspended) throw call.suspended;
      return ofResult(result);
    },
  }));
}

function about(context) {
  return {
    tool_call_id: context.toolCallId,
    task_id: context.taskId,
    agent_name: context.agentName,
    agent_path: context.agentPath,
    thread_id: context.threadId,
    run_id: context.runId,
    context: context.context,
  };
}

function ofResult({ content = [], structuredContent, isError }) {
  const blocks = content.map(block);
  const isText = blocks.every((one) => one.type === "text");
  let value = isText ? blocks.map((one) => one.text).join("\n") : blocks;
  if (blocks.length === 0 && structuredContent !== undefined) value = JSON.stringify(structuredContent);
  if (isError) throw new ToolError(typeof value === "string" && value !== "" ? value : "the tool gives no reason");
  return new Result(value, { artifact: structuredContent });
}

function block(one) {
  if (one.type === "text") return { type: "text", text: one.text };
  if (one.type === "image" || one.type === "audio") {
    return { type: one.type, base64: one.data, mime_type: one.mimeType ?? `${one.type}/*` };
  }
  if (one.type === "resource" && typeof one.resource?.text === "string") return { type: "text", text: one.resource.text };
  return { type: "text", text: JSON.stringify(one) };
}
