// What the two public chat pages for deep agents do, deep-agents-ui and agent-chat-ui, with the hook that both are built
// on: the same options, the same order, and the fields that they show. Usage: node front_ends.mjs BASE_URL

import assert from "node:assert/strict";
import { randomUUID } from "node:crypto";

import { callsTool, modules, script, task } from "./modules.mjs";
import { Page, Tab } from "./browser.mjs";

const { Client } = modules("sdk-1-15");
const apiUrl = process.argv[2];
// A server without authentication ignores it.
const apiKey = process.env.LANGGRAPH_API_KEY ?? "key";

const said = (text) => ({ id: randomUUID(), type: "human", content: text });
const texts = (messages) => messages.map(({ content }) => (typeof content === "string" ? content : content.map(({ text }) => text).join("")));
const approve = { decisions: [{ type: "approve" }] };
const mail = callsTool("m1", "send_email", { to: "bob", body: "hi" });

// What deep-agents-ui reads of a stream.
const deepLook = (stream) => ({
  messages: stream.messages, todos: stream.values.todos ?? [], files: stream.values.files ?? {}, interrupt: stream.interrupt,
});

function deepPage(tab, assistant, options = {}) {
  const client = new Client({ apiUrl, defaultHeaders: { "Content-Type": "application/json", "X-Api-Key": apiKey }, callerOptions: { fetch: tab.fetch } });
  const told = [];
  const page = new Page({
    assistantId: assistant.assistant_id, client, reconnectOnMount: true, defaultHeaders: { "x-auth-scheme": "langsmith" },
    onFinish: () => told.push("finish"), onError: () => told.push("error"), onCreated: () => told.push("created"),
    fetchStateHistory: true, ...options,
  }, deepLook);
  const send = (text) => {
    const message = said(text);
    return page.submit({ messages: [message] }, {
      optimisticValues: (prev) => ({ messages: [...(prev.messages ?? []), message] }),
      config: { ...assistant.config, recursion_limit: 100 },
    });
  };
  return { client, page, send, told };
}

// The list of conversations: of one assistant, the last changed first, with a title out of the first message.
async function listed(client, assistant, status) {
  const threads = await client.threads.search({
    limit: 20, offset: 0, sortBy: "updated_at", sortOrder: "desc", status, metadata: { assistant_id: assistant.assistant_id },
  });
  return threads.map((thread) => ({
    id: thread.thread_id, status: thread.status, updated: new Date(thread.updated_at),
    title: thread.values?.messages.find(({ type }) => type === "human")?.content,
  }));
}

async function findsItsAssistant(tab) {
  const client = new Client({ apiUrl, defaultHeaders: { "X-Api-Key": apiKey }, callerOptions: { fetch: tab.fetch } });
  const found = await client.assistants.search({ graphId: "agent", limit: 100 });
  const own = found.find(({ metadata }) => metadata?.created_by === "system");
  assert.deepEqual(await client.assistants.get(own.assistant_id), own);
  return own;
}

