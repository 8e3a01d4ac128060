// Calls every public method of the JavaScript SDK and checks what comes back. Usage: node every_method.mjs BASE_URL
//
// The last line names, as JSON, the methods that work. A method that the SDK has and nobody calls here is a failure,
// unless it stands in EXCUSED with the reason.

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { callsTool, collect, contents, human, last, modules, script } from "./modules.mjs";

const { Client } = modules("sdk-1-15");

const EXCUSED = {
  "threads.stream": "the stream of a thread, which has a script of its own: threads.mjs",
  "threads.patchState": "the platform has no such endpoint any more: `PATCH /threads/{id}/state` is answered with 404",
};

// Once a year, so that it is not due during the test.
const NEW_YEAR = "0 0 1 1 *";

const client = new Client({ apiUrl: process.argv[2] });
const used = new Set();
const slow = () => human(script({ text: "never ".repeat(100), delay_ms: 500 }));
// The SDK makes a part without an event of the blank line after a heartbeat, with the id of the part before it.
const isHeartbeat = (part) => part.event === "" && part.data === null;
const ids = (things, name) => things.map((thing) => thing[name]);

// Every resource remembers which of its methods were called.
const resources = Object.fromEntries(Object.entries(client).filter(([name, value]) => !name.startsWith("~") && typeof value === "object"));
const methods = Object.entries(resources).flatMap(([name, resource]) =>
  Object.getOwnPropertyNames(Object.getPrototypeOf(resource)).filter((method) => method !== "constructor").map((method) => `${name}.${method}`));
const { assistants, threads, runs, crons, store } = Object.fromEntries(Object.entries(resources).map(([name, resource]) => [name, new Proxy(resource, {
  get(target, method) {
    if (methods.includes(`${name}.${String(method)}`)) used.add(`${name}.${String(method)}`);
    const value = Reflect.get(target, method);
    return typeof value === "function" ? value.bind(target) : value;
  },
})]));

async function refused(promise, status) {
  await assert.rejects(promise, (error) => error.status === status || assert.fail(`${error}: not ${status}`));
}

