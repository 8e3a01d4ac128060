// The whole flow as a user of the JavaScript SDK writes it. Usage: node flow.mjs BASE_URL

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

// The folder of modules may be elsewhere: the test says where.
const modules = createRequire(process.env.ADJUTANT_TEST_NODE_MODULES
  ? pathToFileURL(`${process.env.ADJUTANT_TEST_NODE_MODULES}/`)
  : import.meta.url);
const { Client } = modules("sdk-1-15");

const client = new Client({ apiUrl: process.argv[2] });

const script = (...turns) => JSON.stringify({ script: turns });
const calls = (id, name, args) => ({ tool_calls: [{ id, name, args }] });
const task = (id, subagent, description) => calls(id, "task", { description, subagent_type: subagent });
const human = (content) => ({ messages: [{ role: "user", content }] });
const contents = (values) => values.messages.slice(1).map((message) => message.content);

async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}

async function rejects(promise, status) {
  await assert.rejects(promise, (error) => error.status === status);
}

async function delegationWithApproval() {
  const [assistant] = await client.assistants.search({ graphId: "agent" });
  assert.equal(assistant.name, "main-agent");

  const thread = await client.threads.create({ metadata: { flow: "javascript" } });
  const mail = script(calls("m1", "send_email", { to: "bob", body: "hi" }), { text: "sent" });
  const text = script(task("t1", "mailer", mail), { text: "the mailer sent it" });

  let created;
  const parts = await collect(client.runs.stream(thread.thread_id, "agent", {
    input: human(text),
    streamMode: ["values", "messages-tuple", "updates"],
    streamSubgraphs: true,
    onRunCreated: (run) => { created = run; },
  }));
  assert.equal(parts[0].event, "metadata");
  assert.equal(parts[0].data.run_id, created.run_id);
  assert.equal(created.thread_id, thread.thread_id);
  const names = new Set(parts.filter((part) => part.event.startsWith("messages")).map((part) => part.data[1].lc_agent_name));
  assert.deepEqual([...names].sort(), ["mailer", "main-agent"]);
  const asked = parts.flatMap((part) => part.data.__interrupt__ ?? []);
  assert.ok(asked.length > 0);

  const waiting = await client.threads.get(thread.thread_id);
  assert.equal(waiting.status, "interrupted");
  const [interrupt] = Object.values(waiting.interrupts).flat();
  assert.equal(interrupt.id, asked[0].id);
  assert.equal(interrupt.value.action_requests[0].name, "send_email");

  const values = await client.runs.wait(thread.thread_id, "agent", {
    command: { resume: { decisions: [{ type: "approve" }] } },
  });
  assert.deepEqual(contents(values), ["", "sent", "the mailer sent it"]);
  const state = await client.threads.getState(thread.thread_id);
  assert.deepEqual([state.next, state.values], [[], values]);
  const history = await client.threads.getHistory(thread.thread_id, { limit: 100 });
  assert.equal(history.at(-1).metadata.source, "input");
  assert.deepEqual(history[0].values, values);
  assert.equal((await client.runs.list(thread.thread_id)).length, 2);
}

async function joining() {
  const thread = await client.threads.create();
  const run = await client.runs.create(thread.thread_id, "agent", {
    input: human(script(calls("c1", "lookup", { query: "x" }), { text: "done" })),
    streamMode: ["values", "messages-tuple"],
    streamResumable: true,
  });
  const values = await client.runs.join(thread.thread_id, run.run_id);
  assert.deepEqual(contents(values), ["", "found x", "done"]);
  const all = await collect(client.runs.joinStream(thread.thread_id, run.run_id, { lastEventId: "-1" }));
  assert.equal(all[0].event, "metadata");
  const half = all[Math.floor(all.length / 2)];
  const rest = await collect(client.runs.joinStream(thread.thread_id, run.run_id, { lastEventId: half.id }));
  assert.deepEqual(rest, all.slice(all.indexOf(half) + 1));
  assert.equal((await client.runs.get(thread.thread_id, run.run_id)).status, "success");
}

async function cancelling() {
  const thread = await client.threads.create();
  const slow = script({ text: "never ".repeat(50), delay_ms: 1000 });
  const run = await client.runs.create(thread.thread_id, "agent", { input: human(slow) });
  await rejects(client.runs.create(thread.thread_id, "agent", { input: human("no"), multitaskStrategy: "reject" }), 409);
  await client.runs.cancel(thread.thread_id, run.run_id, true);
  assert.equal((await client.runs.get(thread.thread_id, run.run_id)).status, "interrupted");
  const values = await client.runs.wait(thread.thread_id, "agent", { input: human("go on") });
  assert.equal(values.messages.at(-1).content, "echo: go on");
}

async function resources() {
  const threads = await client.threads.search({ metadata: { flow: "javascript" }, status: "idle" });
  assert.equal(threads.length, 1);
  const [thread] = threads;
  const updated = await client.threads.update(thread.thread_id, { metadata: { seen: true } });
  assert.deepEqual([updated.metadata.flow, updated.metadata.seen], ["javascript", true]);
  await client.threads.updateState(thread.thread_id, { values: { messages: [{ role: "user", content: "noted" }] } });
  const state = await client.threads.getState(thread.thread_id);
  assert.equal(state.values.messages.at(-1).content, "noted");
  await client.threads.delete(thread.thread_id);
  await rejects(client.threads.get(thread.thread_id), 404);
  const values = await client.runs.wait(null, "agent", { input: human("hello") });
  assert.equal(values.messages.at(-1).content, "echo: hello");
}

await delegationWithApproval();
await joining();
await cancelling();
await resources();
console.log("the flow is complete");
