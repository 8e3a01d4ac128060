// Without a mouse: from page to page, a conversation, an approval, a list, tabs and dialogs.

import { ask, assert, call, calls, play, runs, says, script } from "./harness.mjs";

await runs("agent", script(calls(call("m1", "send_email", { to: "bob", body: "hi" })), says("sent")));

await play(async (tab) => {
  const { page } = tab;
  const press = (...keys) => keys.reduce((before, key) => before.then(() => page.keyboard.press(key)), Promise.resolve());
  const focused = () =>
    page.evaluate(() => {
      const element = document.activeElement;
      return element?.getAttribute("aria-label") ?? element?.labels?.[0]?.innerText ?? element?.innerText ?? "";
    });
  const heading = (name) => page.getByRole("heading", { name, exact: true }).first().waitFor({ state: "attached" });
  // Goes on with the tab key until something of this name has the focus, which has to be visible.
  const tabTo = async (name, key = "Tab") => {
    const passed = [];
    for (let step = 0; step < 80; step += 1) {
      await press(key);
      const at = (await focused()).trim();
      passed.push(at.slice(0, 40));
      if (typeof name === "string" ? at === name : name.test(at)) {
        const outline = await page.evaluate(() => {
          const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
          return { outlineStyle, outlineWidth, boxShadow };
        });
        assert.ok(outline.outlineStyle !== "none" || outline.boxShadow !== "none", `the focus on ${name} is not visible`);
        return;
      }
    }
    assert.fail(`${name} is not reached by the keyboard, but ${passed.join(" | ")}`);
  };

  await tab.open("/");
  await press("Tab");
  assert.equal(await focused(), "Skip to the content");
  await press("Enter");
  assert.equal(await page.evaluate(() => document.activeElement.id), "main");
  await press("?");
  await tab.dialog().getByRole("heading", { name: "Keyboard shortcuts" }).waitFor();
  await press("Escape");
  await tab.gone(tab.dialog());

  // A conversation.
  await press("g", "c");
  await heading(/^Chat with/);
  await page.getByRole("textbox", { name: /^Message to/ }).waitFor();
  await tab.until("the field has the focus", () => document.activeElement?.tagName === "TEXTAREA");
  await page.keyboard.insertText(script(says("all by the keyboard")));
  await press("Enter");
  await page.getByText("all by the keyboard", { exact: true }).waitFor();

  // An approval.
  await tab.open("/");
  await press("g", "i");
  await heading("Approvals");
  await page.locator(".interrupt").waitFor();
  await tabTo("Approve");
  await press("Enter");
  await tab.sees("Nothing waits for you");

  // The list of threads.
  await press("g", "t");
  await heading("Threads");
  await page.locator("[data-row]").first().waitFor();
  await press("j", "Enter");
  await page.getByRole("region", { name: "Conversation" }).waitFor();
  await tabTo("Agents", "Tab");
  await press("ArrowRight");
  await page.getByRole("tab", { name: "State", selected: true }).first().waitFor();

  // An agent: a link, and tabs.
  await press("g", "a");
  await heading("Agents");
  await page.getByRole("link", { name: "plain", exact: true }).waitFor();
  await press("/");
  assert.equal(await focused(), "Search by name");
  await page.keyboard.type("plain");
  await tab.gone(page.getByRole("link", { name: "deep", exact: true }));
  await tabTo("plain");
  await press("Enter");
  await heading("plain");
  await tabTo("Graph");
  await press("ArrowRight");
  await page.getByRole("tab", { name: "Definition", selected: true }).waitFor();

  // A dialog keeps the focus inside, and gives it back.
  await tab.open("/crons");
  await tabTo("New cron");
  await press("Enter");
  await tab.dialog().waitFor();
  for (let step = 0; step < 20; step += 1) {
    await press("Tab");
    // The browser's own controls are between the last and the first element.
    const isInside = await page.evaluate(() => document.activeElement === document.body || document.querySelector("dialog").contains(document.activeElement));
    assert.ok(isInside, `the focus has left the dialog for ${await focused()}`);
  }
  await press("Escape");
  await tab.gone(tab.dialog());
  assert.equal(await focused(), "New cron");
  assert.deepEqual(await ask("POST", "/runs/crons/search", {}), []);
});
