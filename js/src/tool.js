// Tools of all kinds as the service offers and calls them.

import { Delegation, output, progress, Result } from "./call.js";
import { ToolError } from "./error.js";
import { isMcpServer, ofMcpServer } from "./mcp.js";
import { isZod, toJsonSchema, validated } from "./schema.js";

const SETTINGS = [
  "name", "description", "parameters", "idempotent", "afterCrash", "onError", "timeoutS", "cancelOnDisconnect", "state",
];

/** A tool that is served. */
export class Tool {
  constructor({ name, description, parameters, run, ...settings }) {
    if (typeof name !== "string" || name === "") throw new TypeError("a tool needs a name");
    this.name = name;
    this.description = description || name;
    this.parameters = { type: "object", properties: {}, ...parameters };
    if (this.parameters.type !== "object") throw new TypeError(`the parameters of ${name} are not those of an object`);
    this.run = run;
    Object.assign(this, settings);
  }

  /** Returns the entry in the list of tools. */
  listing() {
    const entry = { name: this.name, description: this.description, parameters: this.parameters };
    if (this.idempotent) entry.idempotent = true;
    if (this.afterCrash) entry.after_crash = this.afterCrash;
    if (this.onError) entry.on_error = this.onError;
    if (this.timeoutS) entry.timeout_s = this.timeoutS;
    if (this.state?.length > 0) entry.state = [...this.state];
    return entry;
  }
}

/**
 * Makes a tool with settings, of a function or of a tool of LangChain. `parameters` is a JSON Schema or a schema of
 * zod for the arguments, which the function gets as one object, with the context of the call behind it.
 */
export function tool(madeOf, settings = {}) {
  const unknown = Object.keys(settings).filter((key) => !SETTINGS.includes(key));
  if (unknown.length > 0) throw new TypeError(`a tool has no setting ${unknown.join(", ")}; there are ${SETTINGS.join(", ")}`);
  if (madeOf instanceof Tool) return new Tool({ ...madeOf, ...settings });
  if (isLangChain(madeOf)) return new Tool({ ...ofLangChain(madeOf), ...settings });
  if (typeof madeOf !== "function") throw new TypeError("a tool is made of a function or of a tool of LangChain");
  return ofFunction(madeOf, settings);
}

/** Returns the tools of a source: a function, a tool, or a whole MCP server. */
export async function toolsOf(source) {
  if (isMcpServer(source)) return (await ofMcpServer(source)).map((made) => new Tool(made));
  return [source instanceof Tool ? source : tool(source)];
}

function ofFunction(made, { parameters = {}, ...settings }) {
  async function run(args, own) {
    const read = isZod(parameters) ? validated(parameters, args) : args;
    return await pieces(await made(read, own.context));
  }
  return new Tool({ name: made.name, ...settings, parameters: toJsonSchema(parameters), run });
}

/** Shows clients the pieces of a generator at once, and returns its whole result. */
async function pieces(returned) {
  const iterator = returned?.[Symbol.asyncIterator] ?? returned?.[Symbol.iterator];
  if (typeof returned?.next !== "function" || iterator === undefined) return returned;
  let text = "";
  for (;;) {
    const { done, value } = await returned.next();
    if (done) return value === undefined ? text : value;
    if (value instanceof Result || value instanceof Delegation) return value;
    if (typeof value === "string") {
      text += value;
      output(value);
    } else {
      progress(value);
    }
  }
}

function isLangChain(source) {
  return Array.isArray(source?.lc_namespace) && source.lc_namespace.includes("tools") && typeof source.invoke === "function";
}

function ofLangChain(made) {
  async function run(args, own) {
    const context = own.context;
    const call = { type: "tool_call", id: context.toolCallId, name: made.name, args };
    const configurable = { ...context.context, thread_id: context.threadId, run_id: context.runId, agent_name: context.agentName };
    return ofReturned(await made.invoke(call, { configurable, signal: context.signal }), own);
  }
  return { name: made.name, description: made.description, parameters: toJsonSchema(made.schema), run };
}

/** Returns the result for what a tool of LangChain returned: a message, or a `Command` that writes into the state. */
function ofReturned(returned, own) {
  if (returned?.lg_name === "Command" || returned?.constructor?.name === "Command") {
    if (returned.goto?.length > 0 || returned.graph) {
      throw new ToolError("the tool returned a Command with `goto` or `graph`, which only a graph can follow");
    }
    const { messages = [], ...written } = returned.update ?? {};
    const foreign = messages.some((message) => message.tool_call_id !== own.context.toolCallId);
    if (foreign) throw new ToolError("the tool's Command adds messages besides its own result, which is not supported");
    const answer = messages.length > 0 ? ofMessage(messages.at(-1)) : new Result("");
    return new Result(answer.content, { artifact: answer.artifact, update: written });
  }
  return returned?.tool_call_id === undefined ? new Result(returned) : ofMessage(returned);
}

function ofMessage(message) {
  const { content } = message;
  if (message.status === "error") throw new ToolError(typeof content === "string" ? content : JSON.stringify(content));
  return new Result(content, { artifact: message.artifact });
}

