// The Store: items are made, found, changed and deleted.

import { ask, assert, play } from "./harness.mjs";

await play(async (tab) => {
  await tab.open("/store");
  await tab.sees("There are no items here");
  await tab.button("New item").first().click();
  await tab.field("Namespace").fill("memories\nann");
  await tab.field("Key").fill("tea");
  await tab.field("Value").fill("{ not json");
  await tab.sees("This is not valid JSON");
  assert.equal(await tab.button("Save").isDisabled(), true);
  await tab.field("Value").fill('{"text": "likes it green"}');
  await tab.button("Save").click();
  await tab.gone(tab.dialog());
  assert.deepEqual((await ask("GET", "/store/items?namespace=memories.ann&key=tea")).value, { text: "likes it green" });

  for (const [namespace, key, value] of [
    [["memories", "bob"], "coffee", { text: "likes it black" }],
    [["settings"], "theme", { dark: true }],
  ]) {
    await ask("PUT", "/store/items", { namespace, key, value });
  }
  await tab.page.reload();
  await tab.button("All namespaces").click();
  await tab.button("View coffee").waitFor();
  await tab.button("View theme").waitFor();
  await tab.button("memories", true).click();
  await tab.gone(tab.button("View theme"));
  await tab.button("View tea").waitFor();
  await tab.button("memories › bob").click();
  await tab.gone(tab.button("View tea"));
  // The way back leads to the namespace before.
  await tab.page.goBack();
  await tab.button("View tea").waitFor();

  // A server without an index is searched by text.
  await tab.field("Search the items").fill("black");
  await tab.gone(tab.button("View tea"));
  await tab.button("View coffee").click();
  await tab.sees("likes it black", tab.dialog());
  await tab.page.keyboard.press("Escape");
  await tab.field("Search the items").fill("");

  await tab.button("Edit tea").click();
  await tab.field("Value").fill('{"text": "likes it white"}');
  await tab.button("Save").click();
  await tab.gone(tab.dialog());
  await tab.sees("likes it white");
  assert.deepEqual((await ask("GET", "/store/items?namespace=memories.ann&key=tea")).value, { text: "likes it white" });

  await tab.button("Delete tea").click();
  await tab.dialog().getByRole("button", { name: "Delete" }).click();
  await tab.gone(tab.button("View tea"));
  assert.equal(await ask("GET", "/store/items?namespace=memories.ann&key=tea"), null);
});
