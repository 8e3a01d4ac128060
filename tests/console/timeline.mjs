// The timeline: checkpoints with what each step has changed, and new runs from an old one.

import { ask, assert, call, calls, human, play, runs, says, script } from "./harness.mjs";
import { looks } from "./looks.mjs";

await play(async (tab) => {
  const { page } = tab;
  const write = (id, content) => calls(call(id, "write_file", { file_path: "/notes.md", content }));
  const edit = calls(call("e1", "edit_file", { file_path: "/notes.md", old_string: "second", new_string: "2nd" }));
  const thread = await runs("planner", script(write("w1", "first\nsecond\nthird\n"), edit, says("written")));
  const checkpoints = (await ask("POST", `/threads/${thread}/history`, { limit: 100 })).length;
  await tab.open(`/threads/${thread}?tab=timeline`);
  const steps = page.locator(".step");
  await tab.until(`${checkpoints} checkpoints`, (wanted) => document.querySelectorAll(".step").length === wanted, checkpoints);
  await tab.sees(`${checkpoints} checkpoints`);

  // The newest is open: the last message is new.
  await steps.first().getByText("messages[5]").waitFor();
  await steps.first().getByText("written").waitFor();
  // The step that edited the file shows its lines.
  await steps.nth(1).getByRole("button").first().click();
  await steps.nth(1).getByRole("button", { name: /files/ }).first().click();
  await steps.nth(1).locator(".diff-removed", { hasText: "second" }).waitFor();
  await steps.nth(1).locator(".diff-added", { hasText: "2nd" }).waitFor();
  assert.equal(await steps.nth(1).locator(".diff-same", { hasText: "third" }).count(), 1);
  await looks(tab);
  await steps.first().getByRole("button", { name: "Whole state" }).click();
  await tab.dialog().getByText("/notes.md").first().waitFor();
  await tab.isAccessible();
  await page.keyboard.press("Escape");

  // A replay begins at the checkpoint, and leaves the old steps on a branch.
  const before = await ask("GET", `/threads/${thread}/state`);
  await steps.nth(1).getByRole("button", { name: "Replay" }).click();
  await tab.until("a new checkpoint", (wanted) => document.querySelectorAll(".step").length > wanted, checkpoints);
  await page.locator(".step-branch").first().waitFor();
  await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status === "idle");
  const after = await ask("GET", `/threads/${thread}/state`);
  assert.notEqual(after.checkpoint_id, before.checkpoint_id);
  assert.equal(after.parent_checkpoint_id, before.parent_checkpoint_id);

  // A fork changes the state of a checkpoint first.
  const first = page.locator(".step").last();
  await first.getByRole("button").first().click();
  await first.getByRole("button", { name: "Fork…" }).click();
  await tab.field("Values").fill("not JSON");
  await tab.dialog().getByRole("button", { name: "Write and run" }).click();
  await tab.dialog().getByText("This is not JSON.").waitFor();
  await tab.isAccessible();
  await tab.field("Values").fill('{"messages": [{"role": "user", "content": "Something else."}]}');
  await tab.dialog().getByRole("button", { name: "Write and run" }).click();
  await tab.gone(tab.dialog());
  await page.getByRole("article").getByText("echo: Something else.", { exact: true }).waitFor();
  await tab.until("the newest is at the top", () => document.querySelector(".step")?.textContent.includes("echo: Something else."));

  // A step that somebody stopped has not failed.
  const { thread_id: stopped } = await ask("POST", "/threads", {});
  const endless = JSON.stringify({ script: [says("never ending ".repeat(200))], delay_ms: 60 });
  const run = await ask("POST", `/threads/${stopped}/runs`, { assistant_id: "planner", input: human(endless) });
  let state;
  do state = await ask("GET", `/threads/${stopped}/state`);
  while (state.next[0] !== "model");
  await ask("POST", `/threads/${stopped}/runs/${run.run_id}/cancel?wait=true`, {});
  await tab.open(`/threads/${stopped}?tab=timeline`);
  await steps.first().getByText("cancelled", { exact: true }).waitFor();
  assert.equal(await page.getByText("failed", { exact: true }).count(), 0);

  // A long history comes by the page.
  const long = await runs("plain", script(...Array.from({ length: 15 }, (_, number) => calls(call(`l${number}`, "lookup", { query: `${number}` }))), says("enough")));
  await tab.open(`/threads/${long}?tab=timeline`);
  await tab.until("a page", () => document.querySelectorAll(".step").length === 20);
  // A run that begins meanwhile makes the console drop its request for older checkpoints. They come all the same.
  let isDropped = false;
  await page.route("**/history", async (route) => {
    if (isDropped || !route.request().postDataJSON().before) return route.continue();
    isDropped = true;
    await ask("POST", `/threads/${long}/runs/wait`, { assistant_id: "plain", input: human("And one more.") });
  });
  await tab.button("Show older checkpoints").click();
  await tab.until("all", () => document.querySelectorAll(".step").length > 30);
  assert.ok(isDropped);
});