async function useAssistants(tag) {
  const [system] = await assistants.search({ graphId: "agent", metadata: { created_by: "system" } });
  assert.deepEqual([system.name, system.version], ["main-agent", 1]);
  const assistantId = randomUUID();
  const settings = { graphId: "agent", config: { tags: ["t"], recursion_limit: 40 }, metadata: { tag }, name: `Mine ${tag}`, description: "the first" };
  const first = await assistants.create({ ...settings, assistantId, ifExists: "raise" });
  assert.deepEqual([first.assistant_id, first.graph_id, first.name, first.description], [assistantId, "agent", `Mine ${tag}`, "the first"]);
  assert.deepEqual([first.config, first.metadata, first.version], [settings.config, { tag }, 1]);
  await refused(assistants.create({ graphId: "agent", assistantId }), 409);
  assert.deepEqual(await assistants.create({ graphId: "agent", assistantId, ifExists: "do_nothing", name: "other" }), first);
  assert.deepEqual(await assistants.get(assistantId), first);
  const other = await assistants.create({ graphId: "plain", context: { who: "me" }, metadata: { tag } });
  assert.deepEqual([other.context, other.config.configurable], [{ who: "me" }, { who: "me" }]);

  const second = await assistants.update(assistantId, {
    graphId: "plain", config: { recursion_limit: 50 }, metadata: { more: 1 }, name: "Renamed", description: "new",
  });
  assert.deepEqual([second.version, second.graph_id, second.name, second.config], [2, "plain", "Renamed", { recursion_limit: 50 }]);
  assert.deepEqual(second.metadata, { tag, more: 1 });
  assert.deepEqual(ids(await assistants.getVersions(assistantId), "version"), [2, 1]);
  const [oldest] = await assistants.getVersions(assistantId, { metadata: { tag }, limit: 1, offset: 1 });
  assert.deepEqual([oldest.version, oldest.name], [1, `Mine ${tag}`]);
  const latest = await assistants.setLatest(assistantId, 1);
  assert.deepEqual([latest.version, latest.name, latest.graph_id], [1, `Mine ${tag}`, "agent"]);

  const page = await assistants.search({ metadata: { tag }, limit: 1, sortBy: "name", sortOrder: "asc", includePagination: true });
  assert.deepEqual([ids(page.assistants, "assistant_id"), page.next], [[assistantId], "1"]);
  const found = await assistants.search({ graphId: "agent", name: `MINE ${tag}`, select: ["assistant_id"] });
  assert.deepEqual(found, [{ assistant_id: assistantId }]);
  assert.equal(await assistants.count({ metadata: { tag } }), 2);
  assert.equal(await assistants.count({ graphId: "agent", name: `mine ${tag}` }), 1);

  const graph = await assistants.getGraph(assistantId, { xray: true });
  const nodes = ids(graph.nodes, "id");
  for (const node of ["__start__", "model", "tools", "__end__"]) assert.ok(nodes.includes(node), nodes);
  for (const edge of graph.edges) assert.ok(nodes.includes(edge.source) && nodes.includes(edge.target), JSON.stringify(edge));
  const schemas = await assistants.getSchemas(assistantId);
  assert.equal(schemas.graph_id, "agent");
  assert.ok(schemas.input_schema.properties.messages);
  const subgraphs = await assistants.getSubgraphs(assistantId);
  assert.ok(subgraphs.researcher && subgraphs.mailer.input_schema.properties.messages);
  assert.deepEqual(Object.keys(await assistants.getSubgraphs(assistantId, { namespace: "mailer", recurse: true })), ["mailer"]);

  const { thread_id: threadId } = await threads.create();
  await runs.wait(threadId, assistantId, { input: human("hello") });
  await assistants.delete(assistantId, { deleteThreads: true });
  await refused(assistants.get(assistantId), 404);
  await refused(threads.get(threadId), 404);
  await assistants.delete(other.assistant_id);
}

async function useThreads(tag) {
  const threadId = randomUUID();
  const thread = await threads.create({ metadata: { tag }, threadId, ifExists: "raise", graphId: "agent", ttl: 60 });
  assert.deepEqual([thread.thread_id, thread.status, thread.values], [threadId, "idle", null]);
  assert.deepEqual(thread.metadata, { tag, graph_id: "agent" });
  await refused(threads.create({ threadId }), 409);
  const again = await threads.create({ threadId, ifExists: "do_nothing", ttl: { ttl: 30, strategy: "delete" } });
  assert.deepEqual(again.metadata, thread.metadata);
  assert.equal((await threads.get(threadId, { include: ["ttl"] })).ttl.strategy, "delete");
  assert.equal((await threads.update(threadId, { metadata: { a: 1 }, ttl: 90 })).metadata.a, 1);
  assert.equal(await threads.update(threadId, { metadata: { b: 1 }, returnMinimal: true }), undefined);
  const values = await runs.wait(threadId, "agent", { input: human("hello") });
  const after = await threads.get(threadId);
  assert.deepEqual([after.status, after.values, after.metadata.tag], ["idle", values, tag]);
  const found = await threads.search({
    metadata: { tag }, ids: [threadId], status: "idle", limit: 5, offset: 0, sortBy: "created_at", sortOrder: "asc",
    select: ["thread_id", "status"], values: { messages: values.messages },
  });
  assert.deepEqual(found, [{ thread_id: threadId, status: "idle" }]);
  const [extracted] = await threads.search({ ids: [threadId], select: ["status"], extract: { said: "values.messages[-1].content" } });
  assert.deepEqual(extracted, { status: "idle", extracted: { said: "echo: hello" } });
  assert.equal(await threads.count({ metadata: { tag }, status: "idle" }), 1);
  assert.equal(await threads.count({ metadata: { tag }, status: "busy" }), 0);
  assert.equal(await threads.count({ values: { messages: values.messages } }), 1);

  const copy = await threads.copy(threadId);
  assert.notEqual(copy.thread_id, threadId);
  assert.deepEqual((await threads.getState(copy.thread_id)).values, values);
  assert.deepEqual(await threads.prune([copy.thread_id], { strategy: "keep_latest" }), { pruned_count: 1 });
  assert.deepEqual((await threads.getState(copy.thread_id)).values, values);
  assert.deepEqual(await threads.prune([copy.thread_id, randomUUID()]), { pruned_count: 1 });
  await refused(threads.get(copy.thread_id), 404);
  const told = await threads.create({
    graphId: "agent",
    supersteps: [
      { updates: [{ values: human("asked before"), asNode: "__input__" }] },
      { updates: [{ values: { messages: [{ role: "ai", content: "answered" }] }, asNode: "model" }] },
    ],
  });
  assert.deepEqual(contents((await threads.getState(told.thread_id)).values), ["asked before", "answered"]);
  await refused(threads.patchState(threadId, { a: 1 }), 404);
  used.delete("threads.patchState");
  await threads.delete(told.thread_id);
  await threads.delete(threadId);
}

