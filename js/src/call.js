// One call of a tool: what the tool knows about it, and what it may do besides returning a result.

import { AsyncLocalStorage } from "node:async_hooks";

import { ToolError } from "./error.js";
import { toJsonSchema, validated } from "./schema.js";

const executions = new AsyncLocalStorage();

/** A result with more than text for the model. */
export class Result {
  constructor(content, { artifact, update } = {}) {
    this.content = content;
    this.artifact = artifact;
    this.update = update;
  }
}

/** A subagent finds the result of the call. */
export class Delegation {
  constructor(fields) {
    this.fields = fields;
  }
}

/** Leaves a function that waits. */
export class Suspended extends Error {
  constructor(answer) {
    super("the call waits");
    this.answer = answer;
  }
}

/** One run of a tool's function for a call. The function may run again, with more answers. */
export class Execution {
  constructor(context, answers, emit, delegations = []) {
    this.context = context;
    this.delegations = delegations;
    this.delegated = 0;
    this.answers = new Map(answers.map((answer) => [answer.key, answer.response]));
    this.update = {};
    this.asked = 0;
    this.emit = emit;
    this.suspended = undefined;
  }

  /** Runs `work`, in which this execution is the current one. */
  run(work) {
    return executions.run(this, work);
  }

  ask(questions) {
    const numbered = questions.map((question) => {
      this.asked += 1;
      return { key: `q${this.asked}`, ...question };
    });
    const missing = numbered.filter((question) => !this.answers.has(question.key));
    if (missing.length > 0) {
      // Remembered, so that a function that catches everything does not swallow the question.
      this.suspended = new Suspended({ interrupts: missing.map(asWire) });
      throw this.suspended;
    }
    return numbered.map((question) => validated(question.schema, this.answers.get(question.key)));
  }

  runSubagent(delegation, schema) {
    const done = this.delegations[this.delegated];
    this.delegated += 1;
    if (done === undefined) {
      this.suspended = new Suspended({ delegate: { ...delegation.fields, then: "call_again" } });
      throw this.suspended;
    }
    const text = contentOf(done.content ?? "");
    if (done.status === "error") throw new ToolError(text);
    return schema === undefined ? text : validated(schema, JSON.parse(text));
  }
}

function asWire({ key, value, schema, approvers }) {
  const question = { key, value };
  if (schema !== undefined) question.response_schema = toJsonSchema(schema);
  if (approvers !== undefined) question.approvers = approvers;
  return question;
}

function execution() {
  const own = executions.getStore();
  if (own === undefined) throw new Error("this works only inside of a tool that is being called");
  return own;
}

/** Returns the context of the current call. */
export function currentContext() {
  return execution().context;
}

/**
 * Asks a human and returns the answer. The first time this leaves the function: the run waits. When the question is
 * answered, the function is called again from its beginning, and then this returns the answer.
 */
export function ask(value, { schema, key, approvers } = {}) {
  return execution().ask([clean({ value, schema, key, approvers })])[0];
}

/** Asks several questions at once and returns the answers in their order. */
export function askAll(questions) {
  return execution().ask(questions.map((one) => (typeof one === "string" ? { value: one } : clean(one))));
}

function clean(fields) {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== undefined));
}

/** Tells clients something while the tool works: an event of the stream mode `custom`. */
export function progress(value) {
  execution().emit({ custom: [value] });
}

/** Shows clients the next piece of the text to come. */
export function output(text) {
  execution().emit({ output: String(text) });
}

/** Writes into the state of the thread when the call has succeeded. */
export function update(values) {
  Object.assign(execution().update, values);
}

/** Returns a delegation, for the function to return: a subagent finds the result of the call. */
export function delegate(description, subagentType, { systemPrompt, responseFormat, initialMessages } = {}) {
  return new Delegation(
    clean({
      description,
      subagent_type: subagentType,
      system_prompt: systemPrompt,
      response_format: responseFormat === undefined ? undefined : toJsonSchema(responseFormat),
      initial_messages: initialMessages,
    }),
  );
}

/**
 * Has a subagent do something and returns its result, for the function to go on with. As with `ask`, the function is left
 * the first time, and called again from its beginning when the subagent has ended. With a `responseFormat` the result is
 * a value of that form; otherwise it is the subagent's last text. A subagent that fails throws a `ToolError`.
 */
export function runSubagent(description, subagentType, more = {}) {
  return execution().runSubagent(delegate(description, subagentType, more), more.responseFormat);
}

/** Returns the answer to the caller for what a function returned. */
export function answerOf(value, own) {
  if (value instanceof Delegation) {
    if (Object.keys(own.update).length > 0) throw new ToolError("a call that delegates cannot write into the state, too");
    return { delegate: value.fields };
  }
  const result = value instanceof Result ? value : new Result(value);
  const answer = { content: contentOf(result.content) };
  if (result.artifact !== undefined && result.artifact !== null) answer.artifact = result.artifact;
  const written = { ...own.update, ...result.update };
  if (Object.keys(written).length > 0) answer.update = written;
  return answer;
}

const BLOCKS = new Set(["text", "image", "image_url", "audio", "file", "video"]);

/** Returns the content of a message: text, or blocks. */
export function contentOf(value) {
  if (typeof value === "string") return value;
  if (Array.isArray(value) && value.length > 0 && value.every((block) => BLOCKS.has(block?.type))) return value;
  return JSON.stringify(value ?? null);
}
