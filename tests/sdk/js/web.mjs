// Plays the pages of examples/web in a real browser. Usage: node web.mjs BASE_URL CHROMIUM [NAME…]

import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createServer, request } from "node:http";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { callsTool, modules, task } from "./modules.mjs";

const [server, executablePath, ...chosen] = process.argv.slice(2);
const key = process.env.LANGGRAPH_API_KEY;
const { chromium } = modules("playwright-core");
const here = dirname(fileURLToPath(import.meta.url));
const examples = join(here, "../../../examples/web");
const nodePaths = [process.env.ADJUTANT_TEST_NODE_MODULES ?? join(here, "node_modules")];
// A model takes its time. One that answers at once is done before the client has made its subscriptions.
const script = (...turns) => JSON.stringify({ script: turns, first_ms: 250 });
const slowly = (text, delay_ms = 60) => JSON.stringify({ script: [{ text }], delay_ms });
const mail = callsTool("m1", "send_email", { to: "bob", body: "hi" });

// The pages, each as a static server has it after `npm run build`.
async function bundle(folder, entry, options) {
  const { build } = modules("esbuild");
  const bundled = await build({
    entryPoints: [join(examples, folder, "src", entry)], bundle: true, write: false, format: "esm", jsx: "automatic", logLevel: "error",
    nodePaths, define: { "process.env.NODE_ENV": '"production"' }, ...options,
  });
  return bundled.outputFiles[0].contents;
}
const bundles = {
  "/react/dist/main.js": () => bundle("react", "main.jsx"),
  "/svelte/dist/main.js": async () => {
    const { svelte } = await import(join(examples, "svelte/build.mjs"));
    return bundle("svelte", "main.js", { plugins: [svelte(modules("svelte/compiler"))], conditions: ["svelte", "browser"] });
  },
};
// Pages are opened and loaded anew many times.
const built = {};
const bundleOf = (path) => (bundles[path] ? (built[path] ??= bundles[path]()) : undefined);
const types = { html: "text/html", css: "text/css", js: "text/javascript", mjs: "text/javascript" };
async function serve({ url }, response) {
  const path = new URL(url, "http://x").pathname;
  try {
    const content = path === "/empty" ? "<!doctype html>" : await (bundleOf(path) ?? readFile(join(examples, path)));
    response.setHeader("content-type", types[path.split(".").at(-1)] ?? "text/html");
    response.end(content);
  } catch (error) {
    if (!path.endsWith("favicon.ico")) console.error(`${path}:`, error);
    response.writeHead(404).end();
  }
}

// A network between page and server: bodies arrive byte by byte, and connections break off after so many bytes.
class Network {
  cuts = [];
  opened = [];
  streams = new Set();

  constructor() {
    this.http = createServer((incoming, outgoing) => {
      const headers = { ...incoming.headers, host: new URL(server).host };
      this.opened.push({ method: incoming.method, path: incoming.url, last: incoming.headers["last-event-id"] });
      const onward = request(server + incoming.url, { method: incoming.method, headers }, (answer) => {
        outgoing.writeHead(answer.statusCode, answer.headers);
        outgoing.flushHeaders();
        const isStream = answer.headers["content-type"]?.startsWith("text/event-stream");
        if (isStream) this.streams.add(outgoing.socket);
        let left = (isStream && this.cuts.shift()) || Infinity;
        answer.on("data", (bytes) => {
          for (const byte of isStream ? bytes : [bytes]) {
            if (left === 0) continue;
            outgoing.write(isStream ? Buffer.of(byte) : byte);
            left -= 1;
            // What was sent arrives; the end of the body does not.
            if (left === 0) outgoing.socket.end();
          }
        });
        answer.on("end", () => outgoing.end());
        answer.on("error", () => outgoing.destroy());
      });
      outgoing.on("close", () => onward.destroy());
      onward.on("error", () => outgoing.destroy());
      incoming.pipe(onward);
    });
  }

  // Breaks all streams off.
  cut() {
    for (const socket of this.streams) socket.end();
    this.streams.clear();
  }
}

const listen = (http) => new Promise((resolve) => {
  http.listen(0, "127.0.0.1", () => resolve(`http://127.0.0.1:${http.address().port}`));
});
const network = new Network();
const throughNetwork = await listen(network.http);
const pagesServer = createServer(serve);
const pages = await listen(pagesServer);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", "--no-proxy-server", "--disable-extensions"] });

