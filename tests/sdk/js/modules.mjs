// Where the official client is: the folder of modules may be elsewhere, and the test says where.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

export const modules = createRequire(process.env.ADJUTANT_TEST_NODE_MODULES
  ? pathToFileURL(`${process.env.ADJUTANT_TEST_NODE_MODULES}/`)
  : import.meta.url);

// What people and scripted models say.
export const script = (...turns) => JSON.stringify({ script: turns });
export const callsTool = (id, name, args) => ({ tool_calls: [{ id, name, args }] });
export const task = (id, subagent, description) => callsTool(id, "task", { description, subagent_type: subagent });
export const human = (content) => ({ messages: [{ role: "user", content }] });
export const last = (values) => values.messages.at(-1).content;
export const contents = (values) => values.messages.map((message) => message.content);

export async function collect(stream) {
  const parts = [];
  for await (const part of stream) parts.push(part);
  return parts;
}
