// The metrics at a glance: they follow what the server does.

import { assert, call, calls, play, runs, says, script } from "./harness.mjs";

await play(async (tab) => {
  const { page } = tab;
  const tile = (title) => page.locator(".tile", { has: page.getByRole("heading", { name: title, exact: true }) }).locator(".tile-value");
  await tab.open("/metrics");
  await tab.sees("No run has ended since the start");
  assert.equal(await tile("Failed runs").innerText(), "0");
  await runs("plain", script(calls(call("c1", "lookup", { query: "x" })), says("one two three")));
  await runs("plain", script({ error: 400 })).catch(() => undefined);
  await tab.until("one run has failed", () => [...document.querySelectorAll(".tile")].some((tile) => /Failed runs\s+1/.test(tile.innerText)));
  const row = page.getByRole("row", { name: /plain-agent/ });
  assert.match(await row.innerText(), /plain-agent\s+2\s+1\s/);
  await page.getByRole("row", { name: /lookup\s+1/ }).waitFor();
  // The lines grow while the page is open.
  await tab.until("there is a line", () => document.querySelectorAll(".sparkline polyline").length >= 6);
  await tab.shoot("metrics");
});