async function useStates() {
  const { thread_id: threadId } = await threads.create();
  const empty = await threads.getState(threadId);
  assert.deepEqual([empty.values, empty.next, empty.checkpoint], [{}, [], null]);
  const first = await runs.wait(threadId, "agent", { input: human("one") });
  const values = await runs.wait(threadId, "agent", { input: human("two") });
  const history = await threads.getHistory(threadId, { limit: 100 });
  assert.deepEqual([history[0].values, history[0].next], [values, []]);
  const select = ["values.messages", "next"];
  const part = { values: { messages: values.messages }, next: [] };
  assert.deepEqual(await threads.getState(threadId, undefined, { select }), part);
  assert.deepEqual(await threads.getState(threadId, history[0].checkpoint, { select }), part);
  assert.deepEqual(await threads.getState(threadId, history[0].checkpoint.checkpoint_id, { select }), part);
  assert.deepEqual(await threads.getHistory(threadId, { limit: 1, select }), [part]);
  const at = history.findIndex((state) => JSON.stringify(state.values) === JSON.stringify(first));
  const { checkpoint } = history[at];
  assert.deepEqual((await threads.getState(threadId, checkpoint)).values, first);
  assert.deepEqual((await threads.getState(threadId, checkpoint.checkpoint_id, { subgraphs: true })).values, first);
  const before = await threads.getHistory(threadId, { limit: 100, before: { configurable: checkpoint } });
  assert.deepEqual(before, history.slice(at + 1));
  const inputs = await threads.getHistory(threadId, { limit: 100, metadata: { source: "input" } });
  assert.deepEqual(inputs.map((state) => state.metadata.source), ["input", "input"]);
  assert.deepEqual(await threads.getHistory(threadId, { limit: 1, checkpoint: { checkpoint_ns: "" } }), history.slice(0, 1));

  const note = { messages: [{ role: "ai", content: "noted" }] };
  const updated = await threads.updateState(threadId, { values: note, asNode: "model" });
  const state = await threads.getState(threadId);
  assert.deepEqual([last(state.values), state.metadata.source], ["noted", "update"]);
  assert.equal(state.checkpoint.checkpoint_id, updated.checkpoint.checkpoint_id);
  for (const place of [{ checkpoint }, { checkpointId: checkpoint.checkpoint_id }]) {
    await threads.updateState(threadId, { values: note, ...place });
    assert.deepEqual(contents((await threads.getState(threadId)).values), ["one", "echo: one", "noted"]);
  }
  await threads.delete(threadId);
}

