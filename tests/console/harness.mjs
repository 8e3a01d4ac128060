// What every flow through the console needs: a browser with a fresh profile, a page that may not fail unnoticed, and a client
// that prepares what the page shows. Usage of a flow: node FLOW.mjs BASE_URL CHROMIUM [KEY]

import assert from "node:assert/strict";
import { mkdir, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";

import { modules } from "../sdk/js/modules.mjs";

const [base, executablePath, key] = process.argv.slice(2);
const { chromium } = modules("playwright-core");
const FLAGS = [
  "--no-sandbox",
  "--disable-gpu",
  "--disable-quic",
  "--no-first-run",
  "--disable-background-networking",
  "--disable-component-update",
  "--disable-extensions",
  "--disable-sync",
  "--no-proxy-server",
];
const WIDE = { width: 1280, height: 800 };
const NARROW = { width: 360, height: 740 };
const TIMEOUT_MS = 60_000;

export { assert, key };

// What the scripted model plays.
export const script = (...turns) => JSON.stringify({ script: turns });
export const call = (id, name, args) => ({ id, name, args });
export const calls = (...all) => ({ tool_calls: all });
export const task = (id, subagent, description) => call(id, "task", { description, subagent_type: subagent });
export const says = (text, more = {}) => ({ text, ...more });
export const human = (content) => ({ messages: [{ role: "user", content }] });

// Asks the server as any other client does.
export async function ask(method, path, body, as = key) {
  const response = await fetch(base + path, {
    method,
    headers: { "content-type": "application/json", ...(as && { "x-api-key": as }) },
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  const text = await response.text();
  assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
  return text ? JSON.parse(text) : undefined;
}

// Runs an agent on a new thread to its end, and gives the thread.
export async function runs(agent, content, more = {}) {
  const { thread_id } = await ask("POST", "/threads", {});
  await ask("POST", `/threads/${thread_id}/runs/wait`, { assistant_id: agent, input: human(content), ...more });
  return thread_id;
}

// The console in one tab of a browser.
class Console {
  problems = [];
  expected = [];

  constructor(context, page) {
    this.context = context;
    this.page = page;
    page.setDefaultTimeout(TIMEOUT_MS);
    page.on("pageerror", (error) => this.problems.push(`uncaught: ${error.stack ?? error}`));
    page.on("console", (message) => {
      // Failed requests have an entry of their own, which says more.
      if (message.text().startsWith("Failed to load resource")) return;
      if (["error", "warning"].includes(message.type())) this.problems.push(`${message.type()}: ${message.text()}`);
    });
    page.on("response", (response) => {
      const answer = { status: response.status(), path: new URL(response.url()).pathname };
      if (answer.status >= 400 && !this.expected.some((expects) => expects(answer))) {
        this.problems.push(`${answer.status} for ${response.request().method()} ${answer.path}`);
      }
    });
    page.on("requestfailed", (request) => {
      // A page that is left, or a search that is typed on, ends its requests.
      const reason = request.failure()?.errorText ?? "";
      if (reason !== "net::ERR_ABORTED") this.problems.push(`${reason} for ${request.url()}`);
    });
    // Everything comes from the server itself.
    page.on("request", (request) => {
      const { protocol, origin } = new URL(request.url());
      if (!["data:", "blob:"].includes(protocol) && origin !== base) this.problems.push(`a request to ${request.url()}`);
    });
  }

  // Lets answers pass that would be a failure: `({ status, path }) => boolean`.
  expects(answer) {
    this.expected.push(answer);
  }

  // Opens a page of the console by its place in the fragment, and waits until it is drawn.
  async open(place = "/") {
    await this.page.goto(`${base}/#${place}`);
    await this.drawn();
  }

  // Waits until nothing is being loaded.
  async drawn() {
    await this.page.locator("h1, .empty").first().waitFor({ state: "attached" });
    await this.until("everything is loaded", () => document.querySelectorAll(".skeleton").length === 0);
  }

  async until(what, happened, argument) {
    await this.page.waitForFunction(happened, argument).catch((error) => {
      throw new Error(`never: ${what}: ${error.message}`);
    });
  }

  button(name, exact = true) {
    return this.page.getByRole("button", { name, exact });
  }

  link(name, exact = true) {
    return this.page.getByRole("link", { name, exact });
  }

  field(name, exact = true) {
    return this.page.getByLabel(name, { exact });
  }

  async sees(text, within = this.page) {
    await within.getByText(text).first().waitFor();
  }

  async gone(locator) {
    await locator.first().waitFor({ state: "detached" });
  }

  dialog() {
    return this.page.getByRole("dialog");
  }

  // A picture for the documents, if they are wanted.
  async shoot(name) {
    const folder = process.env.ADJUTANT_TEST_SCREENSHOTS;
    if (!folder) return;
    await mkdir(folder, { recursive: true });
    const session = await this.context.newCDPSession(this.page);
    const { data } = await session.send("Page.captureScreenshot", { format: "webp", quality: 82 });
    await session.detach();
    await writeFile(join(folder, `console-${name}.webp`), Buffer.from(data, "base64"));
  }

  async scheme(colorScheme) {
    await this.page.emulateMedia({ colorScheme });
    // Colours may change in steps.
    await this.page.evaluate(async () => {
      for (let frame = 0; frame < 2; frame += 1) await new Promise(requestAnimationFrame);
      const ends = ({ effect }) => effect?.getComputedTiming().endTime !== Infinity;
      await Promise.allSettled(document.getAnimations().filter(ends).map(({ finished }) => finished));
    });
  }

  async narrow() {
    await this.page.setViewportSize(NARROW);
  }

  async wide() {
    await this.page.setViewportSize(WIDE);
  }

  // Nothing of the page sticks out at its side.
  async fits() {
    const over = await this.page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
    if (over <= 0) return;
    const which = await this.page.evaluate(() =>
      [...document.querySelectorAll("main *")]
        .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
        .slice(0, 5)
        .map((element) => element.outerHTML.slice(0, 120)),
    );
    assert.fail(`${this.page.url()} is ${over} pixels too wide: ${which.join("\n")}`);
  }

  // What axe finds wrong with the page as it is.
  async isAccessible() {
    if (!(await this.page.evaluate(() => "axe" in globalThis))) await this.page.evaluate(await axe());
    const violations = await this.page.evaluate(async () => {
      const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"];
      const found = await globalThis.axe.run(document, { resultTypes: ["violations"], runOnly: { type: "tag", values: tags } });
      return found.violations.map(({ id, help, nodes }) => `${id}: ${help}\n${nodes.map(({ html, failureSummary }) => `  ${html}\n  ${failureSummary}`).join("\n")}`);
    });
    if (violations.length > 0) throw new Error(`${this.page.url()}: ${violations.join("\n")}`);
  }
}

let source;
async function axe() {
  source ??= await readFile(modules.resolve("axe-core/axe.min.js"), "utf8");
  return source;
}

// Plays a flow in a browser of its own. The flow fails if anything in the page does.
export async function play(flow, { signedIn = true } = {}) {
  const profile = await mkdtemp(join(tmpdir(), "adjutant-console-"));
  const context = await chromium.launchPersistentContext(profile, { executablePath, headless: true, args: FLAGS, viewport: WIDE, colorScheme: "light", reducedMotion: "reduce" });
  try {
    const page = context.pages()[0] ?? (await context.newPage());
    if (key && signedIn) await page.addInitScript((key) => sessionStorage.setItem("adjutant.api-key", key), key);
    const tab = new Console(context, page);
    try {
      await flow(tab);
      assert.deepEqual(tab.problems, []);
    } catch (error) {
      const shown = await page.evaluate(() => document.body.innerText).catch(() => "");
      console.error(`problems: ${tab.problems.join("\n")}\n${page.url()} shows:\n${shown}`);
      throw error;
    }
  } finally {
    await context.close();
    await rm(profile, { recursive: true, force: true, maxRetries: 3 });
  }
  console.log("the flow is complete");
}
