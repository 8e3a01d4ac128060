// A service of tools in JavaScript: node examples/tool_service.mjs
//
// Its tools are those of `[tool_servers.crm]` in docs/tool-servers.md.

import { ask, progress, serve, tool, update } from "../js/src/index.js";

const CUSTOMERS = { Ada: "ada@example.org", Grace: "grace@example.org" };

const search = tool(
  ({ name, limit = 5 }) => {
    progress({ searching: name });
    return Object.keys(CUSTOMERS).filter((customer) => customer.toLowerCase().includes(name.toLowerCase())).slice(0, limit);
  },
  {
    name: "search",
    description: "Searches the customers.",
    idempotent: true,
    parameters: {
      type: "object",
      properties: { name: { type: "string", description: "A part of the name." }, limit: { type: "integer" } },
      required: ["name"],
    },
  },
);

const sendEmail = tool(
  ({ to, body }, context) => {
    if (!ask(`Send this to ${to}?\n\n${body}`, { schema: { type: "boolean" } })) return "The email was not sent, a human said no.";
    update({ last_email: { to, by: context.agentName } });
    return `Sent to ${CUSTOMERS[to]}.`;
  },
  {
    name: "send_email",
    description: "Sends an email to a customer.",
    parameters: {
      type: "object",
      properties: { to: { type: "string", enum: Object.keys(CUSTOMERS) }, body: { type: "string" } },
      required: ["to", "body"],
    },
  },
);

await serve([search, sendEmail], { port: Number(process.argv[2] ?? 9400) });
