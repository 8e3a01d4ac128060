// The tests of the package: node --test. Libraries of others are looked for in ADJUTANT_TEST_NODE_MODULES.

import assert from "node:assert/strict";
import { mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { pathToFileURL } from "node:url";

import { ask, askAll, createService, delegate, output, progress, ReadError, Result, runSubagent, RunReader, serve, tool, ToolError, update } from "../src/index.js";

const modules = createRequire(
  process.env.ADJUTANT_TEST_NODE_MODULES ? pathToFileURL(`${process.env.ADJUTANT_TEST_NODE_MODULES}/`) : import.meta.url,
);

const open = [];
after(() => open.forEach((server) => server.closeAllConnections() ?? server.close()));

/** Starts a service and returns its client. */
async function service(tools, settings) {
  const handler = await createService(tools, settings);
  const server = createServer(handler);
  open.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const base = `http://127.0.0.1:${server.address().port}`;
  const post = (name, args, { task = "t1", accept = "application/json", signal, ...more } = {}) =>
    fetch(`${base}/tools/${encodeURIComponent(name)}`, {
      method: "POST",
      signal,
      headers: { "adjutant-task-id": task, accept, "content-type": "application/json" },
      body: JSON.stringify({ name, args, tool_call_id: "c1", agent_name: "agent", ...more }),
    });
  return {
    base,
    handler,
    post,
    call: async (name, args = {}, more = {}) => (await post(name, args, more)).json(),
    lines: async (name, args = {}, more = {}) => {
      const response = await post(name, args, { ...more, accept: "application/json, application/x-ndjson" });
      const text = await response.text();
      return text.split("\n").filter((line) => line.trim() !== "").map((line) => JSON.parse(line));
    },
    list: async () => {
      const { tools } = await (await fetch(`${base}/tools`)).json();
      return Object.fromEntries(tools.map((entry) => [entry.name, entry]));
    },
  };
}

function counter() {
  const calls = [];
  return [tool(({ step = 1 }) => calls.push(step), { name: "count" }), calls];
}

test("functions are served with the schemas of zod 3 and 4 and with JSON Schemas", async () => {
  const { z } = modules("zod");
  const { z: z3 } = modules("zod/v3");
  const shape = (zod) =>
    zod.object({
      text: zod.string().min(1).describe("Some text."),
      kind: zod.enum(["a", "b"]).optional(),
      size: zod.number().int().default(2),
      tags: zod.array(zod.string()),
      more: zod.record(zod.string(), zod.boolean()).optional(),
    });
  const run = ({ text, size }) => `${text}${size}`;
  const { list, call } = await service([
    tool(run, { name: "four", parameters: shape(z) }),
    tool(run, { name: "three", parameters: shape(z3) }),
    tool(run, { name: "plain", parameters: { type: "object", properties: { text: { type: "string" } } } }),
  ]);
  const listed = await list();
  for (const name of ["three", "four"]) {
    const { properties, required } = listed[name].parameters;
    assert.deepEqual(properties.text, { type: "string", minLength: 1, description: "Some text." });
    assert.deepEqual(required, ["text", "tags"]);
    assert.deepEqual(properties.kind, { type: "string", enum: ["a", "b"] });
    assert.equal(properties.size.type, "integer");
    assert.equal(properties.size.default, 2);
    assert.deepEqual(properties.tags, { type: "array", items: { type: "string" } });
    assert.deepEqual(properties.more.additionalProperties, { type: "boolean" });
    assert.deepEqual(await call(name, { text: "x", tags: [] }, { task: name }), { content: "x2" });
    const wrong = await call(name, { text: 1, tags: [] }, { task: `${name} wrong` });
    assert.match(wrong.error.message, /Nothing was run\.\n- text: /);
  }
  assert.deepEqual(await call("plain", { text: "x" }), { content: "xundefined" });
});

test("pieces are streamed before the result", async () => {
  async function* tell() {
    yield "one ";
    yield { done: 0.5 };
    yield "two";
  }
  function said() {
    progress({ at: 1 });
    output("words");
    return "words";
  }
  const { lines, call } = await service([tell, said]);
  const told = [{ output: "one " }, { custom: [{ done: 0.5 }] }, { output: "two" }, { content: "one two" }];
  assert.deepEqual(await lines("tell"), told);
  const pieces = [{ custom: [{ at: 1 }] }, { output: "words" }, { content: "words" }];
  assert.deepEqual(await lines("said", {}, { task: "t2" }), pieces);
  assert.deepEqual(await call("said", {}, { task: "t3" }), { content: "words" });
});

test("a function goes on with the results of subagents", async () => {
  const calls = [];
  const compare = tool(
    ({ first }) => {
      calls.push(first);
      const about = runSubagent(`Describe ${first}`, "researcher");
      const { width } = runSubagent(`Measure ${about}`, "surveyor", { responseFormat: { type: "object" } });
      return `${about}: ${width}`;
    },
    { name: "compare" },
  );
  const { call } = await service([compare]);
  const again = (delegations) => call("compare", { first: "a" }, { delegations });
  const asked = { description: "Describe a", subagent_type: "researcher", then: "call_again" };
  assert.deepEqual(await again(), { delegate: asked });
  const first = { subagent_type: "researcher", status: "success", content: "an a" };
  assert.equal((await again([first])).delegate.description, "Measure an a");
  const second = { subagent_type: "surveyor", status: "success", content: '{"width": 3}' };
  assert.deepEqual(await again([first, second]), { content: "an a: 3" });
  assert.deepEqual(await again([first, second]), { content: "an a: 3" });
  assert.equal(calls.length, 3);
  assert.deepEqual(await again([{ ...first, status: "error", content: "no" }]), { error: { message: "no" } });
});

test("a result may write into the state and may delegate", async () => {
  function note() {
    update({ seen: 1 });
    return new Result({ n: 1 }, { artifact: [1], update: { more: 2 } });
  }
  const hand = tool(() => delegate("w", "helper", { systemPrompt: "You count." }), { name: "hand" });
  const { call } = await service([note, hand]);
  assert.deepEqual(await call("note"), { content: '{"n":1}', artifact: [1], update: { seen: 1, more: 2 } });
  const delegated = { description: "w", subagent_type: "helper", system_prompt: "You count." };
  assert.deepEqual(await call("hand", {}, { task: "t2" }), { delegate: delegated });
});

test("a question suspends the call and its answer goes on, even if the function catches everything", async () => {
  let runs = 0;
  async function book() {
    runs += 1;
    let sure = false;
    try {
      sure = ask("Sure?", { schema: { type: "boolean" } });
    } catch {
      return "swallowed";
    }
    const [seat, meal] = askAll(["Seat?", { value: "Meal?", key: "meal" }]);
    return `${sure} ${seat} ${meal}`;
  }
  const { call } = await service([book]);
  const first = { interrupts: [{ key: "q1", value: "Sure?", response_schema: { type: "boolean" } }] };
  assert.deepEqual(await call("book"), first);
  assert.deepEqual(await call("book"), first);
  assert.equal(runs, 1, "a repeated call does not run again");
  const answers = [{ key: "q1", response: true }];
  assert.deepEqual((await call("book", {}, { answers })).interrupts.map((one) => one.key), ["q2", "meal"]);
  answers.push({ key: "q2", response: "4a" }, { key: "meal", response: "fish" });
  assert.deepEqual(await call("book", {}, { answers }), { content: "true 4a fish" });
});

test("errors tell the model what happened", async () => {
  const broken = tool(() => { throw new RangeError("no"); }, { name: "broken" });
  const refuses = tool(() => { throw new ToolError("Not today."); }, { name: "refuses" });
  const slow = tool((_, { signal }) => new Promise((resolve) => signal.addEventListener("abort", resolve)), {
    name: "slow",
    timeoutS: 0.05,
  });
  const odd = tool(() => 1n, { name: "odd" });
  const { call } = await service([broken, refuses, slow, odd]);
  assert.deepEqual(await call("broken"), { error: { type: "RangeError", message: "no" } });
  assert.deepEqual(await call("refuses", {}, { task: "2" }), { error: { message: "Not today." } });
  assert.equal((await call("slow", {}, { task: "3" })).error.type, "TimeoutError");
  assert.equal((await call("odd", {}, { task: "4" })).error.type, "TypeError");
});

test("one call runs once, also when it is sent while it is being made", async () => {
  const [count, calls] = counter();
  let go;
  const gate = new Promise((resolve) => { go = resolve; });
  let runs = 0;
  const slow = tool(async () => { runs += 1; await gate; return "once"; }, { name: "slow" });
  const { call, post } = await service([count, slow]);
  assert.deepEqual(await call("count"), await call("count"));
  assert.equal((await post("count", { step: 2 })).status, 409);
  assert.deepEqual(calls, [1]);
  const waiting = [1, 2, 3].map(() => call("slow", {}, { task: "s" }));
  go();
  assert.deepEqual(await Promise.all(waiting), Array(3).fill({ content: "once" }));
  assert.equal(runs, 1);
});

test("stored results outlive the service, and half a line of a process that died is skipped", async () => {
  const file = join(mkdtempSync(join(tmpdir(), "tools-")), "results");
  const [count, calls] = counter();
  const first = await service([count], { results: file });
  await first.call("count");
  first.handler.close();
  writeFileSync(file, '{"key": "half', { flag: "a" });
  const second = await service([count], { results: file });
  assert.deepEqual(await second.call("count"), { content: "1" });
  assert.deepEqual(calls, [1]);
  second.handler.close();
});

test("a call that the service did not survive is made again only if it may", async () => {
  for (const idempotent of [false, true]) {
    const file = join(mkdtempSync(join(tmpdir(), "tools-")), "results");
    const [count, calls] = counter();
    const first = await service([tool(count, { idempotent })], { results: file });
    await first.call("count");
    first.handler.close();
    // As if it had died before the end of the call.
    writeFileSync(file, `${readFileSync(file, "utf8").split("\n")[0]}\n`);
    const second = await service([tool(count, { idempotent })], { results: file });
    const answer = await second.call("count");
    assert.equal(answer.error?.type, idempotent ? undefined : "UnknownOutcome");
    assert.equal(calls.length, idempotent ? 2 : 1);
    second.handler.close();
  }
});

test("kept results have limits", async () => {
  const [count, calls] = counter();
  const { call } = await service([count], { maxResults: 2 });
  for (const task of ["a", "b", "c", "a"]) await call("count", {}, { task });
  assert.equal(calls.length, 4);
});

test("a token is demanded, and the list is sent only when it is new", async () => {
  const { base } = await service([counter()[0]], { token: "s3cret-token" });
  assert.equal((await fetch(`${base}/tools`)).status, 401);
  assert.equal((await fetch(`${base}/tools`, { headers: { authorization: "Bearer wrong" } })).status, 401);
  const headers = { authorization: "Bearer s3cret-token" };
  const listed = await fetch(`${base}/tools`, { headers });
  assert.equal((await listed.json()).version, 1);
  const again = await fetch(`${base}/tools`, { headers: { ...headers, "if-none-match": listed.headers.get("etag") } });
  assert.equal(again.status, 304);
  assert.equal((await fetch(`${base}/health`)).status, 200);
  await assert.rejects(serve([], { host: "0.0.0.0" }), /token/);
});

test("requests that are wrong are refused", async () => {
  const { base } = await service([counter()[0]], { maxBodyBytes: 1_000 });
  const refused = async (path, body, method = "POST") => (await fetch(base + path, { method, body })).status;
  assert.equal(await refused("/tools/none", "{}"), 404);
  assert.equal(await refused("/tools/%ff", "{}"), 404);
  assert.equal(await refused("/", undefined, "GET"), 404);
  assert.equal(await refused("/tools/count", undefined, "GET"), 405);
  for (const body of ["{", "[]", '{"args": []}', "{}", '{"args": {}, "tool_call_id": "c", "answers": [1]}']) {
    assert.equal(await refused("/tools/count", body), 400, body);
  }
  assert.equal(await refused("/tools/count", " ".repeat(1_001)), 413);
});

test("a caller that leaves ends only the calls that say so", async () => {
  for (const cancelOnDisconnect of [true, false]) {
    let begun;
    const started = new Promise((resolve) => { begun = resolve; });
    let go;
    const gate = new Promise((resolve) => { go = resolve; });
    let signal;
    const slow = tool(
      async (_, context) => { signal = context.signal; begun(); await gate; return "done"; },
      { name: "slow", cancelOnDisconnect },
    );
    const { post, call } = await service([slow]);
    const leaver = new AbortController();
    const left = post("slow", {}, { signal: leaver.signal }).catch(() => undefined);
    await started;
    leaver.abort();
    await left;
    if (cancelOnDisconnect) {
      await new Promise((resolve) => (signal.aborted ? resolve() : signal.addEventListener("abort", resolve)));
    } else {
      go();
      assert.deepEqual(await call("slow"), { content: "done" });
      assert.equal(signal.aborted, false);
    }
  }
});

test("tools of LangChain are served as they are", async () => {
  const { z } = modules("zod");
  const langchain = modules("@langchain/core/tools");
  const schema = z.object({ a: z.number() });
  const find = langchain.tool(async ({ a }) => [`found ${a}`, [a]], {
    name: "find", description: "Finds.", schema, responseFormat: "content_and_artifact",
  });
  const plain = langchain.tool(async ({ a }) => `got ${a}`, {
    name: "plain", description: "Plain.", schema: { type: "object", properties: { a: { type: "number" } } },
  });
  const broken = langchain.tool(async () => { throw new Error("no"); }, { name: "broken", description: "Breaks.", schema });
  const { call, list } = await service([find, tool(plain, { idempotent: true }), broken]);
  const listed = await list();
  assert.equal(listed.find.description, "Finds.");
  assert.deepEqual(listed.find.parameters.required, ["a"]);
  assert.equal(listed.plain.idempotent, true);
  assert.deepEqual(await call("find", { a: 1 }), { content: "found 1", artifact: [1] });
  assert.deepEqual(await call("plain", { a: 2 }, { task: "2" }), { content: "got 2" });
  assert.equal((await call("broken", { a: 2 }, { task: "3" })).error.message, "no");
});

test("an MCP server is served as it is", async () => {
  const { z } = modules("zod");
  const { McpServer } = modules("@modelcontextprotocol/sdk/server/mcp.js");
  const server = new McpServer({ name: "shelf", version: "1.0.0" });
  server.registerTool("read", { description: "Reads.", inputSchema: { a: z.string() }, annotations: { readOnlyHint: true } },
    async ({ a }) => ({ content: [{ type: "text", text: `read ${a}` }] }));
  server.registerTool("broken", {}, async () => ({ isError: true, content: [{ type: "text", text: "no" }] }));
  server.registerTool("book", {}, async () => {
    const requestedSchema = { type: "object", properties: { seat: { type: "string" } } };
    const { action, content } = await server.server.elicitInput({ message: "Seat?", requestedSchema });
    return { content: [{ type: "text", text: `${action} ${content?.seat}` }] };
  });
  const { call, list } = await service([server]);
  const listed = await list();
  assert.deepEqual(listed.read.parameters.required, ["a"]);
  assert.equal(listed.read.idempotent, true);
  assert.deepEqual(await call("read", { a: "x" }), { content: "read x" });
  assert.deepEqual(await call("broken", {}, { task: "2" }), { error: { message: "no" } });
  const asked = await call("book", {}, { task: "3" });
  assert.equal(asked.interrupts[0].value, "Seat?");
  const answers = [{ key: "q1", response: { seat: "4a" } }];
  assert.deepEqual(await call("book", {}, { task: "3", answers }), { content: "accept 4a" });
});

test("what is no tool is refused", async () => {
  await assert.rejects(createService([7]), TypeError);
  await assert.rejects(createService([() => 1]), /name/);
  await assert.rejects(createService([counter()[0], counter()[0]]), /two tools/);
  assert.throws(() => tool(() => 1, { name: "x", retries: 1 }), /no setting retries/);
});

const FILE = Buffer.from(Array.from({ length: 1_500_000 }, (_, at) => at % 256));
const ACCESS = { path: "/call", token: "adjc_1", expires_at: "2026-01-01T00:00:00Z" };

/** Starts what answers like the endpoints of a call, and returns its address. */
async function adjutant() {
  const server = createServer(async (request, response) => {
    const { pathname, searchParams: query } = new URL(request.url, "http://x");
    const send = (status, value, headers = {}) =>
      response.writeHead(status, headers).end(Buffer.isBuffer(value) ? value : JSON.stringify(value));
    if (request.headers.authorization !== "Bearer adjc_1") return send(401, { code: "call_over", detail: "it is over" });
    const at = Number(query.get("offset"));
    const end = at + Number(query.get("limit"));
    switch (pathname) {
      case "/call/state":
        if (query.getAll("fields").includes("secret")) return send(403, { code: "not_declared", detail: "not allowed" });
        return send(200, { values: { messages: query.has("offset") ? [1, 2, 3].slice(at, end) : [1] } });
      case "/call/files":
        return send(200, { files: [{ path: "/a", size: FILE.length }], total: 1 });
      case "/call/files/content":
        return send(200, FILE.subarray(at, end), { "x-file-size": FILE.length });
      case "/call/store/items":
        return send(200, { namespace: query.get("namespace").split("."), key: query.get("key") });
      case "/call/store/items/search": {
        let body = "";
        for await (const piece of request) body += piece;
        return send(200, { items: [JSON.parse(body)] });
      }
      default:
        return send(302, {}, { location: "/call/state" });
    }
  });
  open.push(server);
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return `http://127.0.0.1:${server.address().port}/`;
}

test("a call reads the state, files and items of its run", async () => {
  const url = await adjutant();
  const reader = new RunReader(url, ACCESS);
  assert.deepEqual(await reader.state("messages"), { messages: [1] });
  assert.deepEqual(await reader.entries("messages", { offset: 1, limit: 1 }), [2]);
  assert.equal((await reader.files())[0].path, "/a");
  assert.ok((await reader.readFile("/a")).equals(FILE));
  assert.deepEqual(await reader.item(["memories", "u"], "k"), { namespace: ["memories", "u"], key: "k" });
  const wanted = { namespace_prefix: ["memories"], query: "otters", limit: 2, offset: 0 };
  assert.deepEqual(await reader.search(["memories"], { query: "otters", limit: 2 }), [wanted]);
  assert.ok(!JSON.stringify(reader).includes("adjc_1"));
  const refusal = (status) => (error) => error instanceof ReadError && error.status === status;
  await assert.rejects(reader.state("secret"), refusal(403));
  await assert.rejects(new RunReader(url, { ...ACCESS, token: "adjc_2" }).files(), refusal(401));
  await assert.rejects(new RunReader(url, { ...ACCESS, path: "/elsewhere" }).files(), refusal(302));
  assert.throws(() => new RunReader("file:///etc", ACCESS), /must begin with http/);
});

test("a function gets the reader of its call", async () => {
  delete process.env.ADJUTANT_URL;
  const count = tool(async (_, { reader }) => (await reader().state()).messages.length, { name: "count" });
  const { call, post } = await service([count], { adjutantUrl: await adjutant() });
  assert.deepEqual(await call("count", {}, { read_access: ACCESS }), { content: "1" });
  assert.match((await call("count", {}, { task: "t2" })).error.message, /no `read_access`/);
  assert.equal((await post("count", {}, { task: "t3", read_access: { token: 1 } })).status, 400);
});
