// A conversation: tokens by agent, tool calls with their arguments and results, the tree of agents, todos and files.

import { ask, assert, call, calls, play, says, script, task } from "./harness.mjs";
import { looks } from "./looks.mjs";

const slow = (text, more = {}) => JSON.stringify({ script: [...(more.before ?? []), says(text)], delay_ms: 60, first_ms: 250 });

await play(async (tab) => {
  const { page } = tab;
  await tab.open("/chat?assistant=agent");
  await page.getByRole("heading", { name: "Chat with main-agent" }).waitFor();
  await looks(tab);
  const message = page.getByRole("textbox", { name: /^Message to/ });
  const send = async (text) => {
    await message.fill(text);
    await message.press("Enter");
  };

  // Two subagents work at the same time, one of them with one below it.
  const lookup = calls(call("l1", "lookup", { query: "rivers" }));
  const first = slow("the first finding is long enough to be seen while it is said ".repeat(3), { before: [lookup] });
  const second = slow("the second finding is long enough to be seen while it is said ".repeat(3));
  await send(JSON.stringify({ script: [{ ...calls(task("t1", "researcher", first), task("t2", "researcher", second)), text: "I ask two." }, says("**Both** are known.")], first_ms: 250 }));
  const subagents = page.locator(".subagent");
  await tab.until("two subagents", () => document.querySelectorAll(".subagent").length === 2);
  // Each shows its own words while it says them, and the tree shows both at work.
  const tails = page.locator(".subagent-tail");
  await tails.nth(0).getByText("the first finding").waitFor();
  await tails.nth(1).getByText("the second finding").waitFor();
  await page.locator('.agent-tree [data-status="running"]').nth(2).waitFor();
  await tab.sees("Both are known.");
  assert.equal(await page.locator(".message strong", { hasText: "Both" }).count(), 1);
  await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status === "idle");
  assert.deepEqual(await subagents.locator(".status").allInnerTexts(), ["completed", "completed"]);

  // The call of a subagent, with its input and its result.
  await subagents.nth(0).getByRole("button").first().click();
  const inner = subagents.nth(0).locator(".call");
  await inner.getByRole("button").first().click();
  await inner.getByRole("region", { name: "Arguments of lookup" }).getByText("rivers").waitFor();
  await inner.getByRole("region", { name: "Result of lookup" }).getByText("found rivers").waitFor();
  assert.match(await subagents.nth(0).innerText(), /the first finding/);
  assert.doesNotMatch(await subagents.nth(0).innerText(), /the second finding/);
  await looks(tab);

  // The tree: state, usage and time of each agent; one of them opened.
  const tree = page.locator(".agent-tree");
  assert.deepEqual(await tree.locator("[data-agent-row]").evaluateAll((all) => all.map((row) => row.dataset.agentRow)), ["main-agent", "researcher", "researcher"]);
  await tab.until("all are done", () => [...document.querySelectorAll(".agent-tree [data-status]")].every((status) => status.dataset.status === "success"));
  assert.match(await tree.locator("[data-agent-row]").nth(1).innerText(), /tokens/);
  await tree.locator("[data-agent-row]").nth(2).click();
  await tab.dialog().getByText("the second finding").first().waitFor();
  await tab.isAccessible();
  await page.keyboard.press("Escape");

  // The same after a reload, from what the server keeps.
  await page.reload();
  await tab.sees("Both are known.");
  await tab.until("two subagents", () => document.querySelectorAll(".subagent").length === 2);
  await tails.nth(1).getByText("the second finding").waitFor();

  // In the middle of an answer, too, and it can be stopped.
  await send(JSON.stringify({ script: [says("never ending ".repeat(200))], delay_ms: 60, first_ms: 250 }));
  await page.locator(".streaming").getByText("never ending").waitFor();
  await page.reload();
  await page.locator(".streaming").getByText("never ending").waitFor();
  await tab.button("Stop").click();
  await tab.sees("The run was stopped.");
  await page.getByRole("article", { name: "main-agent" }).last().getByText("never ending").waitFor();

  // So can what waits behind it: here in the page, and after a reload at the server. These answers last for minutes, unless
  // their runs are cancelled.
  const runs = `/threads/${new URLSearchParams(new URL(page.url()).hash.split("?")[1]).get("thread")}/runs`;
  const unfinished = async () => (await ask("GET", `${runs}?limit=100`)).filter((run) => ["pending", "running"].includes(run.status));
  const endless = (text) => JSON.stringify({ script: [says(`${text} `.repeat(1_000))], delay_ms: 60 });
  for (const [text, isReloaded] of [["on and on", false], ["over and over", true]]) {
    await send(endless(text));
    const streaming = page.locator(".streaming").getByText(text);
    await streaming.waitFor();
    if (isReloaded) {
      await page.reload();
      await streaming.waitFor();
    }
    await send(`not after ${text}`);
    await tab.sees("1 queued.");
    await tab.button("Stop").click();
    await tab.gone(page.locator(".composer-note"));
    while ((await unfinished()).length > 0);
    await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status !== "busy");
  }
  assert.equal(await page.getByText(/^echo: not after/).count(), 0);

  // Otherwise a message in the meantime waits for its turn.
  await send(endless("one after the other"));
  await page.locator(".streaming").getByText("one after the other").waitFor();
  await send("the next one");
  await tab.sees("1 queued.");
  const [working] = await unfinished();
  await ask("POST", `${runs}/${working.run_id}/cancel`, {});
  await tab.sees("echo: the next one");

  // Several do so in their order, also after a reload.
  await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status === "idle");
  await send(endless("again and again"));
  await page.locator(".streaming").getByText("again and again").waitFor();
  await send("the first after it");
  await send("the second after it");
  await tab.sees("2 queued.");
  await page.reload();
  await page.locator(".streaming").getByText("again and again").waitFor();
  await tab.sees("2 queued.");
  const [stuck] = (await unfinished()).filter((run) => run.status === "running");
  await ask("POST", `${runs}/${stuck.run_id}/cancel`, {});
  await tab.sees("echo: the first after it");
  await tab.sees("echo: the second after it");
  await tab.until("nothing is kept", () => !Object.keys(sessionStorage).some((key) => key.startsWith("adjutant.queued.")));

  // A failed run says why, and can be tried again.
  await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status === "idle");
  await send(script({ error: 400 }));
  await tab.sees("The last run has failed: ModelRefusedError");
  await tab.button("Try again").waitFor();
  await tab.isAccessible();

  // Todos and files of an agent that plans; a long result is cut until it is asked for.
  await tab.open("/chat?assistant=planner");
  const todos = [
    { content: "Read the sources", status: "completed" },
    { content: "Write it down", status: "in_progress" },
  ];
  const notes = call("w1", "write_file", { file_path: "/notes.md", content: "# Notes\nOtters swim." });
  await send(script(calls(call("p1", "write_todos", { todos }), notes), says("planned")));
  await page.getByRole("article").getByText("planned", { exact: true }).waitFor();
  await page.getByRole("tab", { name: "State" }).click();
  await page.locator(".thread-panel .todo-completed", { hasText: "Read the sources" }).waitFor();
  await page.locator(".thread-panel .todo-in_progress", { hasText: "Write it down" }).waitFor();
  await looks(tab);
  await page.locator(".thread-panel .file", { hasText: "/notes.md" }).click();
  await tab.dialog().getByText("Otters swim.").waitFor();
  await page.keyboard.press("Escape");

  await tab.open("/chat?assistant=plain");
  await send(script(calls(call("b1", "big", { chars: 30_000 })), says("that was long")));
  await page.getByRole("article").getByText("that was long", { exact: true }).waitFor();
  await page.locator(".call").getByRole("button").first().click();
  await tab.button("Show all", false).click();
  await tab.until("all of it", () => [...document.querySelectorAll(".call pre")].some((pre) => pre.textContent.length >= 20_000));
});
