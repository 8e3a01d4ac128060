// A page with the current hook of the field, `@langchain/react`, in a real browser. Usage: node page.mjs BASE_URL CHROMIUM

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { callsTool, modules, task } from "./modules.mjs";

const [apiUrl, executablePath] = process.argv.slice(2);
const key = process.env.LANGGRAPH_API_KEY;
const { build } = modules("esbuild");
const { chromium } = modules("playwright-core");
const here = dirname(fileURLToPath(import.meta.url));
// A model takes its time. One that answers at once is done before the client has made its subscriptions.
const script = (...turns) => JSON.stringify({ script: turns, first_ms: 250 });
const approve = { decisions: [{ type: "approve" }] };

const bundled = await build({
  entryPoints: [join(here, "page/chat.jsx")],
  bundle: true, write: false, format: "esm", jsx: "automatic", logLevel: "error",
  nodePaths: [process.env.ADJUTANT_TEST_NODE_MODULES ?? join(here, "node_modules")],
  define: { "process.env.NODE_ENV": '"production"' },
});
const [{ contents: code }] = bundled.outputFiles;
const pages = createServer(({ url }, response) => {
  const isCode = url === "/chat.js";
  response.setHeader("content-type", isCode ? "text/javascript" : "text/html");
  response.end(isCode ? code : '<!doctype html><meta charset="utf-8"><div id="root"></div><script type="module" src="/chat.js"></script>');
});
await new Promise((resolve) => pages.listen(0, "127.0.0.1", resolve));
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--no-proxy-server", "--disable-extensions"] });

async function opens(query = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (error) => console.error("in the page:", error));
  const search = new URLSearchParams({ api: apiUrl, ...(key && { key }), ...query });
  await page.goto(`http://127.0.0.1:${pages.address().port}/?${search}`);
  await has(page, "main");
  return page;
}

// Elements without a text count as hidden; it is enough that they are there.
const has = (page, selector) => page.waitForSelector(selector, { state: "attached" });
const says = (page, text) => page.evaluate((text) => window.say(text), text);
const isDone = (page) => has(page, 'main[data-loading="false"]');
const shows = (page, text, within = "#messages") =>
  page.waitForFunction(([within, text]) => [...document.querySelectorAll(`${within} p`)].some((p) => p.textContent === text), [within, text]);
const count = (page, selector) => page.locator(selector).count();

async function text(query) {
  const page = await opens(query);
  await says(page, script({ text: "one two three" }));
  await shows(page, "one two three");
  await isDone(page);
  await says(page, "hello");
  await shows(page, "echo: hello");
  await isDone(page);
  assert.equal(await count(page, '#messages p[data-kind="ai"]'), 2);
  await page.close();
}

async function subagents(query) {
  const page = await opens(query);
  const research = (id, what) => script(callsTool(id, "lookup", { query: what }), { text: `it is ${what}` });
  const calls = [task("t1", "researcher", research("c1", "x")), task("t2", "researcher", research("c2", "y"))];
  await says(page, script({ tool_calls: calls.flatMap(({ tool_calls }) => tool_calls) }, { text: "both are known" }));
  await shows(page, "both are known");
  await isDone(page);
  assert.equal(await count(page, '.card[data-name="researcher"]'), 2);
  await page.waitForFunction(() => document.querySelectorAll('.card[data-status="complete"]').length === 2);
  await shows(page, "it is x", ".card");
  await shows(page, "it is y", ".card");
  const cards = await page.locator(".card").allInnerTexts();
  assert.ok(cards.every((card) => card.includes("it is x") !== card.includes("it is y")), cards.join("\n"));
  await page.close();
}

async function questions(query) {
  const mailer = script(callsTool("m1", "send_email", { to: "bob", body: "hi" }), { text: "sent" });
  for (const text of [mailer, script(task("t1", "mailer", mailer), { text: "sent by the mailer" })]) {
    const page = await opens(query);
    await says(page, text);
    await has(page, 'aside[data-tool="send_email"]');
    await isDone(page);
    // The question is still there after a reload.
    await page.reload();
    await has(page, 'aside[data-tool="send_email"]');
    await page.evaluate((response) => window.answer(response), approve);
    await page.waitForFunction(() => document.querySelectorAll("aside").length === 0);
    await page.waitForFunction(() => [...document.querySelectorAll("#messages p")].at(-1)?.textContent.startsWith("sent"));
    await isDone(page);
    await page.close();
  }
}

async function joining(query) {
  const page = await opens(query);
  const long = "slowly ".repeat(30);
  await says(page, JSON.stringify({ script: [{ text: long }], delay_ms: 100 }));
  await page.waitForFunction(() => [...document.querySelectorAll("#messages p")].at(-1)?.textContent.startsWith("slowly "));
  await page.reload();
  await has(page, 'main[data-loading="true"]');
  await shows(page, long);
  await isDone(page);
  assert.equal(await count(page, '#messages p[data-kind="ai"]'), 1);
  await page.close();
}

async function stopping(query) {
  const page = await opens(query);
  await says(page, JSON.stringify({ script: [{ text: "never ".repeat(500) }], delay_ms: 100 }));
  await page.waitForFunction(() => [...document.querySelectorAll("#messages p")].at(-1)?.textContent.startsWith("never "));
  await page.evaluate(() => window.stop());
  await isDone(page);
  await says(page, "go on");
  await shows(page, "echo: go on");
  await isDone(page);
  await page.close();
}

try {
  // A browser sends no key with a WebSocket.
  for (const transport of key ? ["sse"] : ["sse", "websocket"]) {
    for (const scene of [text, subagents, questions, joining, stopping]) {
      await scene({ transport }).catch((error) => {
        error.message = `${scene.name} over ${transport}: ${error.message}`;
        throw error;
      });
    }
  }
  console.log("the page works");
} finally {
  await browser.close();
  pages.close();
}
