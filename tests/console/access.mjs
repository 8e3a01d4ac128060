// Behind authentication: the page asks for a key, shows what its holder may see, and manages keys.
// Usage: node access.mjs BASE_URL CHROMIUM ADMIN_KEY. The variable USER_KEY has the key of a user.

import { ask, assert, key, play, runs, says, script } from "./harness.mjs";

const userKey = process.env.USER_KEY;

await play(
  async (tab) => {
    const { page } = tab;
    tab.expects(({ status }) => status === 401);
    await page.goto(`${new URL(process.argv[2]).origin}/#/keys`);
    await page.getByRole("heading", { name: "Sign in to adjutant" }).waitFor();
    await tab.isAccessible();
    await tab.field("API key or token").fill("adj_wrong");
    await tab.button("Sign in").click();
    await tab.sees("The server does not know this key.");
    await tab.field("API key or token").fill(key);
    await tab.button("Sign in").click();
    // It leads to the page that was asked for.
    await page.getByRole("heading", { name: "API keys", exact: true }).waitFor();
    await tab.sees("There are no API keys");

    await tab.button("New API key").first().click();
    await tab.field("Name").fill("laptop");
    await tab.field("User").fill("carol");
    await tab.field("approver").check();
    await tab.button("Create").click();
    const secret = await page.locator("[data-secret]").innerText();
    assert.match(secret, /^adj_/);
    await tab.button("Done").click();
    assert.equal((await ask("GET", "/auth/me", undefined, secret)).identity, "carol");
    assert.deepEqual((await ask("GET", "/auth/me", undefined, secret)).roles.sort(), ["approver", "user"]);
    const row = page.getByRole("row", { name: /laptop/ });
    await row.getByText("valid").waitFor();
    assert.ok(!(await page.content()).includes(secret), "the secret is shown once");
    await tab.button("Rotate laptop").click();
    await tab.dialog().getByRole("button", { name: "Rotate" }).click();
    const rotated = await page.locator("[data-secret]").innerText();
    assert.notEqual(rotated, secret);
    await tab.button("Done").click();
    await tab.button("Revoke laptop").click();
    await tab.dialog().getByRole("button", { name: "Revoke" }).click();
    await row.getByText("revoked").waitFor();
    const refused = await fetch(`${process.argv[2]}/auth/me`, { headers: { "x-api-key": rotated } });
    assert.equal(refused.status, 401);

    // All of it is in the audit.
    await tab.open("/audit");
    await page.getByRole("row", { name: /keys:write/ }).first().waitFor();
    await tab.field("Outcome").selectOption("denied");
    await tab.sees("No entries are found");
    await tab.field("Outcome").selectOption("");
    await tab.button(/Details of keys:write/, false).first().click();
    await tab.dialog().getByText("allowed").waitFor();
    await page.keyboard.press("Escape");

    // A user sees own threads only, and neither audit nor keys.
    await runs("plain", script(says("of the admin")));
    await tab.button("Sign out").click();
    await page.getByRole("heading", { name: "Sign in to adjutant" }).waitFor();
    await tab.field("API key or token").fill(userKey);
    // The page that was open is asked for at once.
    tab.expects(({ status, path }) => status === 403 && ["/audit", "/auth/keys", "/metrics"].includes(path));
    await tab.button("Sign in").click();
    for (const place of ["/audit", "/keys", "/metrics"]) {
      await tab.open(place);
      await tab.sees(/You may not see/);
    }
    await tab.open("/");
    await tab.sees("No threads yet");
    // The key is of this tab only, and nowhere else.
    const kept = await page.evaluate(() => [JSON.stringify(localStorage), document.cookie, location.href]);
    for (const place of kept) assert.ok(!place.includes(userKey), place);

    // A key that is revoked while the page is open is asked for again.
    const made = await ask("POST", "/auth/keys", { name: "short", user: "dora" });
    await tab.button("Sign out").click();
    await tab.field("API key or token").fill(made.api_key);
    await tab.button("Sign in").click();
    await tab.sees("No threads yet");
    await ask("DELETE", `/auth/keys/${made.key_id}`);
    await page.getByRole("heading", { name: "Sign in to adjutant" }).waitFor();
    await tab.field("API key or token").fill(userKey);
    await tab.button("Sign in").click();
    await tab.sees("No threads yet");
    await page.getByText("ann", { exact: true }).waitFor();
  },
  { signedIn: false },
);
