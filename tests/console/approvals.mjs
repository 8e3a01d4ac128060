// Questions of agents: approved, edited, rejected and answered, in their thread and in the inbox of all threads.

import { ask, assert, call, calls, play, runs, says, script, task } from "./harness.mjs";
import { looks } from "./looks.mjs";

const email = (id, to, body = "hi") => call(id, "send_email", { to, body });
const one = (to) => script(calls(email("m1", to)), says("done"));
const result = async (thread) => {
  const { values } = await ask("GET", `/threads/${thread}/state`);
  return values.messages.filter(({ type }) => type === "tool").map(({ content }) => content);
};

await play(async (tab) => {
  const { page } = tab;
  const cards = page.locator(".interrupt");
  const cardOf = (text) => cards.filter({ hasText: text });
  await tab.open("/approvals");
  await tab.sees("Nothing waits for you");

  const approved = await runs("agent", one("ann"));
  const edited = await runs("agent", one("bert"));
  const rejected = await runs("agent", one("carl"));
  const answered = await runs("deep", one("dora"));
  const nested = await runs("agent", script(calls(task("t1", "mailer", one("emil"))), says("all is done")));
  await tab.open("/approvals");
  await tab.until("five questions", () => document.querySelectorAll(".interrupt").length === 5);
  await page.getByRole("link", { name: /Approvals/ }).getByText("5 waiting").waitFor();
  await cardOf("emil").getByText("main-agent › mailer").waitFor();
  await looks(tab);
  await tab.field("Agent").selectOption("mailer");
  await tab.until("one question", () => document.querySelectorAll(".interrupt").length === 1);
  await tab.field("Agent").selectOption("");

  await cardOf("ann").getByRole("button", { name: "Approve" }).click();
  await tab.gone(cardOf("ann"));

  // The form has the fields of the tool's own schema.
  const card = cardOf("bert");
  await card.getByRole("button", { name: "Edit…" }).click();
  assert.equal(await card.getByLabel("to", { exact: true }).inputValue(), "bert");
  await card.getByLabel("to", { exact: true }).fill("berta");
  await looks(tab);
  await card.getByLabel("body", { exact: true }).fill("hello");
  await card.getByRole("button", { name: "Make the edited call" }).click();
  await tab.gone(cardOf("berta"));

  assert.equal(await cardOf("carl").getByRole("button", { name: "Respond…" }).count(), 0);
  await cardOf("carl").getByRole("button", { name: "Reject…" }).click();
  await cardOf("carl").getByLabel("Reason").fill("Not today.");
  await cardOf("carl").getByRole("button", { name: "Reject the call" }).click();
  await tab.gone(cardOf("carl"));

  await cardOf("dora").getByRole("button", { name: "Respond…" }).click();
  await cardOf("dora").getByLabel("Result of the call").fill("She knows already.");
  await cardOf("dora").getByRole("button", { name: "Send the result" }).click();
  await tab.gone(cardOf("dora"));

  for (const [thread, wanted] of [[approved, /^sent to ann: hi$/], [edited, /sent to berta: hello$/], [rejected, /Not today\./], [answered, /She knows already\./]]) {
    const [run] = await ask("GET", `/threads/${thread}/runs?limit=1`);
    await ask("GET", `/threads/${thread}/runs/${run.run_id}/join`);
    const results = await result(thread);
    assert.ok(results.some((text) => wanted.test(text)), `${wanted} is not in ${JSON.stringify(results)}`);
  }

  // In its thread, the answer goes on where the subagent asked.
  await cardOf("emil").getByRole("link", { name: "Open the thread" }).click();
  await page.locator(".subagent").getByText("waits").waitFor();
  await cards.getByRole("button", { name: "Approve" }).click();
  await page.getByRole("article", { name: "main-agent" }).getByText("all is done", { exact: true }).waitFor();
  await tab.gone(cards);
  await page.getByRole("tab", { name: "Details" }).click();
  await page.locator(".past-question", { hasText: "send_email" }).getByText("approve").waitFor();
  await looks(tab);
  assert.equal((await ask("GET", `/threads/${nested}/interrupts?status=pending`)).interrupts.length, 0);

  // Two calls of one answer get a decision each.
  const both = await runs("deep", script(calls(email("m1", "fred"), email("m2", "gina")), says("both are decided")));
  await tab.open(`/threads/${both}`);
  const actions = cards.locator(".action");
  await actions.filter({ hasText: "gina" }).waitFor();
  await tab.button("2 of 2 undecided").waitFor();
  await actions.filter({ hasText: "fred" }).getByRole("button", { name: "Approve" }).click();
  await actions.filter({ hasText: "gina" }).getByRole("button", { name: "Reject…" }).click();
  await actions.filter({ hasText: "gina" }).getByRole("button", { name: "Reject the call" }).click();
  await tab.button("Send 2 decisions").click();
  await page.getByRole("article").getByText("both are decided", { exact: true }).waitFor();
  assert.ok((await result(both)).some((text) => text === "sent to fred: hi"));
  assert.ok(!(await result(both)).some((text) => text.includes("sent to gina")));

  // What the server refuses stands at the field that is meant.
  const halved = await runs("agent", script(calls(call("m1", "send_email", { to: "hans" })), says("done")));
  const { interrupts } = await ask("GET", `/threads/${halved}/interrupts?status=pending`);
  if (interrupts.length > 0) {
    tab.expects(({ status, path }) => status === 422 && path.endsWith("/resolve"));
    await tab.open(`/threads/${halved}`);
    await cards.getByRole("button", { name: "Edit…" }).click();
    await cards.getByRole("button", { name: "Make the edited call" }).click();
    const body = cards.getByLabel("body", { exact: true });
    await tab.until("the field is wrong", () => document.querySelectorAll('.interrupt [aria-invalid="true"]').length === 1);
    assert.equal(await body.getAttribute("aria-invalid"), "true");
    await cards.getByText("This is needed.").waitFor();
    await tab.isAccessible();
    await body.fill("at last");
    await cards.getByRole("button", { name: "Make the edited call" }).click();
    await tab.gone(cards);
  }

  // An answer that comes too late is told as such.
  const late = await runs("agent", one("ida"));
  await tab.open("/approvals");
  await cardOf("ida").waitFor();
  await page.route("**/interrupts?*", (route) => route.abort("aborted"));
  const { interrupts: [open] } = await ask("GET", `/threads/${late}/interrupts?status=pending`);
  await ask("POST", `/threads/${late}/interrupts/${open.id}/resolve`, { decisions: [{ type: "reject" }] });
  tab.expects(({ status, path }) => status === 409 && path.endsWith("/resolve"));
  await cardOf("ida").getByRole("button", { name: "Approve" }).click();
  await cardOf("ida").getByRole("alert").waitFor();
});
