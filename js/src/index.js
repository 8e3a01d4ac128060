// Serves tools to agents of adjutant.

export { ask, askAll, currentContext, delegate, Delegation, output, progress, Result, runSubagent, update } from "./call.js";
export { ToolError } from "./error.js";
export { ReadError, RunReader } from "./reader.js";
export { createService, serve } from "./service.js";
export { tool } from "./tool.js";
