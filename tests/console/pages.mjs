// Every page: axe finds nothing, in the light and in the dark, and nothing sticks out on a narrow screen.

import { ask, call, calls, play, runs, says, script, task } from "./harness.mjs";

const mailing = script(calls(call("m1", "send_email", { to: "bob@example.org", body: "hi" })), says("sent"));
const research = script(calls(call("c1", "lookup", { query: "otters" })), says("They **swim**.\n\n- in rivers\n- along coasts\n\n```js\nconst long = 'a line of code that is far too long for a narrow screen, and must not make the page any wider';\n```"));
const done = await runs("agent", script(calls(task("t1", "researcher", research)), says("Otters swim. | a | b |\n|---|---|\n| 1 | 2 |")));
const waiting = await runs("agent", mailing);
await runs("planner", script(calls(call("w1", "write_todos", { todos: [{ content: "look", status: "completed" }, { content: "say", status: "in_progress" }] }), call("f1", "write_file", { file_path: "/notes.md", content: "# Notes\n\nmany" })), says("planned")));
await runs("plain", script({ error: 400 })).catch(() => undefined);
await ask("PUT", "/store/items", { namespace: ["memories", "ann"], key: "tea", value: { text: "green" } });
await ask("POST", "/runs/crons", { assistant_id: "agent", schedule: "0 8 * * 1-5", input: {} });
const { assistant_id } = await ask("POST", "/assistants", { graph_id: "agent", name: "Calm one", context: { tone: "calm" } });
await runs("plain", script(says("done")), { webhook: `${process.env.RECEIVER}/report` });
const [{ delivery_id }] = await ask("GET", "/webhooks/deliveries");

const places = [
  "/",
  `/threads/${done}`,
  `/threads/${done}?tab=agents`,
  `/threads/${done}?tab=state`,
  `/threads/${done}?tab=timeline`,
  `/threads/${done}?tab=details`,
  `/threads/${waiting}`,
  "/chat",
  "/approvals",
  "/approvals?status=resolved",
  "/agents",
  "/agents/agent",
  "/agents/agent?tab=definition",
  "/agents/agent?tab=tools",
  "/agents/agent?tab=versions",
  "/agents/agent?tab=schemas",
  "/assistants",
  `/assistants/${assistant_id}`,
  "/store",
  "/crons",
  "/webhooks",
  `/webhooks/${delivery_id}`,
  "/metrics",
  "/audit",
  "/keys",
  "/nosuch",
];

const part = process.env.PART;
const [number, of] = part ? part.split("/").map(Number) : [0, 1];
const chosen = places.filter((_, index) => index % of === number);

await play(async (tab) => {
  const wrong = [];
  const check = async (what) => {
    await what().catch((error) => wrong.push(error.message));
  };
  for (const place of chosen) {
    await tab.scheme("light");
    await tab.wide();
    await tab.open(place);
    await check(() => tab.isAccessible());
    await tab.scheme("dark");
    await check(() => tab.isAccessible());
    await tab.narrow();
    await check(() => tab.fits());
  }
  if (wrong.length > 0) throw new Error(wrong.join("\n\n"));
});