async function useThreadStreams() {
  const { thread_id: threadId } = await threads.create();
  const run = await runs.create(threadId, "plain", {
    input: human(script({ text: "one two three four", delay_ms: 100 })), streamMode: ["values"], streamResumable: true, afterSeconds: 1,
  });
  const seen = [];
  for await (const part of threads.joinStream(threadId, { streamMode: ["run_modes", "lifecycle"] })) {
    if (isHeartbeat(part)) continue;
    seen.push(part);
    if (part.event === "metadata" && part.data.status === "run_done") break;
  }
  assert.equal(seen.at(-1).data.run_id, run.run_id);
  assert.ok(seen.some((part) => part.event === "values" && last(part.data) === "one two three four"));
  const again = [];
  for await (const part of threads.joinStream(threadId, { lastEventId: seen[0].id })) {
    if (isHeartbeat(part)) continue;
    again.push(part.id);
    if (again.length === seen.length - 1) break;
  }
  assert.deepEqual(again, ids(seen.slice(1), "id"));
  await threads.delete(threadId);
}

async function useRuns(tag) {
  const threadId = randomUUID();
  const created = [];
  const options = {
    metadata: { tag }, config: { tags: ["t"], recursion_limit: 50 }, context: { user: "u1" }, multitaskStrategy: "enqueue",
    ifNotExists: "create", onCompletion: "complete", afterSeconds: 0, durability: "sync", checkpointDuring: true,
    strictResume: true, onRunCreated: (run) => created.push(run),
  };
  const ask = human(script(callsTool("c1", "lookup", { query: "x" }), { text: "done" }));
  const values = await runs.wait(threadId, "agent", { ...options, input: ask, onDisconnect: "continue", raiseError: true });
  assert.deepEqual(contents(values).slice(1), ["", "found x", "done"]);
  assert.equal(created[0].thread_id, threadId);
  const run = await runs.get(threadId, created[0].run_id);
  assert.deepEqual([run.status, run.metadata.tag, run.kwargs.context], ["success", tag, { user: "u1" }]);

  const parts = await collect(runs.stream(threadId, "agent", {
    ...options, input: human("more"), streamMode: ["values", "updates", "messages-tuple"], streamSubgraphs: true, streamResumable: true,
    streamNamespaces: ["tools"], feedbackKeys: ["thumb"], onDisconnect: "cancel",
  }));
  assert.deepEqual([parts[0].event, parts[0].data.run_id], ["metadata", created[1].run_id]);
  assert.deepEqual([...new Set(ids(parts, "event"))].sort(), ["messages", "metadata", "updates", "values"]);
  assert.ok(parts.every((part) => part.id));
  const later = await runs.create(threadId, "agent", { ...options, input: human("later"), streamMode: "values", streamResumable: true });
  assert.equal(created[2].run_id, later.run_id);
  assert.equal(last(await runs.join(threadId, later.run_id)), "echo: later");
  const listed = await runs.list(threadId, { limit: 1, offset: 0, status: "success", select: ["run_id", "status"] });
  assert.deepEqual(listed, [{ run_id: later.run_id, status: "success" }]);
  const every = await collect(runs.joinStream(threadId, later.run_id, { lastEventId: "-1" }));
  const some = await collect(runs.joinStream(threadId, later.run_id, { lastEventId: "-1", streamMode: ["values"], cancelOnDisconnect: false }));
  assert.deepEqual(some, every.filter((part) => part.event === "values"));
  await runs.delete(threadId, later.run_id);
  await refused(runs.get(threadId, later.run_id), 404);

  const at = (await threads.getHistory(threadId, { limit: 100 })).find((state) => JSON.stringify(state.values) === JSON.stringify(values));
  for (const place of [{ checkpoint: at.checkpoint }, { checkpointId: at.checkpoint.checkpoint_id }]) {
    const branch = await runs.wait(threadId, "agent", { input: human("else"), ...place });
    assert.deepEqual(contents(branch).slice(2), ["found x", "done", "else", "echo: else"]);
  }
  await runs.wait(threadId, "agent", { input: human("stop"), interruptBefore: ["model"] });
  assert.deepEqual((await threads.getState(threadId)).next, ["model"]);
  await runs.wait(threadId, "agent", { input: null, interruptAfter: ["model"] });
  const failed = await runs.wait(threadId, "agent", { input: human(script({ error: 400 })), raiseError: false });
  assert.ok(failed.__error__.error && failed.__error__.message);
  await assert.rejects(runs.wait(threadId, "agent", { input: human(script({ error: 400 })) }));
  await threads.delete(threadId);
}

