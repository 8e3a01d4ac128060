// Webhook deliveries. Usage: node webhooks.mjs BASE_URL CHROMIUM RECEIVER. The receiver refuses the first report.

import { ask, assert, play, runs, script, says } from "./harness.mjs";

const receiver = process.env.RECEIVER;
await runs("plain", script(says("done")), { webhook: `${receiver}/report` });

await play(async (tab) => {
  const { page } = tab;
  await tab.open("/webhooks");
  const row = page.getByRole("row", { name: /report/ });
  // It is tried again in a minute.
  await row.getByText("pending").waitFor();
  await row.getByText("500").waitFor();
  await tab.field("Status").selectOption("delivered");
  await tab.sees("No delivery is delivered");
  await tab.field("Status").selectOption("");
  await tab.link(`${receiver}/report`).click();
  await page.getByRole("region", { name: "Payload" }).getByText("run_id").first().waitFor();
  await tab.button("Deliver again").click();
  await page.locator('[data-status="delivered"]').waitFor();
  const [delivery] = await ask("GET", "/webhooks/deliveries");
  assert.equal(delivery.status, "delivered");
  assert.equal(delivery.response_status, 200);
  await tab.link("All deliveries").click();
  await row.getByText("delivered").waitFor();
});