async function aConversationWithApproval() {
  const tab = new Tab();
  const assistant = await findsItsAssistant(tab);
  const { client, page, send, told } = deepPage(tab, assistant);
  const ask = script(
    callsTool("f1", "write_file", { file_path: "/plan.md", content: "first" }),
    task("t1", "researcher", script({ text: "found it" })),
    mail,
    { text: "all done" },
  );
  await send(ask);
  const [sent] = tab.bodies("POST", /runs\/stream$/);
  assert.deepEqual([...sent.stream_mode].sort(), ["messages-tuple", "values"]);
  assert.deepEqual([sent.stream_resumable, sent.on_disconnect, sent.config.recursion_limit], [true, "continue", 100]);
  assert.deepEqual(told, ["created", "finish"]);
  const { value } = page.shown.interrupt;
  assert.deepEqual(value.action_requests[0].args, { to: "bob", body: "hi" });
  // The hook adds the names in the style of JavaScript.
  const [{ action_name: reviewed, allowed_decisions: allowed }] = value.review_configs;
  assert.deepEqual([reviewed, allowed], ["send_email", ["approve", "edit", "reject"]]);
  assert.equal(page.shown.files["/plan.md"].content, "first");
  assert.ok(page.shown.messages.every(({ id, type }) => id && type));
  const calls = page.shown.messages.flatMap(({ tool_calls: made }) => made ?? []);
  assert.deepEqual(calls.map(({ name }) => name), ["write_file", "task", "send_email"]);
  assert.equal((await listed(client, assistant, "interrupted")).find(({ id }) => id === page.threadId).title, ask);

  await page.submit(null, { command: { resume: approve } });
  assert.equal(page.shown.interrupt, undefined);
  assert.equal(page.shown.messages.at(-1).content, "all done");
  const results = page.shown.messages.filter(({ type }) => type === "tool").map(({ tool_call_id: id, status }) => [id, status]);
  assert.deepEqual(results, [["f1", "success"], ["t1", "success"], ["m1", "success"]]);
  const [newest] = await listed(client, assistant);
  assert.deepEqual([newest.id, newest.status], [page.threadId, "idle"]);

  // A file is edited by hand; this page writes text where the agent wrote an object. It shows it when it is opened anew.
  await client.threads.updateState(page.threadId, { values: { files: { ...page.shown.files, "/plan.md": "second" } } });
  page.close();
  const { page: opened, send: sendOn } = deepPage(tab, assistant, { threadId: page.threadId });
  await opened.until("the file", () => opened.shown.files["/plan.md"]?.content === "second");
  await sendOn(script(callsTool("r1", "read_file", { file_path: "/plan.md" }), { text: "read" }));
  assert.ok(texts(opened.shown.messages).at(-2).includes("second"), texts(opened.shown.messages).at(-2));
  const history = await client.threads.getHistory(opened.threadId, { limit: 10 });
  assert.ok(history[0].checkpoint.checkpoint_id && Array.isArray(history[0].tasks));
  opened.close();
}

async function theTasksOfAPlan() {
  const { page, send } = deepPage(new Tab(), { assistant_id: "planner", config: {} });
  const todos = [{ content: "dig", status: "in_progress" }, { content: "plant", status: "pending" }];
  await send(script(callsTool("p1", "write_todos", { todos }), { text: "planned" }));
  assert.deepEqual(page.shown.todos, todos);
  page.close();
}

async function stepByStep() {
  const { page, send } = deepPage(new Tab(), { assistant_id: "agent", config: {} });
  const one = script(callsTool("c1", "lookup", { query: "x" }), { text: "looked" });
  await page.submit({ messages: [said(one)] }, { config: {}, interruptBefore: ["tools"] });
  assert.deepEqual(page.shown.interrupt, { when: "breakpoint" });
  await page.submit(undefined, { config: { recursion_limit: 100 }, interruptBefore: ["tools"] });
  assert.deepEqual([page.shown.interrupt, page.shown.messages.at(-1).content], [undefined, "looked"]);
  await page.submit({ messages: [said(script(mail, { text: "never said" }))] }, { config: {} });
  assert.ok(page.shown.interrupt.value);
  await page.submit(null, { command: { goto: "__end__", update: null } });
  assert.equal(page.shown.interrupt, undefined);
  await send("and on");
  assert.equal(page.shown.messages.at(-1).content, "echo: and on");
  page.close();
}