async function opens(name, api = server) {
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  page.on("pageerror", (error) => console.error(`in the page ${name}:`, error));
  await page.goto(`${pages}/${name}/index.html?${new URLSearchParams({ api, ...(key && { key }) })}`);
  await page.waitForSelector(send);
  return page;
}
const send = 'button:text-is("Send"):enabled';
async function says(page, text) {
  await page.fill("input", text);
  await page.click(send);
}
// A paragraph with exactly this text, in how the page shows it.
const shows = (page, text, within = "main") => page.waitForFunction(
  ([within, text]) => [...document.querySelectorAll(`${within} p`)].some((line) => line.textContent === text), [within, text],
).catch(async (error) => {
  throw new Error(`"${text}" in ${within} is not in ${await page.innerHTML("body")}`, { cause: error });
});
const beginsToShow = (page, text) => page.waitForFunction(
  (text) => [...document.querySelectorAll("main p")].at(-1)?.textContent.startsWith(text), text,
);
const count = (page, text) => page.evaluate((text) => [...document.querySelectorAll("main p")].filter((line) => line.textContent.endsWith(text)).length, text);

// How the pages differ: the plain one names who speaks.
const looks = {
  plain: { agent: "main-agent: ", of: (name, text) => ["main", `${name}: ${text}`] },
  react: { agent: "", of: (name, text) => [`section[data-agent="${name}"]`, text] },
  svelte: { agent: "", of: (name, text) => [`section[data-agent="${name}"]`, text] },
};

async function answers(name) {
  const page = await opens(name);
  await says(page, script({ text: "one two three" }));
  await shows(page, `${looks[name].agent}one two three`);
  await page.waitForSelector(send);
  await says(page, "hello");
  await shows(page, `${looks[name].agent}echo: hello`);
  assert.equal(await count(page, "one two three"), 1);
  await page.close();
}

async function subagents(name) {
  const page = await opens(name);
  const research = (id, what) => script(callsTool(id, "lookup", { query: what }), { text: `it is ${what}` });
  const calls = [task("t1", "researcher", research("c1", "x")), task("t2", "researcher", research("c2", "y"))];
  await says(page, script({ tool_calls: calls.flatMap(({ tool_calls }) => tool_calls) }, { text: "both are known" }));
  await shows(page, `${looks[name].agent}both are known`);
  for (const what of ["x", "y"]) {
    const [within, text] = looks[name].of("researcher", `it is ${what}`);
    await shows(page, text, within);
  }
  if (name !== "plain") await page.waitForFunction(() => document.querySelectorAll('[data-tool="lookup"][data-status="finished"]').length === 2);
  await page.close();
}

async function approvals(name) {
  for (const [button, end] of [["approve", "sent"], ["reject", "then not"]]) {
    const page = await opens(name);
    await says(page, script(task("t1", "mailer", script(mail, { text: end })), { text: `done: ${end}` }));
    await page.waitForSelector("fieldset");
    assert.match(await page.innerText("fieldset"), /send_email/);
    // The question is still there after a reload, and the page asks it once.
    await page.reload();
    await page.waitForFunction(() => document.querySelectorAll("fieldset").length === 1);
    await page.click(`fieldset button:text-is("${name === "plain" ? button : button[0].toUpperCase() + button.slice(1)}")`);
    await shows(page, `${looks[name].agent}done: ${end}`);
    await page.waitForFunction(() => document.querySelectorAll("fieldset").length === 0);
    await page.close();
  }
}

async function reloads(name) {
  const page = await opens(name);
  const long = "step by step ".repeat(12);
  await says(page, slowly(long, 100));
  await beginsToShow(page, `${looks[name].agent}step by`);
  await page.reload();
  await shows(page, `${looks[name].agent}${long}`);
  assert.equal(await count(page, long), 1);
  await page.waitForSelector(send);
  await page.reload();
  await shows(page, `${looks[name].agent}${long}`);
  assert.equal(await count(page, long), 1);
  await page.close();
}

async function stops(name) {
  const page = await opens(name);
  await says(page, slowly("never ".repeat(500), 100));
  await beginsToShow(page, `${looks[name].agent}never`);
  await page.click('button:text-is("Stop")');
  await page.waitForSelector(send);
  await page.waitForFunction(() => document.querySelector("main").ariaBusy !== "true");
  await says(page, "go on");
  await shows(page, `${looks[name].agent}echo: go on`);
  await page.close();
}

