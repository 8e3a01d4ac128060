// The demonstration from the first message to the end, as the pictures of the documents show it.

import { ask, assert, play } from "./harness.mjs";
import { looks } from "./looks.mjs";

const asks = { send_email: { allowed_decisions: ["approve", "edit", "reject"] } };
const definition = {
  name: "editor",
  description: "Plans a piece, has it researched and written, and has it sent when a human agrees.",
  model: "scripted:demo",
  system_prompt: "You are the editor of a small team.",
  tools: [],
  todos: true,
  subagents: [
    { name: "researcher", description: "Finds out what is known about one question and reports it.", system_prompt: "You look things up.", tools: ["lookup"], display_text: "Looking things up" },
    { name: "writer", description: "Drafts a short text from what it is told and sends it.", system_prompt: "You write.", tools: ["send_email"], interrupt_on: asks },
  ],
};

await play(async (tab) => {
  const { page } = tab;
  await ask("PUT", "/agents/editor", definition);
  await tab.open("/chat?assistant=editor");
  await page.getByRole("heading", { name: "Chat with editor" }).waitFor();
  const message = page.getByRole("textbox", { name: /^Message to/ });
  await message.fill("A piece about otters, please.");
  await message.press("Enter");
  const card = page.locator(".interrupt");
  await card.getByText("editor › writer").waitFor();
  await tab.until("the run waits", () => document.querySelector(".thread-head .status")?.dataset.status === "interrupted");
  await page.locator(".agent-tree").getByText("waits").first().waitFor();
  await tab.shoot("conversation");
  await looks(tab);
  await tab.scheme("dark");
  await tab.shoot("conversation-dark");
  await tab.narrow();
  await tab.shoot("conversation-narrow");
  await tab.wide();
  await tab.scheme("light");
  await card.getByRole("button", { name: "Edit…" }).click();
  await tab.shoot("approval");
  await card.getByRole("button", { name: "Cancel" }).click();
  await card.getByRole("button", { name: "Approve" }).click();
  await tab.gone(card);
  await page.getByRole("article", { name: "editor" }).getByText("Done with").waitFor();
  await tab.until("the run is over", () => document.querySelector(".thread-head .status")?.dataset.status === "idle");

  await page.getByRole("tab", { name: "Timeline" }).click();
  const steps = page.locator(".step");
  await steps.nth(1).getByRole("button").first().click();
  await steps.nth(1).locator(".change").first().waitFor();
  await tab.shoot("timeline");
  await page.getByRole("tab", { name: "State" }).click();
  assert.ok((await page.locator(".thread-panel .todo").count()) >= 2);
  await page.getByRole("tab", { name: "Agents" }).click();
  await tab.until("all are done", () => [...document.querySelectorAll(".agent-tree [data-status]")].every((status) => status.dataset.status === "success"));
});