async function useBackgroundRuns(tag) {
  const { thread_id: threadId } = await threads.create({ metadata: { tag } });
  const mail = human(script(callsTool("m1", "send_email", { to: "bob", body: "hi" }), { text: "handled" }));
  const asked = await runs.wait(threadId, "agent", { input: mail });
  assert.equal(asked.__interrupt__[0].value.action_requests[0].name, "send_email");
  const answered = await runs.wait(threadId, "agent", { command: { resume: { decisions: [{ type: "approve" }] } }, strictResume: true });
  assert.equal(last(answered), "handled");

  const status = async (run) => (await runs.get(threadId, run.run_id)).status;
  const stopped = await runs.create(threadId, "agent", { input: slow() });
  await refused(runs.create(threadId, "agent", { input: human("no"), multitaskStrategy: "reject" }), 409);
  await runs.cancel(threadId, stopped.run_id, true, "interrupt");
  assert.equal(await status(stopped), "interrupted");
  const undone = await runs.create(threadId, "agent", { input: slow() });
  await runs.cancel(threadId, undone.run_id, true, "rollback");
  await refused(runs.get(threadId, undone.run_id), 404);
  const unheard = await runs.create(threadId, "agent", { input: slow(), afterSeconds: 3600 });
  await runs.cancel(threadId, unheard.run_id, false, "interrupt", { reason: "taken" });
  assert.equal(await status(unheard), "interrupted");
  const many = await Promise.all([1, 2].map(() => runs.create(threadId, "agent", { input: slow(), afterSeconds: 3600 })));
  await runs.cancelMany({ threadId, runIds: ids(many, "run_id"), action: "interrupt" });
  for (const run of many) assert.equal(await status(run), "interrupted");
  const waiting = await runs.create(threadId, "agent", { input: slow(), afterSeconds: 3600 });
  await runs.cancelMany({ status: "pending" });
  assert.equal(await status(waiting), "interrupted");
  await threads.delete(threadId);

  const body = { assistantId: "agent", metadata: { tag }, on_completion: "keep", strictResume: true };
  const batch = await runs.createBatch([{ ...body, input: human("a") }, { ...body, input: human("b") }]);
  assert.deepEqual(batch.map((run) => run.metadata.tag), [tag, tag]);
  for (const run of batch) {
    await runs.join(run.thread_id, run.run_id);
    await threads.delete(run.thread_id);
  }
  assert.equal(last(await runs.wait(null, "agent", { input: human("alone") })), "echo: alone");
  const parts = await collect(runs.stream(null, "agent", { input: human("alone") }));
  assert.equal(last(parts.at(-1).data), "echo: alone");
}

