import type { IncomingMessage, Server, ServerResponse } from "node:http";

/** A JSON Schema. */
export type JsonSchema = Record<string, unknown>;

/** A schema of zod 3 or 4. */
export interface ZodLike<T = unknown> {
  safeParse(value: unknown): { success: true; data: T } | { success: false; error: unknown };
}

export type Schema<T = unknown> = JsonSchema | ZodLike<T>;

/** Who calls: the agent, its run, and the context of the request. */
export interface ToolContext {
  readonly toolCallId: string;
  readonly agentName: string;
  readonly agentPath: readonly string[];
  readonly threadId: string;
  readonly runId: string;
  /** Names the call over all threads; the same when the call is repeated after a crash. */
  readonly taskId: string;
  readonly context: Readonly<Record<string, unknown>>;
  /** The fields of the thread's state that the tool asks for. */
  readonly state: Readonly<Record<string, unknown>>;
  /**
   * Returns what the call may read of its run. The section of the tool in the configuration of adjutant needs
   * `read_access`, and the service `adjutantUrl` or the environment variable `ADJUTANT_URL`.
   */
  reader(): RunReader;
  /** Aborted when the caller has gone and the tool is to stop, or when its time is over. */
  readonly signal: AbortSignal;
}

/** What a call may read: fields of the state, files, and items of the Store. It works until the call has its result. */
export class RunReader {
  constructor(url: string, access: { path: string; token: string; expires_at: string });
  /** The time at which the call is over at the latest. */
  readonly expiresAt: string;
  /** Returns these fields of the state, or all that can be read. */
  state(...fields: string[]): Promise<Record<string, unknown>>;
  /** Returns a part of a field that is a list, such as `messages`. */
  entries(field: string, page?: { offset?: number; limit?: number }): Promise<unknown[]>;
  files(page?: { offset?: number; limit?: number }): Promise<RunFile[]>;
  readFile(path: string): Promise<Buffer>;
  readText(path: string): Promise<string>;
  /** Returns an item of the Store; null if there is none. */
  item(namespace: string[], key: string): Promise<StoreItem | null>;
  /** Returns the items of the Store at and below a namespace. */
  search(
    namespace: string[],
    more?: { query?: string; filter?: Record<string, unknown>; limit?: number; offset?: number },
  ): Promise<StoreItem[]>;
}

export interface RunFile {
  path: string;
  /** Null where only reading the file tells it; so is `encoding`. */
  size: number | null;
  encoding: "utf-8" | "base64" | null;
  created_at?: string;
  modified_at?: string;
}

export interface StoreItem {
  namespace: string[];
  key: string;
  value: Record<string, unknown>;
  [more: string]: unknown;
}

/** A request that adjutant has refused: 401 when the call is over, 403 for what `read_access` does not have. */
export class ReadError extends Error {
  readonly status: number;
  readonly code: string;
}

export interface ToolSettings<T = Record<string, unknown>> {
  /** The name; that of the function when absent. */
  name?: string;
  description?: string;
  /** The schema of the arguments; an object. */
  parameters?: JsonSchema | ZodLike<T>;
  /** Whether a call may be made twice. */
  idempotent?: boolean;
  afterCrash?: "repeat" | "ask" | "fail";
  onError?: "report" | "fail_run";
  /** Seconds after which a call is an error. */
  timeoutS?: number;
  /** Whether a call ends when its caller goes away. Otherwise it goes on, and a repeated call gets its result. */
  cancelOnDisconnect?: boolean;
  /** The fields of the thread's state that are sent with each call. */
  state?: string[];
}

/** A tool that is served. */
export interface Tool {
  readonly name: string;
  readonly description: string;
  readonly parameters: JsonSchema;
}

/** A tool of LangChain. */
export interface LangChainTool {
  name: string;
  description: string;
  lc_namespace: string[];
  invoke(...args: never[]): Promise<unknown>;
}

/** An MCP server of this process: `McpServer` or `Server` of the MCP SDK. */
export interface McpServerLike {
  connect(transport: never): Promise<void>;
}

export type ToolFunction<T = never> = (args: T, context: ToolContext) => unknown;

export function tool<T = Record<string, unknown>>(made: ToolFunction<T>, settings?: ToolSettings<T>): Tool;
export function tool(made: Tool | LangChainTool, settings?: ToolSettings): Tool;

export interface ServiceSettings {
  /** Requests need the header `Authorization: Bearer TOKEN`. */
  token?: string;
  /** A file that keeps the results of calls over restarts of the service. */
  results?: string;
  maxResults?: number;
  resultTtlS?: number;
  maxBodyBytes?: number;
  maxCalls?: number;
  heartbeatS?: number;
  /** The address of adjutant, for tools that read of their run. */
  adjutantUrl?: string;
}

export type ToolSource = Tool | ToolFunction | LangChainTool | McpServerLike;

/** Returns a request handler for `node:http`. */
export function createService(
  tools: ToolSource[],
  settings?: ServiceSettings,
): Promise<((request: IncomingMessage, response: ServerResponse) => Promise<void>) & { close(): void }>;

/** Serves tools until the process ends; returns the server. */
export function serve(tools: ToolSource[], settings?: ServiceSettings & { host?: string; port?: number }): Promise<Server>;

export interface Approvers {
  users?: string[];
  roles?: string[];
}

export interface Question {
  value: unknown;
  schema?: Schema;
  key?: string;
  approvers?: Approvers;
}

/** Asks a human and returns the answer. The function is called again from its beginning when the answer is there. */
export function ask<T = unknown>(value: unknown, more?: { schema?: Schema<T>; key?: string; approvers?: Approvers }): T;
/** Asks several questions at once and returns the answers in their order. */
export function askAll(questions: (string | Question)[]): unknown[];
/** Tells clients something while the tool works. */
export function progress(value: unknown): void;
/** Shows clients the next piece of the text to come. */
export function output(text: string): void;
/** Writes into the state of the thread when the call has succeeded. */
export function update(values: Record<string, unknown>): void;
/** Returns the context of the current call. */
export function currentContext(): ToolContext;

/** A result with more than text for the model. */
export class Result {
  constructor(content: unknown, more?: { artifact?: unknown; update?: Record<string, unknown> });
}

/** A subagent finds the result of the call. */
export class Delegation {
  private constructor(fields: unknown);
}

export function delegate(
  description: string,
  subagentType: string,
  more?: { systemPrompt?: string; responseFormat?: Schema; initialMessages?: Record<string, unknown>[] },
): Delegation;

/**
 * Has a subagent do something and returns its result. The function is left the first time, and called again from its
 * beginning when the subagent has ended.
 */
export function runSubagent(
  description: string,
  subagentType: string,
  more?: { systemPrompt?: string; responseFormat?: Schema; initialMessages?: Record<string, unknown>[] },
): any;

/** An error whose text the model reads as it is. */
export class ToolError extends Error {}