async function leavingAndComingBack() {
  const tab = new Tab();
  const { page } = deepPage(tab, { assistant_id: "agent", config: {} });
  await page.until("it is drawn", () => true);
  page.stream.submit({ messages: [said(script({ text: "one two three four five", delay_ms: 250 }))] }, {});
  await page.until("the first word", () => texts(page.shown.messages).at(-1)?.startsWith("one"));
  const again = tab.reload();
  const { page: back } = deepPage(again, { assistant_id: "agent", config: {} }, { threadId: page.threadId });
  await back.until("the whole answer", () => texts(back.shown.messages).at(-1) === "one two three four five");
  await back.rests();
  assert.equal(again.requests.filter(({ path }) => /runs\/[^/]+\/stream$/.test(path)).length, 1);

  back.stream.submit({ messages: [said(script({ text: "never ".repeat(100), delay_ms: 250 }))] }, {});
  await back.until("the first word", () => texts(back.shown.messages).at(-1)?.startsWith("never"));
  const runId = again.session.get(`lg:stream:${back.threadId}`);
  await back.stream.stop();
  const client = new Client({ apiUrl });
  await client.runs.join(back.threadId, runId);
  assert.equal((await client.runs.get(back.threadId, runId)).status, "interrupted");
  page.close();
  back.close();

  // What was stopped is opened anew: it waits for nobody, so there is no breakpoint to go on from.
  const { page: opened } = deepPage(new Tab(), { assistant_id: "agent", config: {} }, { threadId: back.threadId });
  await opened.until("the messages", () => opened.shown.messages.length > 0);
  assert.equal(opened.shown.interrupt, undefined);
  assert.match(opened.stream.error, /^UserInterrupt/);
  opened.close();
}

// What agent-chat-ui reads of a stream.
const chatLook = (stream) => ({ messages: stream.messages, interrupt: stream.interrupt, ui: stream.values.ui });

async function chatPage(tab, custom = []) {
  const info = await tab.fetch(`${apiUrl}/info`, { headers: { "X-Api-Key": apiKey } });
  assert.ok(info.ok);
  return new Page({
    apiUrl, apiKey, assistantId: "agent", fetchStateHistory: true, callerOptions: { fetch: tab.fetch },
    onCustomEvent: (event) => custom.push(event),
  }, chatLook);
}

const chat = { streamMode: ["values"], streamSubgraphs: true, streamResumable: true };
const typed = (text) => ({ messages: [{ ...said(text), content: [{ type: "text", text }] }], context: undefined });

async function aChatThatBranches() {
  const tab = new Tab();
  const custom = [];
  const page = await chatPage(tab, custom);
  await page.submit(typed(script(task("t1", "researcher", script(callsTool("p1", "progress", {}), { text: "found" })), { text: "done" })), chat);
  const [sent] = tab.bodies("POST", /runs\/stream$/);
  assert.deepEqual([...sent.stream_mode].sort(), ["custom", "messages-tuple", "values"]);
  assert.deepEqual(custom, [{ done: 0.5 }, "almost", 1]);
  assert.equal(page.shown.messages.at(-1).content, "done");
  const client = new Client({ apiUrl, apiKey, callerOptions: { fetch: tab.fetch } });
  const threads = await client.threads.search({ metadata: { graph_id: "agent" }, limit: 100 });
  assert.ok(threads.some(({ thread_id: id }) => id === page.threadId));

  await page.submit(typed("how are you"), chat);
  const of = (at) => page.stream.getMessagesMetadata(page.shown.messages.at(at));
  const { firstSeenState } = of(-1);
  await page.submit(undefined, { ...chat, checkpoint: firstSeenState.parent_checkpoint });
  assert.equal(page.shown.messages.at(-1).content, "echo: how are you");
  assert.equal(of(-1).branchOptions.length, 2);
  await page.submit(typed("who are you"), { ...chat, checkpoint: of(-2).firstSeenState.parent_checkpoint });
  assert.deepEqual(texts(page.shown.messages).slice(-2), ["who are you", "echo: who are you"]);
  assert.equal(of(-2).branchOptions.length, 2);
  page.close();
}

