// Decisions for the rest of a thread: given in the form of an approval, listed and revoked in the details of the thread. Questions
// to the user, and calls that are asked about one by one, are answered in their forms.

import { ask, assert, call, calls, human, play, runs, says, script } from "./harness.mjs";
import { looks } from "./looks.mjs";

const email = (id, to) => call(id, "send_email", { to, body: "hi" });
const one = (id, to) => script(calls(email(id, to)), says(`done with ${to}`));
const approves = { model: "scripted:lab", system_prompt: "You write.", tools: ["send_email"], interrupt_on: { send_email: true } };
const questions = [
  { question: "Which colour?", type: "multiple_choice", allow_other: false, choices: [{ value: "red" }, { value: "blue", description: "It is calm." }] },
  { question: "Which sizes?", type: "multi_select", choices: [{ value: "small" }, { value: "large" }] },
  { question: "Why?", type: "text", required: false },
];
const pending = async (thread) => (await ask("GET", `/threads/${thread}/interrupts?status=pending`)).interrupts;
const remembered = async (thread) => (await ask("GET", `/threads/${thread}/approvals`)).approvals;
const results = async (thread) => {
  const { values } = await ask("GET", `/threads/${thread}/state`);
  return values.messages.filter(({ type }) => type === "tool").map(({ content }) => content);
};

await ask("PUT", "/agents/curious", { name: "curious", model: "scripted:lab", system_prompt: "You ask.", ask_user: true });
await ask("PUT", "/agents/single", { ...approves, name: "single", interrupt_mode: "per_call" });
await ask("PUT", "/agents/strict", { ...approves, name: "strict", interrupt_on: { send_email: { allowed_decisions: ["approve", "reject"], allowed_scopes: ["once"] } } });

