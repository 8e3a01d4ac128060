// The service: a request handler for Node's HTTP server, and a server with it.

import { createHash, timingSafeEqual } from "node:crypto";
import { createServer } from "node:http";

import { answerOf, Execution, Suspended } from "./call.js";
import { ToolError } from "./error.js";
import { readerOf } from "./reader.js";
import { Results } from "./results.js";
import { toolsOf } from "./tool.js";

const VERSION = 1;
const MAX_WAITING_BYTES = 1024 * 1024;

class Refused extends Error {
  constructor(status, why) {
    super(why);
    this.status = status;
  }
}

const digest = (text) => createHash("sha256").update(text).digest("hex");

/** JSON with the keys of objects in their order. */
function canonical(value) {
  if (Array.isArray(value)) return `[${value.map(canonical).join(",")}]`;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  const entries = Object.keys(value).sort().map((key) => `${JSON.stringify(key)}:${canonical(value[key])}`);
  return `{${entries.join(",")}}`;
}

class Service {
  #tools = new Map();
  #running = new Map();

  constructor(tools, settings) {
    for (const made of tools) {
      if (this.#tools.has(made.name)) throw new Error(`there are two tools with the name ${made.name}`);
      this.#tools.set(made.name, made);
    }
    this.listing = JSON.stringify({ version: VERSION, tools: tools.map((made) => made.listing()) });
    this.etag = `"${digest(this.listing).slice(0, 32)}"`;
    this.settings = settings;
    this.results = new Results({ file: settings.results, most: settings.maxResults, seconds: settings.resultTtlS });
  }

  async handle(request, response) {
    try {
      await this.#serve(request, response);
    } catch (error) {
      const status = error instanceof Refused ? error.status : 500;
      if (status === 500) console.error("adjutant-tools: a request failed:", error);
      if (response.headersSent) return response.destroy();
      const headers = status === 503 ? { "retry-after": "1" } : {};
      respond(response, status, { detail: status === 500 ? "the service failed" : error.message }, headers);
    }
  }

  async #serve(request, response) {
    const path = request.url.split("?")[0];
    if (path === "/health" && request.method === "GET") return respond(response, 200, { status: "ok" });
    this.#admit(request);
    if (path === "/tools") {
      if (!["GET", "HEAD"].includes(request.method)) throw new Refused(405, "the list of tools is read with GET");
      if (request.headers["if-none-match"] === this.etag) return response.writeHead(304, { etag: this.etag }).end();
      const headers = { "content-type": "application/json", etag: this.etag };
      return response.writeHead(200, headers).end(request.method === "HEAD" ? undefined : this.listing);
    }
    if (!path.startsWith("/tools/")) throw new Refused(404, "there is nothing here; the tools are at /tools");
    if (request.method !== "POST") throw new Refused(405, "a tool is called with POST");
    const name = decoded(path.slice("/tools/".length));
    const made = this.#tools.get(name);
    if (made === undefined) throw new Refused(404, `there is no tool ${name}`);
    const call = readCall(await this.#body(request));
    await this.#answer(made, call, request, response);
  }

  #admit(request) {
    const { token } = this.settings;
    if (token === undefined) return;
    // Digests have one length, as the comparison demands.
    const of = (text) => createHash("sha256").update(text).digest();
    if (!timingSafeEqual(of(request.headers.authorization ?? ""), of(`Bearer ${token}`))) {
      throw new Refused(401, "the header Authorization has not the token of this service");
    }
  }