// The plain page over a network that breaks off, at first before it has an event, and then within events and characters.
async function survivesABadNetwork(name) {
  const page = await opens(name, throughNetwork);
  const text = "Grüße 👩‍🚀 – 你好 ".repeat(30);
  network.cuts = [5];
  const before = network.opened.length;
  await says(page, slowly(text, 60));
  await beginsToShow(page, `${looks[name].agent}Grüße 👩‍🚀 –`);
  network.cuts = [2500, 3, 1801];
  network.cut();
  await shows(page, `${looks[name].agent}${text}`);
  await page.waitForSelector(send);
  assert.equal(await count(page, text), 1);
  const streams = network.opened.slice(before).filter(({ method, path }) => method !== "OPTIONS" && path.endsWith("/stream"));
  assert.deepEqual(streams.map(({ method }) => method), ["POST", "GET", "GET", "GET", "GET", "GET"]);
  assert.deepEqual(streams.map(({ last }) => last && last !== "-1"), [undefined, false, true, true, true, true]);
  await page.close();
}

// The parts of the guide, in a page.
async function guide() {
  const page = await browser.newPage();
  page.setDefaultTimeout(30_000);
  await page.goto(`${pages}/empty`);
  const inPage = (act, argument) => page.evaluate(async ([code, argument]) => {
    const stream = await import("/guide/stream.mjs");
    return (0, eval)(`(${code})`)(stream, argument);
  }, [act.toString(), { server, throughNetwork, key, ...argument }]);

  // What may be in a stream, in all ways in which it can be cut.
  const read = await inPage(async ({ events }) => {
    const text = ': heartbeat\r\n\r\nevent: values|tools:1\r\ndata: {"a":\r\ndata: "ü👩‍🚀"}\r\nid: 7-0\r\n\r\nevent:x\ndata:1\n\ndata: 2\r\rdata: cut';
    const bytes = new TextEncoder().encode(text);
    const all = [];
    for (let size = 1; size <= bytes.length; size += 1) {
      const pieces = Array.from({ length: Math.ceil(bytes.length / size) }, (_, at) => bytes.slice(at * size, (at + 1) * size));
      const body = new ReadableStream({ pull: (it) => (pieces.length ? it.enqueue(pieces.shift()) : it.close()) });
      const read = [];
      for await (const event of events(body)) read.push(event);
      all.push(JSON.stringify(read));
    }
    return [...new Set(all)];
  });
  const expected = [{ event: "values|tools:1", data: '{"a":\n"ü👩‍🚀"}', id: "7-0" }, { event: "x", data: "1" }, { data: "2" }];
  assert.deepEqual(read.map(JSON.parse), [expected]);
  const name = await inPage(({ nameOf }) => nameOf("messages|tools:1|tools:2"));
  assert.deepEqual(name, { mode: "messages", namespace: ["tools:1", "tools:2"] });

  // A run with a call, a subagent and an approval, over a network that breaks off.
  network.cuts = [900, 3000];
  const ask = script(callsTool("c1", "lookup", { query: "wide fields" }), task("t1", "mailer", script(mail, { text: "sent" })), { text: "done" });
  const flow = await inPage(async ({ Server, Messages, argumentsOf, decide }, { throughNetwork, key, ask }) => {
    const server = new Server(throughNetwork, { headers: key && { "x-api-key": key } });
    const { thread_id: thread } = await (await server.call("/threads", { body: {} })).json();
    const messages = new Messages();
    const agents = new Set();
    const partial = new Set();
    const read = async (body) => {
      for await (const { mode, namespace, data } of server.run(thread, { assistant_id: "agent", ...body })) {
        if (mode !== "messages") continue;
        const message = messages.add(data);
        agents.add(`${data[1].lc_agent_name} ${namespace.length}`);
        for (const call of message.calls ?? []) partial.add(typeof argumentsOf(call));
      }
    };
    await read({ input: { messages: [{ role: "user", content: ask }] } });
    const { interrupts } = await (await server.call(`/threads/${thread}/interrupts?status=pending`)).json();
    await read({ command: { resume: decide(interrupts[0], "approve") } });
    const state = await (await server.call(`/threads/${thread}/state`)).json();
    const calls = [...messages.byId.values()].flatMap(({ calls }) => calls ?? []).map((call) => [call.name, argumentsOf(call)]);
    // A replay on top of the state changes nothing.
    const again = new Messages();
    again.addState(state.values.messages);
    const known = JSON.stringify([...again.byId.values()]);
    const [newest] = await (await server.call(`/threads/${thread}/runs?limit=1`)).json();
    for await (const { mode, namespace, data } of server.join(`/threads/${thread}/runs/${newest.run_id}`)) {
      if (mode === "messages" && namespace.length === 0) again.add(data);
    }
    return {
      agents: [...agents], calls, partial: [...partial], isSame: known === JSON.stringify([...again.byId.values()]),
      texts: [...messages.byId.values()].map(({ text }) => text), whole: [...messages.byId.values()].every(({ isWhole }) => isWhole),
      model: [...messages.byId.values()].find(({ type }) => type === "ai").metadata.ls_model_name,
      ids: state.values.messages.filter(({ type }) => type === "ai").every(({ id }) => messages.byId.has(id)),
    };
  }, { ask });
  assert.deepEqual(network.cuts, []);
  assert.deepEqual(flow.agents, ["main-agent 0", "mailer 1"]);
  assert.deepEqual(flow.calls.map(([name]) => name), ["lookup", "task", "send_email"]);
  assert.deepEqual(flow.calls[0][1], { query: "wide fields" });
  assert.ok(flow.texts.includes("sent") && flow.texts.includes("done"), flow.texts.join());
  assert.deepEqual([flow.whole, flow.ids, flow.isSame, typeof flow.model], [true, true, true, "string"]);

  // Leaving does not stop a run; cancelling does. A connection on which nothing arrives is given up and opened anew.
  const ends = await inPage(async ({ Server }, { server: url, key, text }) => {
    const server = new Server(url, { headers: key && { "x-api-key": key } });
    const { thread_id: thread } = await (await server.call("/threads", { body: {} })).json();
    const leaving = new AbortController();
    let path;
    for await (const event of server.run(thread, { assistant_id: "agent", input: { messages: [{ role: "user", content: text }] } }, leaving.signal)) {
      path = event.path;
      if (event.mode === "messages") leaving.abort();
    }
    const status = async () => (await (await server.call(path)).json()).status;
    const left = await status();
    await server.cancel(path);
    await (await server.call(`${path}/join`)).text();
    const impatient = new Server(url, { headers: key && { "x-api-key": key }, silence: 60_000 });
    let silent;
    const body = new ReadableStream({ start: (controller) => { silent = controller; } });
    impatient.silence = 50;
    const given = await new Promise((resolve) => {
      impatient.watched(body, () => resolve("given up")).pipeTo(new WritableStream()).catch(() => {});
    });
    silent.close();
    return [left, await status(), given];
  }, { text: slowly("never ".repeat(500), 100) });
  assert.deepEqual(ends, ["running", "interrupted", "given up"]);

  if (key) {
    const heard = await inPage(async ({ Server }, { server: url, key, text }) => {
      const server = new Server(url, { headers: { "x-api-key": key } });
      const { thread_id: thread } = await (await server.call("/threads", { body: {} })).json();
      const body = { assistant_id: "agent", stream_mode: ["messages-tuple"], input: { messages: [{ role: "user", content: text }] } };
      const run = await (await server.call(`/threads/${thread}/runs`, { body })).json();
      let heard = "";
      const source = await server.source(`/threads/${thread}/runs/${run.run_id}`, ([piece]) => { heard += piece.content; });
      while (!heard.endsWith("end")) await new Promise((resolve) => { setTimeout(resolve, 10); });
      source.close();
      return heard;
    }, { text: slowly("on and on to the end", 150) });
    assert.ok("on and on to the end".endsWith(heard), heard);
  }
  await page.close();
}

const scenes = {
  plain: [answers, subagents, approvals, reloads, stops, survivesABadNetwork],
  react: [answers, subagents, approvals, reloads, stops],
  svelte: [answers, subagents, approvals, reloads, stops],
  guide: [guide],
};
try {
  for (const [name, all] of Object.entries(scenes).filter(([name]) => chosen.length === 0 || chosen.includes(name))) {
    for (const scene of all) {
      await scene(name).catch((error) => {
        error.message = `${name}, ${scene.name}: ${error.message}`;
        throw error;
      });
    }
  }
  console.log("the pages work");
} finally {
  await browser.close();
  pagesServer.close();
  network.http.close();
}
process.exit(0);
