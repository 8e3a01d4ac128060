// The official JavaScript SDK follows threads: `client.threads.stream`, over SSE and over WebSocket, in the version that
// `@langchain/react` is built on and in the newest one. Usage: node threads.mjs BASE_URL

import assert from "node:assert/strict";

import { callsTool, modules, task } from "./modules.mjs";

const { WebSocket } = modules("ws");
const key = process.env.LANGGRAPH_API_KEY;
const apiUrl = process.argv[2];
const human = (text) => ({ messages: [{ role: "user", content: text }] });
// A model takes its time. One that answers at once is done before the client has made its subscriptions.
const script = (...turns) => JSON.stringify({ script: turns, first_ms: 250 });
const approve = { decisions: [{ type: "approve" }] };

async function collect(iterable) {
  const all = [];
  for await (const one of iterable) all.push(one);
  return all;
}

const textOf = ({ content }) => (typeof content === "string" ? content : content.map(({ text }) => text ?? "").join(""));
const last = (values) => textOf(values.messages.at(-1));

async function textAndTools(open) {
  const thread = open();
  const messages = (async () => {
    const texts = [];
    for await (const message of thread.messages) texts.push(await message.text);
    return texts;
  })();
  const tools = collect(thread.toolCalls);
  const { run_id } = await thread.run.start({ input: human(script(callsTool("c1", "lookup", { query: "x" }), { text: "it is x" })) });
  assert.match(run_id, /^[0-9a-f-]{36}$/);
  assert.equal(last(await thread.output), "it is x");
  // Results of tools are messages, too.
  assert.deepEqual(await messages, ["", "found x", "it is x"]);
  const [tool] = await tools;
  assert.deepEqual([tool.name, tool.input], ["lookup", { query: "x" }]);
  assert.equal((await tool.output).content ?? (await tool.output), "found x");
  await thread.close();
}

async function subagents(open) {
  const research = (id, what) => script(callsTool(id, "lookup", { query: what }), { text: `it is ${what}` });
  const calls = [task("t1", "researcher", research("c1", "x")), task("t2", "researcher", research("c2", "y"))];
  const thread = open();
  const found = collect(thread.subagents);
  await thread.run.start({ input: human(script({ tool_calls: calls.flatMap(({ tool_calls }) => tool_calls) }, { text: "done" })) });
  assert.equal(last(await thread.output), "done");
  const names = (await found).map(({ name, callId }) => [name, callId]);
  assert.deepEqual(names.map(([name]) => name), ["researcher", "researcher"]);
  assert.equal(new Set(names.map(([, call]) => call)).size, 2);
  await thread.close();
}

async function questions(open, client) {
  const mailer = script(callsTool("m1", "send_email", { to: "bob", body: "hi" }), { text: "sent" });
  for (const text of [mailer, script(task("t1", "mailer", mailer), { text: "sent by the mailer" })]) {
    const thread = open();
    await thread.run.start({ input: human(text) });
    await collect(thread.values);
    assert.equal(thread.interrupted, true);
    const [{ interruptId, payload, namespace }] = thread.interrupts;
    assert.equal(payload.action_requests[0].name, "send_email");
    await thread.input.respond({ namespace, interrupt_id: interruptId, response: approve });
    for await (const { params } of await thread.subscribe({ channels: ["lifecycle"] })) {
      if (params.namespace.length === 0 && params.data.event === "completed") break;
    }
    const { values } = await client.threads.getState(thread.threadId);
    assert.ok(last(values).startsWith("sent"), last(values));
    await thread.close();
  }
}

async function joining(open) {
  const first = open();
  await first.run.start({ input: human(JSON.stringify({ script: [{ text: "slowly ".repeat(5) }], delay_ms: 60 })) });
  const other = open(first.threadId);
  const subscription = await other.subscribe({ channels: ["messages", "lifecycle"] });
  let text = "";
  for await (const { method, params } of subscription) {
    text += method === "messages" ? params.data.delta?.text ?? "" : "";
    if (method === "lifecycle" && params.data.event === "completed") break;
  }
  assert.equal(text, "slowly ".repeat(5));
  assert.equal(last(await first.output), "slowly ".repeat(5));
  await other.close();
  await first.close();
}

// What a tool tells under a name is an extension of the thread.
async function extensions(open) {
  const thread = open();
  const told = collect(thread.extensions.progress);
  const research = script(callsTool("p1", "progress", { name: "progress" }), { text: "found" });
  await thread.run.start({ input: human(script(task("t1", "researcher", research), { text: "done" })) });
  assert.equal(last(await thread.output), "done");
  assert.deepEqual(await told, [{ done: 0.5, name: "progress" }]);
  await thread.close();
}

for (const name of ["sdk-1-11", "sdk-1-15"]) {
  const { Client } = modules(name);
  const client = new Client({ apiUrl, apiKey: key ?? null });
  // The SDK opens no WebSocket with a key.
  for (const transport of key ? ["sse"] : ["sse", "websocket"]) {
    const options = { assistantId: "agent", transport, webSocketFactory: (url) => new WebSocket(url) };
    const open = (id) => (id ? client.threads.stream(id, options) : client.threads.stream(options));
    for (const scene of [textAndTools, subagents, questions, joining, extensions]) {
      let timer;
      const tooLong = new Promise((_, reject) => (timer = setTimeout(reject, 40_000, new Error("it takes too long"))));
      await Promise.race([scene(open, client), tooLong]).catch((error) => {
        error.message = `${scene.name} with ${name} over ${transport}: ${error.message}`;
        throw error;
      });
      clearTimeout(timer);
    }
  }
}
console.log("the flow is complete");
process.exit(0);
