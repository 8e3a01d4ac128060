// Agents and assistants: their definitions, versions, schemas and graphs, and the way to the chat.

import { ask, assert, play } from "./harness.mjs";

await play(async (tab) => {
  const { page } = tab;
  await tab.open("/agents");
  await tab.link("agent").waitFor();
  await tab.field("Search by name").fill("plan");
  await tab.gone(tab.link("deep"));
  await tab.link("planner").waitFor();
  await tab.field("Search by name").fill("");
  await tab.link("agent").click();
  await page.getByRole("heading", { name: "agent", exact: true }).waitFor();

  // The graph: the main agent and its five subagents.
  const graph = page.getByRole("img", { name: /The graph of main-agent/ });
  await graph.waitFor();
  const drawn = () => graph.locator("[data-agent]").evaluateAll((boxes) => boxes.map((box) => box.dataset.agent).sort());
  assert.deepEqual(await drawn(), ["", "analyst", "general-purpose", "hurried", "mailer", "researcher"]);
  await tab.shoot("agent");
  const boxes = await graph.locator("[data-agent] > rect").evaluateAll((all) => all.map((rect) => rect.getBoundingClientRect().toJSON()));
  for (const [index, one] of boxes.entries()) {
    for (const other of boxes.slice(index + 1)) {
      const isApart = one.right < other.left || other.right < one.left || one.bottom < other.top || other.bottom < one.top;
      assert.ok(isApart, `boxes overlap: ${JSON.stringify([one, other])}`);
    }
  }
  assert.equal(await graph.locator('[data-agent="mailer"] .graph-node').count(), 0);
  await tab.field("Steps of subagents").check();
  await graph.locator('[data-agent="mailer"] .graph-node-tools').waitFor();
  await tab.field("Levels of subagents").selectOption("0");
  await tab.until("one box", () => document.querySelectorAll("[data-agent]").length === 1);

  await page.getByRole("tab", { name: "Definition" }).click();
  await tab.sees("You are the main agent.");
  await page.getByRole("row", { name: /researcher/ }).waitFor();
  await page.getByRole("tab", { name: "Tools" }).click();
  await page.getByRole("row", { name: /mailer/ }).getByText("send_email").waitFor();
  await page.getByRole("tab", { name: "Schemas" }).click();
  await page.getByRole("region", { name: "Input schema" }).getByText("Message").first().waitFor();

  // A definition over HTTP gets versions, and the page says what has changed.
  const definition = { model: "scripted:lab", system_prompt: "You are new." };
  await ask("PUT", "/agents/fresh", definition);
  await ask("PUT", "/agents/fresh", { ...definition, system_prompt: "You are newer." });
  await tab.open("/agents/fresh?tab=versions");
  await page.getByRole("button", { name: "Show" }).first().click();
  await page.getByRole("region", { name: "Changes" }).getByText("You are newer.").waitFor();

  // An assistant of one's own.
  await tab.open("/assistants?graph=plain");
  await tab.button("New assistant").first().click();
  await tab.field("Name").fill("Calm one");
  await tab.field("Context").fill('{"tone": "calm"}');
  await tab.button("Create").click();
  await page.getByRole("heading", { name: "Calm one" }).waitFor();
  await tab.button("Change").click();
  await tab.dialog().getByLabel("Context", { exact: true }).fill('{"tone": "bold"}');
  await tab.button("Save as a new version").click();
  await tab.gone(tab.dialog());
  await page.getByRole("region", { name: "Context" }).getByText("bold").waitFor();
  await page.getByRole("tab", { name: "Versions" }).click();
  await tab.button("Use it: version 1").click();
  await tab.button("Use it: version 2").waitFor();
  const [assistant] = await ask("POST", "/assistants/search", { name: "Calm one" });
  assert.equal(assistant.version, 1);
  assert.deepEqual(assistant.context, { tone: "calm" });

  await tab.link("Try it").click();
  await page.getByRole("heading", { name: "Chat with Calm one" }).waitFor();
  await page.goBack();
  await tab.button("Delete").click();
  await tab.dialog().getByRole("button", { name: "Delete" }).click();
  await page.getByRole("heading", { name: "Assistants" }).waitFor();
  assert.deepEqual(await ask("POST", "/assistants/search", { name: "Calm one" }), []);

  tab.expects(({ status, path }) => status === 404 && path === "/agents/nosuch");
  await tab.open("/agents/nosuch");
  await tab.sees("This could not be loaded");
});
