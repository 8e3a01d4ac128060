// Threads are found by words, ids, metadata, status and time, and opened by the keyboard.

import { ask, assert, call, calls, human, play, runs, says, script } from "./harness.mjs";
import { looks } from "./looks.mjs";

await play(async (tab) => {
  const { page } = tab;
  const rows = page.getByRole("list", { name: "Threads" }).getByRole("listitem");
  const counts = (wanted) => tab.until(`${wanted} threads`, (wanted) => document.querySelectorAll(".thread-row").length === wanted, wanted);

  await tab.open("/");
  await tab.sees("No threads yet");
  await tab.button("Start a chat").waitFor();
  await looks(tab);

  const otters = await runs("plain", "Tell me about otters.");
  const waiting = await runs("agent", script(calls(call("c1", "send_email", { to: "bob", body: "hi" })), says("sent")));
  await ask("PATCH", `/threads/${otters}`, { metadata: { team: "rivers" } });
  const { thread_id: empty } = await ask("POST", "/threads", {});
  await runs("plain", script({ error: 400 }), { on_error: undefined }).catch(() => undefined);

  await tab.open("/");
  await counts(4);
  await rows.filter({ hasText: "Empty thread" }).waitFor();
  await rows.filter({ hasText: "ModelRefusedError" }).waitFor();
  await rows.filter({ hasText: "1 question" }).waitFor();
  await looks(tab);

  // By words of the messages, by an id, by metadata.
  const search = tab.field("Search threads");
  await search.fill("OTTERS echo");
  await counts(1);
  assert.match(await rows.first().innerText(), /Tell me about otters/);
  await search.fill(empty);
  await counts(1);
  await search.fill("team:rivers");
  await counts(1);
  assert.match(await rows.first().innerText(), /Tell me about otters/);
  await search.fill("nothing like that");
  await tab.sees("No thread matches");
  await tab.button("Clear the search").click();
  await counts(4);

  // By status and by time; the address says what is shown.
  await tab.field("Status").selectOption("interrupted");
  await counts(1);
  assert.match(page.url(), /status=interrupted/);
  await page.reload();
  await counts(1);
  await tab.field("Status").selectOption("");
  await tab.field("Time").selectOption("hour");
  await counts(4);
  await tab.field("Time").selectOption("");

  // A list that is longer than a page.
  await Promise.all(Array.from({ length: 24 }, (_, number) => ask("POST", "/threads", { metadata: { number } })));
  await tab.open("/");
  await counts(25);
  await tab.sees("1–25 of 28");
  await tab.button("Next").click();
  await counts(3);
  await tab.button("Previous").click();
  await counts(25);

  // By the keyboard: search, next, open.
  await page.locator("h1").click();
  await page.keyboard.press("/");
  await search.and(page.locator(":focus")).waitFor();
  await search.fill("otters");
  await counts(1);
  await page.locator("h1").click();
  await page.keyboard.press("j");
  await page.locator(".thread-link:focus").waitFor();
  await page.keyboard.press("Enter");
  await page.getByRole("heading", { name: "Tell me about otters." }).waitFor();
  await page.keyboard.press("g");
  await page.keyboard.press("i");
  await page.getByRole("heading", { name: "Approvals" }).waitFor();
  await page.keyboard.press("?");
  await tab.dialog().getByText("Show this list").waitFor();
  await tab.isAccessible();
  await page.keyboard.press("Escape");
  await tab.gone(tab.dialog());

  // A run that another client starts on an open thread is followed.
  await tab.open(`/threads/${otters}`);
  await tab.sees("echo: Tell me about otters.");
  await ask("POST", `/threads/${otters}/runs`, { assistant_id: "plain", input: human(script(says("slowly ".repeat(40), { delay_ms: 100 }))) });
  await page.locator(".streaming").waitFor();
  await tab.button("Stop").click();
  await tab.sees("The run was stopped.");

  // What is not there, and what is deleted.
  tab.expects(({ status, path }) => status === 404 && path.startsWith("/threads/"));
  await tab.open("/threads/0199f7a8-0000-7000-8000-000000000001");
  await tab.sees("There is no such thread");
  await tab.open(`/threads/${waiting}?tab=details`);
  await tab.button("Delete…").click();
  await tab.isAccessible();
  await tab.dialog().getByRole("button", { name: "Delete the thread" }).click();
  await page.getByRole("heading", { name: "Threads" }).waitFor();
  const left = await ask("POST", "/threads/search", { ids: [waiting] });
  assert.deepEqual(left, []);
});