  async #body(request) {
    const most = this.settings.maxBodyBytes;
    const pieces = [];
    let length = 0;
    for await (const piece of request) {
      length += piece.length;
      if (length > most) throw new Refused(413, `the request is longer than ${most} bytes`);
      pieces.push(piece);
    }
    return Buffer.concat(pieces).toString("utf8");
  }

  /** Makes the call, or waits for the same call that is being made, and sends the answer. */
  async #answer(made, call, request, response) {
    const task = request.headers["adjutant-task-id"] || [call.thread_id, call.run_id, call.tool_call_id].join("/");
    const answers = (call.answers ?? []).map(({ key, response }) => [key, response]);
    const done = call.delegations ?? [];
    const key = digest(canonical([task, answers, ...(done.length > 0 ? [done] : [])]));
    const fingerprint = digest(canonical([made.name, call.args ?? {}]));
    const check = (known) => {
      if (known !== fingerprint) throw new Refused(409, "this call was made before with other arguments");
    };
    let running = this.#running.get(key);
    if (running === undefined) {
      const kept = this.results.find(key);
      if (kept !== undefined) {
        check(kept.fingerprint);
        if (kept.answer !== undefined) return respond(response, 200, kept.answer);
        if (!made.idempotent) {
          const error = { type: "UnknownOutcome", message: "the service stopped while it worked on this call" };
          return respond(response, 200, { error });
        }
      }
      running = this.#begin(made, call, request, key, fingerprint);
    }
    check(running.fingerprint);
    await this.#follow(running, made, request, response);
  }

  async #follow(running, made, request, response) {
    const takesLines = (request.headers.accept ?? "").includes("application/x-ndjson");
    const write = (text) => {
      if (!response.headersSent) response.writeHead(200, { "content-type": "application/x-ndjson" });
      // A caller that does not read misses progress; the result comes in any case.
      if (response.writableLength < MAX_WAITING_BYTES) response.write(text);
    };
    const listener = (line) => takesLines && write(`${JSON.stringify(line)}\n`);
    for (const line of running.early.splice(0)) listener(line);
    running.listeners.add(listener);
    const beat = setInterval(() => takesLines && write("\n"), this.settings.heartbeatS * 1_000);
    const gone = new Promise((resolve) => response.once("close", () => resolve(undefined)));
    const answer = await Promise.race([running.answer, gone]);
    clearInterval(beat);
    running.listeners.delete(listener);
    if (answer === undefined) {
      if (made.cancelOnDisconnect && running.listeners.size === 0) running.abort.abort();
      return;
    }
    if (response.headersSent) response.end(`${JSON.stringify(answer)}\n`);
    else respond(response, 200, answer);
  }

  #begin(made, call, request, key, fingerprint) {
    if (this.#running.size >= this.settings.maxCalls) {
      throw new Refused(503, `${this.settings.maxCalls} calls are being made already`);
    }
    const abort = new AbortController();
    const context = Object.freeze({
      toolCallId: call.tool_call_id,
      agentName: call.agent_name ?? "",
      agentPath: call.agent_path ?? [],
      threadId: call.thread_id ?? "",
      runId: call.run_id ?? "",
      taskId: request.headers["adjutant-task-id"] ?? "",
      context: call.context ?? {},
      state: call.state ?? {},
      reader: readerOf(this.settings.adjutantUrl, call.read_access),
      signal: abort.signal,
    });
    this.results.put(key, fingerprint, undefined);
    const running = { fingerprint, listeners: new Set(), early: [], abort };
    const emit = (line) => {
      if (running.listeners.size === 0 && running.early.length < 1_000) running.early.push(line);
      for (const listener of running.listeners) listener(line);
    };
    const own = new Execution(context, call.answers ?? [], emit, call.delegations ?? []);
    running.answer = this.#carryOut(made, call.args ?? {}, own, abort).then((answer) => {
      this.#running.delete(key);
      if (answer === undefined) this.results.forget(key);
      else this.results.put(key, fingerprint, answer);
      return answer ?? { error: { type: "Cancelled", message: "the call was cancelled" } };
    });
    this.#running.set(key, running);
    return running;
  }

  /** Returns the answer; nothing if the call was cancelled because its caller has gone. */
  async #carryOut(made, args, own, abort) {
    let timer;
    const late = new Promise((_, reject) => {
      if (!made.timeoutS) return;
      const why = Object.assign(new Error(`the tool did not end within ${made.timeoutS} s`), { name: "TimeoutError" });
      timer = setTimeout(() => reject(why), made.timeoutS * 1_000);
    });
    const cancelled = new Promise((resolve) => abort.signal.addEventListener("abort", () => resolve(abort)));
    try {
      const work = own.run(async () => made.run(args, own));
      const value = await Promise.race([work, late, cancelled]);
      if (value === abort) return undefined;
      if (own.suspended !== undefined) return own.suspended.answer;
      const answer = answerOf(value, own);
      // What cannot be sent is an error of the tool.
      JSON.stringify(answer);
      return answer;
    } catch (error) {
      const suspended = own.suspended ?? (error instanceof Suspended ? error : undefined);
      if (suspended !== undefined) return suspended.answer;
      if (error instanceof ToolError) return { error: { message: error.message } };
      console.error(`adjutant-tools: the tool ${made.name} failed:`, error);
      if (error?.name === "TimeoutError") abort.abort();
      return { error: { type: error?.name ?? "Error", message: String(error?.message ?? error) } };
    } finally {
      clearTimeout(timer);
    }
  }
}