await play(async (tab) => {
  const { page } = tab;
  const cards = page.locator(".interrupt");
  const always = "Decide so about send_email for the rest of this thread";
  const same = "Only about calls with the same arguments";
  const list = page.getByRole("region", { name: "Decisions for the rest of the thread" });
  const speaks = (name, text) => page.getByRole("article", { name }).getByText(text, { exact: true }).waitFor();

  // An approval for calls with the same arguments.
  const thread = await runs("agent", one("m1", "ann"));
  const goesOn = (text) => ask("POST", `/threads/${thread}/runs/wait`, { assistant_id: "agent", input: human(text) });
  await tab.open(`/threads/${thread}?tab=details`);
  await list.getByText("There are none").waitFor();
  assert.equal(await cards.getByLabel(same).count(), 0);
  await cards.getByLabel(always).check();
  await cards.getByLabel(same).check();
  await looks(tab);
  await cards.getByRole("button", { name: "Approve" }).click();
  await speaks("main-agent", "done with ann");
  const decisions = list.getByRole("listitem");
  await decisions.getByText("Always approved").waitFor();
  await decisions.getByText('to equals "ann"').waitFor();
  await decisions.getByText("main-agent").waitFor();
  await goesOn(one("m2", "ann"));
  assert.deepEqual(await pending(thread), []);

  // A rejection of all calls, with its reason.
  await goesOn(one("m3", "bert"));
  await cards.getByLabel(always).check();
  await cards.getByRole("button", { name: "Reject…" }).click();
  await cards.getByLabel("Reason").fill("No mails today.");
  await cards.getByRole("button", { name: "Reject the call" }).click();
  await speaks("main-agent", "done with bert");
  const rejection = decisions.filter({ hasText: "Always rejected" });
  await rejection.getByText("All calls").waitFor();
  await rejection.getByText("No mails today.").waitFor();
  assert.deepEqual((await remembered(thread)).map(({ decision }) => decision), ["approve", "reject"]);
  await looks(tab);
  await goesOn(one("m4", "carl"));
  assert.deepEqual(await pending(thread), []);

  // What is revoked is asked about again.
  await rejection.getByRole("button", { name: "Revoke the decision about send_email" }).click();
  await tab.gone(rejection);
  assert.deepEqual((await remembered(thread)).map(({ decision }) => decision), ["approve"]);
  await decisions.getByRole("button", { name: "Revoke the decision about send_email" }).click();
  await list.getByText("There are none").waitFor();
  assert.deepEqual(await remembered(thread), []);
  await goesOn(one("m5", "ann"));
  assert.equal((await pending(thread)).length, 1);

  // A rule may allow decisions about single calls only.
  await tab.open(`/threads/${await runs("strict", one("s1", "dora"))}`);
  await cards.getByRole("button", { name: "Approve" }).waitFor();
  assert.equal(await cards.getByLabel(always).count(), 0);

  // Among several calls, each decision has its own reach, which may change until all are sent.
  const several = await runs("agent", script(calls(email("b1", "emil"), email("b2", "fred")), says("both are sent")));
  await tab.open(`/threads/${several}`);
  const actions = cards.locator(".action");
  await actions.filter({ hasText: "emil" }).getByRole("button", { name: "Approve" }).click();
  await actions.filter({ hasText: "fred" }).getByRole("button", { name: "Approve" }).click();
  await actions.filter({ hasText: "fred" }).getByLabel(always).check();
  await actions.filter({ hasText: "fred" }).getByLabel(same).check();
  await actions.filter({ hasText: "fred" }).getByText("Approved for the thread").waitFor();
  await tab.button("Send 2 decisions").click();
  await speaks("main-agent", "both are sent");
  const [kept, ...more] = await remembered(several);
  assert.deepEqual(kept.for, { to: { equals: "fred" }, body: { equals: "hi" } });
  assert.deepEqual(more, []);

  // Questions to the user: choices and a free text.
  const asked = await runs("curious", script(calls(call("q1", "ask_user", { questions })), says("thanks")));
  await tab.open(`/threads/${asked}?tab=details`);
  const question = (name) => cards.getByRole("group", { name });
  await tab.button("2 of 3 unanswered").waitFor();
  await question("Which colour?").getByLabel("blue").check();
  await question("Which sizes?").getByLabel("large").check();
  await question("Which sizes?").getByLabel("Another answer").fill("huge");
  await question("Why?").getByLabel("Answer").fill("It fits.");
  await looks(tab);
  await tab.button("Send the answers").click();
  await speaks("curious", "thanks");
  await page.locator(".past-question", { hasText: "question" }).getByText("answered").waitFor();
  const [told] = await results(asked);
  for (const answer of ["Answer: blue", "large", "huge", "Answer: It fits."]) assert.ok(told.includes(answer), told);
  const cancelled = await runs("curious", script(calls(call("q1", "ask_user", { questions })), says("alone then")));
  await tab.open(`/threads/${cancelled}`);
  await tab.button("Cancel the questions").click();
  await speaks("curious", "alone then");

  // Two calls of one answer that are asked about one by one.
  const single = await runs("single", script(calls(email("c1", "gina"), email("c2", "hans")), says("both are decided")));
  const cardOf = (text) => cards.filter({ hasText: text });
  await tab.open("/approvals");
  await tab.field("Tool").selectOption("send_email");
  await cardOf("gina").waitFor();
  await tab.open(`/threads/${single}?tab=details`);
  await tab.until("two questions", () => document.querySelectorAll(".interrupt").length === 2);
  await looks(tab);
  await cardOf("hans").getByRole("button", { name: "Reject…" }).click();
  await cardOf("hans").getByLabel("Reason").fill("Not him.");
  await cardOf("hans").getByRole("button", { name: "Reject the call" }).click();
  await tab.gone(cardOf("hans"));
  await cardOf("gina").getByRole("button", { name: "Edit…" }).click();
  await cardOf("gina").getByLabel("body", { exact: true }).fill("hello");
  await cardOf("gina").getByRole("button", { name: "Make the edited call" }).click();
  await speaks("single", "both are decided");
  const decided = await results(single);
  assert.ok(decided.some((text) => /sent to gina: hello/.test(text)) && decided.some((text) => /Not him\./.test(text)), JSON.stringify(decided));
  await page.locator(".past-question", { hasText: "send_email" }).getByText("edit", { exact: true }).waitFor();
});
