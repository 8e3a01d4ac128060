// Schedules: made, paused, resumed and deleted.

import { ask, assert, play } from "./harness.mjs";

await play(async (tab) => {
  await tab.open("/crons");
  await tab.sees("There are no crons");
  await tab.button("New cron").first().click();
  await tab.field("Assistant").selectOption({ label: "plain-agent" });
  await tab.field("Schedule").fill("every day");
  await tab.field("Message").fill("Report, please.");
  // The words of the server are in the dialog, which keeps what was written.
  tab.expects(({ status, path }) => status === 422 && path === "/runs/crons");
  await tab.button("Create").click();
  await tab.dialog().getByText("schedule").last().waitFor();
  await tab.field("Schedule").fill("0 8 * * 1-5");
  await tab.field("Time zone").fill("Europe/Berlin");
  await tab.button("Create").click();
  await tab.gone(tab.dialog());
  const row = tab.page.getByRole("row", { name: /0 8 \* \* 1-5/ });
  await tab.sees("Europe/Berlin", row);
  await tab.sees("plain-agent", row);

  const [cron] = await ask("POST", "/runs/crons/search", {});
  assert.equal(cron.schedule, "0 8 * * 1-5");
  assert.equal(cron.timezone, "Europe/Berlin");
  assert.deepEqual(cron.payload.input, { messages: [{ role: "user", content: "Report, please." }] });
  const isEnabled = async () => (await ask("GET", `/runs/crons/${cron.cron_id}`)).enabled;

  await tab.button("Pause 0 8 * * 1-5").click();
  await tab.button("Resume 0 8 * * 1-5").waitFor();
  assert.equal(await isEnabled(), false);
  await tab.button("Resume 0 8 * * 1-5").click();
  await tab.button("Pause 0 8 * * 1-5").waitFor();
  assert.equal(await isEnabled(), true);

  await tab.button("Details of 0 8 * * 1-5").click();
  await tab.sees("Report, please.", tab.dialog());
  await tab.page.keyboard.press("Escape");
  await tab.gone(tab.dialog());

  await tab.button("Delete 0 8 * * 1-5").click();
  await tab.dialog().getByRole("button", { name: "Cancel" }).click();
  await tab.button("Delete 0 8 * * 1-5").click();
  await tab.dialog().getByRole("button", { name: "Delete" }).click();
  await tab.sees("There are no crons");
  assert.deepEqual(await ask("POST", "/runs/crons/search", {}), []);
});
