// A page that shows a long thread is loaded again: messages that have left the state of the thread do not come back, neither
// when the user sends another message nor while a run is at work. Usage: node long_threads.mjs BASE_URL AGENT

import assert from "node:assert/strict";

import { callsTool, human, modules } from "./modules.mjs";

const [apiUrl, assistantId] = process.argv.slice(2);
const long = "so it goes ".repeat(200);

async function until(holds, what) {
  const end = Date.now() + 20_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, what);
    await new Promise((wait) => setTimeout(wait, 20));
  }
}

// A run in which messages leave the state, and whose model takes its time.
const steps = Array.from({ length: 20 }, (_, step) => callsTool(`c${step}`, "big", { chars: 4000 }));
const manySteps = JSON.stringify({ script: [...steps, { text: "all found" }], first_ms: 150 });

for (const name of ["sdk-1-11", "sdk-1-15"]) {
  const { Client } = modules(name);
  const { StreamController } = modules(`${name}/stream`);
  const client = new Client({ apiUrl, apiKey: null });
  const { thread_id: threadId } = await client.threads.create();

  const state = async () => (await client.threads.getState(threadId)).values;
  const ids = ({ messages }) => messages.map(({ id }) => id);
  const left = (values) => values.summarization?.left_messages ?? 0;

  // Returns the page when it shows the state.
  async function load() {
    const page = new StreamController({ client, assistantId, threadId });
    await page.hydrationPromise;
    return page;
  }
  async function showsTheState(page, when) {
    // What is wrong comes soon after.
    await new Promise((wait) => setTimeout(wait, 300));
    assert.deepEqual(ids(page.rootStore.getSnapshot()), ids(await state()), `${name}: ${when}`);
  }

  for (let turn = 0; turn < 20; turn += 1) {
    await client.runs.wait(threadId, assistantId, { input: human(`turn ${turn}: ${long}`) });
  }
  assert.ok(left(await state()) > 0, "some have left");

  const idle = await load();
  await showsTheState(idle, "a page of an idle thread");
  await idle.submit(human("one more"));
  await until(() => !idle.rootStore.getSnapshot().isLoading, "the run ends");
  await showsTheState(idle, "after a message");
  await idle.submit(human("and one more"));
  await until(() => !idle.rootStore.getSnapshot().isLoading, "the run ends");
  await showsTheState(idle, "after another message");
  await idle.dispose();

  const before = left(await state());
  const run = await client.runs.create(threadId, assistantId, { input: human(manySteps) });
  await until(async () => left(await state()) !== before, "some leave in the run");
  const during = await load();
  await until(() => during.rootStore.getSnapshot().isLoading, "the page sees the run");
  await client.runs.join(threadId, run.run_id);
  await until(() => !during.rootStore.getSnapshot().isLoading, "the run ends");
  await showsTheState(during, "a page that was loaded while a run was at work");
  await during.submit(human("thank you"));
  await until(() => !during.rootStore.getSnapshot().isLoading, "the run ends");
  await showsTheState(during, "after a message on that page");
  await during.dispose();
}
console.log("the flow is complete");
process.exit(0);