async function useCrons(tag) {
  const { thread_id: threadId } = await threads.create();
  const every = {
    schedule: NEW_YEAR, input: human("happy new year"), metadata: { tag }, config: { tags: ["t"] }, context: { user: "u1" },
    interruptBefore: ["tools"], interruptAfter: ["tools"], multitaskStrategy: "enqueue", ifNotExists: "create",
    checkpointDuring: true, durability: "async", enabled: false, timezone: "UTC", streamMode: ["values"],
    streamSubgraphs: true, streamResumable: true, endTime: "2099-01-01T00:00:00Z",
  };
  const bound = await crons.createForThread(threadId, "agent", every);
  const free = await crons.create("agent", { ...every, onRunCompleted: "keep" });
  assert.deepEqual([bound.thread_id, free.thread_id, free.on_run_completed], [threadId, null, "keep"]);
  for (const cron of [bound, free]) {
    assert.deepEqual([cron.schedule, cron.enabled, cron.metadata, cron.payload.input], [NEW_YEAR, false, { tag }, every.input]);
    assert.ok(cron.next_run_date.includes("-01-01T00:00:00"), cron.next_run_date);
  }
  const changed = await crons.update(free.cron_id, {
    schedule: "30 12 * * *", endTime: "2099-01-01T00:00:00Z", input: human("lunch"), metadata: { tag, more: 1 }, config: { tags: ["u"] },
    interruptBefore: [], interruptAfter: [], onRunCompleted: "delete", enabled: false, timezone: "UTC", streamMode: ["updates"],
    streamSubgraphs: false, streamResumable: false, durability: "sync",
  });
  assert.deepEqual([changed.schedule, changed.on_run_completed, changed.metadata], ["30 12 * * *", "delete", { tag, more: 1 }]);
  assert.deepEqual([changed.payload.input, new Date(changed.end_time).getUTCFullYear()], [human("lunch"), 2099]);
  const found = await crons.search({
    assistantId: bound.assistant_id, threadId, enabled: false, limit: 5, offset: 0, sortBy: "created_at", sortOrder: "asc", select: ["cron_id"],
  });
  assert.deepEqual(found, [{ cron_id: bound.cron_id }]);
  assert.equal(await crons.count({ assistantId: bound.assistant_id, threadId }), 1);
  assert.deepEqual((await crons.search({ metadata: { tag } })).length, 2);
  assert.equal(await crons.count({ metadata: { tag } }), 2);
  for (const cron of [bound, free]) {
    await crons.delete(cron.cron_id);
    await refused(crons.delete(cron.cron_id), 404);
  }
  await threads.delete(threadId);
}

async function useStore(tag) {
  const place = ["sdk", tag];
  await store.putItem(place, "k1", { a: 1, b: "x" }, { index: false });
  await store.putItem([...place, "sub"], "k2", { a: 2 }, { index: ["a"], ttl: 60 });
  const item = await store.getItem(place, "k1", { refreshTtl: true });
  assert.deepEqual([item.namespace, item.key, item.value], [place, "k1", { a: 1, b: "x" }]);
  assert.ok(item.createdAt && item.updatedAt);
  assert.equal(await store.getItem(place, "none"), null);
  const found = await store.searchItems(place, { filter: { a: 2 }, limit: 1, offset: 0, query: "two", refreshTtl: false });
  assert.deepEqual(ids(found.items, "key"), ["k2"]);
  assert.deepEqual(ids((await store.searchItems(place)).items, "key"), ["k1", "k2"]);
  const listed = await store.listNamespaces({ prefix: place, suffix: ["sub"], maxDepth: 3, limit: 5, offset: 0 });
  assert.deepEqual(listed, { namespaces: [[...place, "sub"]] });
  await store.deleteItem(place, "k1");
  await store.deleteItem([...place, "sub"], "k2");
  assert.deepEqual((await store.searchItems(place)).items, []);
}

const scenes = [useAssistants, useThreads, useStates, useThreadStreams, useRuns, useBackgroundRuns, useCrons, useStore];
const chosen = process.argv.slice(3);
for (const scene of scenes.filter(({ name }) => chosen.length === 0 || chosen.includes(name))) {
  await scene(`js-${randomUUID().slice(0, 8)}`);
}
if (chosen.length === 0) {
  const left = methods.filter((method) => !used.has(method) && !(method in EXCUSED));
  assert.deepEqual(left, [], "nobody called these");
}
const table = {};
for (const method of methods.filter((method) => !(method in EXCUSED)).sort()) {
  const [resource, name] = method.split(".");
  table[resource] = [...(table[resource] ?? []), `\`${name}\``];
}
console.log(JSON.stringify(Object.fromEntries(Object.entries(table).map(([name, list]) => [name, list.join(", ")]))));
