// A service of tools of all kinds, for the tests: node tool_service.mjs PORT FOLDER TOKEN.

import { appendFileSync, existsSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

import { ask, askAll, delegate, Result, runSubagent, serve, tool } from "../../../js/src/index.js";
import { modules } from "./modules.mjs";

const { z } = modules("zod");
const zod3 = modules("zod/v3").z;
const { tool: langchainTool } = modules("@langchain/core/tools");
const { McpServer } = modules("@modelcontextprotocol/sdk/server/mcp.js");

const [port, folder, token] = process.argv.slice(2);
const text = { type: "string" };

const add = tool(({ a, b }) => a + b, {
  name: "add",
  description: "Adds.",
  parameters: z.object({ a: z.number().int().describe("The first."), b: z.number().int().default(2) }),
});
const whoami = tool(
  async (_, context) => ({ agent: context.agentName, thread: context.threadId, user: context.context.user ?? null }),
  { name: "whoami" },
);
const note = tool(({ text }) => new Result("noted", { artifact: { length: text.length }, update: { topic: text } }), {
  name: "note",
  parameters: zod3.object({ text: zod3.string() }),
});
const recall = tool((_, context) => `the topic is ${context.state.topic}`, { name: "recall", state: ["topic"] });
async function study(_, context) {
  const run = context.reader();
  const reports = {};
  for (const { path } of await run.files()) reports[path] = await run.readText(path);
  const likes = (await run.search(["memories"])).map((item) => item.value);
  return { messages: (await run.state("messages")).messages.length, reports, likes };
}
function broken() {
  throw new TypeError("no such thing");
}
async function* tell({ wait }) {
  yield "Once ";
  yield { part: 1 };
  while (wait && !existsSync(`${folder}/go`)) await pause(20);
  yield "upon a time.";
}
const handOver = tool(({ work }) => delegate(work, "helper"), {
  name: "hand_over",
  parameters: { type: "object", properties: { work: text }, required: ["work"] },
});
const book = tool(
  ({ city }) => {
    appendFileSync(`${folder}/book`, "run\n");
    if (!ask(`Book ${city}?`, { schema: z.boolean(), key: "sure" })) return "not booked";
    const [seat, meal] = askAll(["Which seat?", "Which meal?"]);
    return `${city}: ${seat}, ${meal}`;
  },
  { name: "book", parameters: z.object({ city: z.string() }) },
);
const pay = tool(
  async ({ sum }) => {
    appendFileSync(`${folder}/pay`, `${sum}\n`);
    while (!existsSync(`${folder}/go`)) await pause(20);
    return `paid ${sum}`;
  },
  { name: "pay", parameters: z.object({ sum: z.number() }), idempotent: true },
);
const multiply = langchainTool(async ({ a, b }) => [String(a * b), { product: a * b }], {
  name: "multiply",
  description: "Multiplies.",
  schema: z.object({ a: z.number(), b: z.number() }),
  responseFormat: "content_and_artifact",
});
const shelf = new McpServer({ name: "shelf", version: "1.0.0" });
shelf.registerTool(
  "measure",
  { description: "Measures a text.", inputSchema: { text: z.string() } },
  async ({ text }, { sendNotification, _meta }) => {
    const params = { progressToken: _meta.progressToken, progress: 1, total: 2, message: "half" };
    await sendNotification({ method: "notifications/progress", params });
    const structuredContent = { length: text.length };
    return { content: [{ type: "text", text: JSON.stringify(structuredContent) }], structuredContent };
  },
);
const compare = tool(({ works }) => works.map((work) => runSubagent(work, "helper")).join(" / "), {
  name: "compare",
  description: "Has subagents work one after the other.",
  parameters: {
    type: "object",
    properties: { works: { type: "array", items: { type: "string" } } },
    required: ["works"],
  },
});

const tools = [add, whoami, note, recall, study, broken, tell, handOver, compare, book, pay, multiply, shelf];
if (existsSync(`${folder}/late`)) tools.push(tool(() => "better", { name: "late" }));
await serve(tools, { port: Number(port), token, results: `${folder}/results.jsonl` });
