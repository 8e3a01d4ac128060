// Questions to the user, and calls that are asked about one by one, as a user of the JavaScript SDK answers them.
// Usage: node interrupts.mjs BASE_URL

import assert from "node:assert/strict";

import { human, modules, script } from "./modules.mjs";

const { Client } = modules("sdk-1-15");
const client = new Client({ apiUrl: process.argv[2] });

const call = (id, name, args) => ({ id, name, args });
const calls = (...all) => ({ tool_calls: all });
const results = (values) => Object.fromEntries(values.messages.filter(({ type }) => type === "tool").map((message) => [message.tool_call_id, message.content]));

// Runs an agent until it asks. The interrupts are the same in the stream and on the thread.
async function asks(agent, content) {
  const { thread_id } = await client.threads.create();
  const streamed = new Map();
  for await (const part of client.runs.stream(thread_id, agent, { input: human(content), streamMode: ["updates"] })) {
    for (const interrupt of part.data.__interrupt__ ?? []) streamed.set(interrupt.id, interrupt);
  }
  const { status, interrupts } = await client.threads.get(thread_id);
  assert.equal(status, "interrupted");
  const asked = Object.values(interrupts).flat();
  assert.deepEqual(asked.map(({ id }) => id).sort(), [...streamed.keys()].sort());
  return { thread: thread_id, asked: asked.map(({ id }) => streamed.get(id)) };
}

async function questionsToTheUser() {
  const questions = [
    { question: "Which colour?", type: "multiple_choice", allow_other: false, choices: [{ value: "red" }, { value: "blue" }] },
    { question: "Why?", type: "text", required: false },
  ];
  const { thread, asked } = await asks("curious", script(calls(call("q1", "ask_user", { questions })), { text: "thanks" }));
  const [{ value, response_schema: schema }] = asked;
  assert.equal(asked.length, 1);
  assert.deepEqual([value.type, value.tool_call_id], ["ask_user", "q1"]);
  assert.deepEqual(value.questions.map(({ question }) => question), ["Which colour?", "Why?"]);
  assert.equal(schema.properties.answers.minItems, 2);
  // A wrong answer is refused, and the question stays.
  const wrong = client.runs.wait(thread, "curious", { command: { resume: { answers: ["green", null] } } });
  await assert.rejects(wrong, ({ status }) => status === 422);
  const values = await client.runs.wait(thread, "curious", { command: { resume: { type: "answered", answers: ["blue", "It is calm."] } } });
  assert.equal(results(values).q1, "Question: Which colour?\nAnswer: blue\nQuestion: Why?\nAnswer: It is calm.");
  assert.equal(values.messages.at(-1).content, "thanks");
  assert.equal((await client.threads.get(thread)).status, "idle");
}

async function singleCalls() {
  const both = calls(call("m1", "send_email", { to: "bob", body: "hi" }), call("m2", "send_email", { to: "eve", body: "hi" }));
  const { thread, asked } = await asks("single", script(both, { text: "both are decided" }));
  const byCall = Object.fromEntries(asked.map((interrupt) => [interrupt.value.tool_call_id, interrupt]));
  assert.deepEqual(Object.keys(byCall).sort(), ["m1", "m2"]);
  assert.deepEqual([byCall.m1.value.type, byCall.m1.value.name, byCall.m1.value.args.to], ["tool_approval", "send_email", "bob"]);
  assert.ok(byCall.m1.response_schema.properties.type.enum.includes("respond"));
  // Each has its own answer, by its id.
  await client.runs.wait(thread, "single", { command: { resume: { [byCall.m2.id]: { type: "reject", message: "Not her." } } } });
  const left = Object.values((await client.threads.get(thread)).interrupts).flat();
  assert.deepEqual(left.map(({ id }) => id), [byCall.m1.id]);
  const edited = { type: "edit", edited_action: { name: "send_email", args: { to: "bob", body: "hello" } } };
  const values = await client.runs.wait(thread, "single", { command: { resume: { [byCall.m1.id]: edited } } });
  assert.match(results(values).m1, /sent to bob: hello/);
  assert.match(results(values).m2, /Not her\./);
  assert.equal(values.messages.at(-1).content, "both are decided");
}

await questionsToTheUser();
await singleCalls();
console.log("the flow is complete");