function decoded(name) {
  try {
    return decodeURIComponent(name);
  } catch {
    throw new Refused(404, "the name of the tool is not encoded correctly");
  }
}

function readCall(body) {
  let call;
  try {
    call = JSON.parse(body);
  } catch {
    throw new Refused(400, "the request is not JSON");
  }
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  if (!isObject(call) || !isObject(call.args ?? {})) throw new Refused(400, "the request is not an object with `args`");
  for (const name of ["context", "state"]) {
    if (!isObject(call[name] ?? {})) throw new Refused(400, `\`${name}\` has the wrong form`);
  }
  const access = call.read_access ?? undefined;
  const isAccess = () => ["path", "token", "expires_at"].every((name) => typeof access[name] === "string");
  if (access !== undefined && !isAccess()) throw new Refused(400, "`read_access` has the wrong form");
  for (const name of ["answers", "delegations"]) {
    const list = call[name] ?? [];
    if (!Array.isArray(list) || !list.every(isObject)) throw new Refused(400, `\`${name}\` has the wrong form`);
  }
  if (typeof call.tool_call_id !== "string" || call.tool_call_id === "") throw new Refused(400, "`tool_call_id` is missing");
  return call;
}

function respond(response, status, value, headers = {}) {
  if (response.destroyed) return;
  const body = JSON.stringify(value);
  response.writeHead(status, { "content-type": "application/json", ...headers }).end(body);
}

/** Returns a request handler for `node:http`, `(request, response) => …`, that serves these tools. */
export async function createService(tools, settings = {}) {
  if (settings.token !== undefined && settings.token.trim() === "") {
    throw new Error("the token is blank; leave it out to let everybody call");
  }
  const defaults = { maxResults: 10_000, resultTtlS: 86_400, maxBodyBytes: 8 * 1024 * 1024, maxCalls: 128, heartbeatS: 15 };
  const all = (await Promise.all(tools.map(toolsOf))).flat();
  const service = new Service(all, { ...defaults, ...settings });
  return Object.assign((request, response) => service.handle(request, response), { close: () => service.results.close() });
}

/**
 * Serves tools until the process ends; returns the server. Without a token everybody who reaches the service may call
 * its tools, so it listens on this machine only; other addresses need a token.
 */
export async function serve(tools, { host = "127.0.0.1", port = 9400, ...settings } = {}) {
  if (settings.token === undefined && !["127.0.0.1", "localhost", "::1"].includes(host)) {
    throw new Error(`to listen on ${host}, give a token: everybody who reaches the service may call its tools`);
  }
  const service = await createService(tools, settings);
  const server = createServer(service);
  server.on("close", service.close);
  await new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, host, resolve);
  });
  console.log(`tools on http://${host}:${server.address().port}`);
  return server;
}
