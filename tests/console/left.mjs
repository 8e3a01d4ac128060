// A thread that is longer than its state: the conversation and the timeline say that messages have left the state.

import { ask, assert, play } from "./harness.mjs";

const thread = process.env.THREAD;

await play(async (tab) => {
  const { page } = tab;
  const { values } = await ask("GET", `/threads/${thread}/state`);
  const left = values.summarization.left_messages;
  await tab.open(`/threads/${thread}`);
  await tab.sees(`${left} earlier messages have left the state.`);
  await page.getByRole("article").last().waitFor();
  await tab.isAccessible();

  // The checkpoint at which they left tells them from those that a client has removed.
  await page.locator(".thread-column .notice").getByRole("button", { name: "Timeline" }).click();
  await page.locator(".step").first().waitFor();
  assert.match(page.url(), /tab=timeline/);
  for (const title of await page.locator(".step-title").all()) {
    if ((await title.getAttribute("aria-expanded")) === "false") await title.click();
  }
  await page.locator(".change-left").getByText("left", { exact: true }).first().waitFor();
  assert.equal(await page.locator(".change-removed .change-path", { hasText: /^messages/ }).count(), 0);
});
