// The error of a tool.

/** An error whose text the model reads as it is, without the name of its type. */
export class ToolError extends Error {
  name = "ToolError";
}