async function theProgressOfTools() {
  const told = [];
  const tab = new Tab();
  const page = new Page({
    apiUrl, apiKey, assistantId: "agent", callerOptions: { fetch: tab.fetch }, onToolEvent: ({ event }) => told.push(event),
  }, ({ messages, toolProgress }) => ({ messages, toolProgress }));
  const failing = callsTool("f1", "fail", { why: "no" });
  await page.submit(typed(script(callsTool("c1", "lookup", { query: "x" }), failing, { text: "done" })), chat);
  assert.ok(tab.bodies("POST", /runs\/stream$/)[0].stream_mode.includes("tools"));
  assert.equal(page.shown.messages.at(-1).content, "done");
  assert.deepEqual(told, ["on_tool_start", "on_tool_end", "on_tool_start", "on_tool_error"]);
  const shown = page.shown.toolProgress.map(({ toolCallId, name, state, input }) => [toolCallId, name, state, input]);
  assert.deepEqual(shown, [["c1", "lookup", "completed", { query: "x" }], ["f1", "fail", "error", { why: "no" }]]);
  page.close();
}

async function aChatThatAsks() {
  const page = await chatPage(new Tab());
  await page.submit(typed(script(task("t1", "mailer", script(mail, { text: "sent" })), { text: "done" })), chat);
  assert.equal(page.shown.interrupt.value.action_requests[0].name, "send_email");
  const edited = { type: "edit", edited_action: { name: "send_email", args: { to: "eve", body: "ho" } } };
  await page.submit({}, { command: { resume: { decisions: [edited] } } });
  assert.deepEqual([page.shown.interrupt, page.shown.messages.at(-1).content], [undefined, "done"]);
  await page.submit(typed(script(mail, { text: "never said" })), chat);
  assert.ok(page.shown.interrupt.value);
  await page.submit({}, { command: { goto: "__end__" } });
  assert.equal(page.shown.interrupt, undefined);
  page.close();
}

// With the header for lean metadata, the hook shows the same: it assigns pieces to subagents by what is left of it.
async function leanMetadata() {
  const seen = [];
  for (const defaultHeaders of [{}, { "x-stream-metadata": "lean" }]) {
    const tab = new Tab();
    const bodies = [];
    const observed = async (input, init) => {
      const response = await tab.fetch(input, init);
      if (!/runs\/stream$/.test(new URL(input).pathname)) return response;
      const [read, shown] = response.body.tee();
      bodies.push(new Response(read).text());
      return new Response(shown, { status: response.status, headers: response.headers });
    };
    const page = new Page({
      apiUrl, apiKey, assistantId: "agent", defaultHeaders, filterSubagentMessages: true, callerOptions: { fetch: observed },
    }, ({ messages, subagents }) => ({
      messages: messages.map(({ type, content }) => [type, content]),
      subagents: [...subagents.values()].map(({ status, result, messages }) => [status, result, messages.map(({ content }) => content)]),
    }));
    const research = script(callsTool("c1", "lookup", { query: "x" }), { text: "it is x, says the book" });
    const ask = script(task("t1", "researcher", research), { text: "the researcher says x" });
    await page.submit({ messages: [{ ...said(ask), id: "h1" }] }, { streamMode: ["values", "updates", "messages-tuple"], streamSubgraphs: true });
    assert.equal(page.shown.messages.at(-1)[1], "the researcher says x");
    assert.ok(page.shown.subagents.length > 0);
    seen.push([page.shown, (await bodies[0]).split("assistant_id").length]);
    page.close();
  }
  const [[full, many], [lean, few]] = seen;
  assert.deepEqual(lean, full);
  assert.ok(few < many / 2, `${few} of ${many} pieces have all of the metadata`);
}

const scenes = [leanMetadata, aConversationWithApproval, theTasksOfAPlan, stepByStep, leavingAndComingBack, aChatThatBranches, theProgressOfTools, aChatThatAsks];
const chosen = process.argv.slice(3);
for (const scene of scenes.filter(({ name }) => chosen.length === 0 || chosen.includes(name))) {
  try {
    await scene();
  } catch (error) {
    throw new Error(`scene ${scene.name}`, { cause: error });
  }
}
console.log("the pages work");
process.exit(0);
