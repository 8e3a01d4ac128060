import { memo, type ReactNode, useId, useMemo, useState } from "react";

import type { Usage } from "../api/threads";
import type { Json, JsonObject } from "../api/types";
import { type AgentSnapshot, useAgent, useKeyOfCall, useTool } from "../lib/feed";
import { count, duration, money } from "../lib/format";
import { useNow } from "../lib/frame";
import type { Message, ToolCall } from "../lib/messages";
import { Icon } from "./Icon";
import { JsonView, LongText } from "./JsonView";
import { Markdown } from "./Markdown";
import { useFeed } from "./Session";
import { TodoList } from "./StateView";
import { classes, StatusBadge } from "./ui";

const none: readonly string[] = [];

/** What an agent has used, in a line. */
export function UsageLine({ usage }: { usage: Usage | undefined }) {
  if (!usage || usage.input_tokens + usage.output_tokens === 0) return null;
  return (
    <span className="usage numeric" title={`${count(usage.input_tokens)} tokens read, ${count(usage.output_tokens)} written; ${usage.model_calls} model calls, ${usage.tool_calls} tool calls`}>
      {count(usage.input_tokens + usage.output_tokens)} tokens
      {usage.cost_micros ? ` · cost ${money(usage.cost_micros)}` : ""}
    </span>
  );
}

/** The time that an agent has worked, which goes on while it works. */
export function Elapsed({ from, to }: { from: number; to: number | undefined }) {
  const now = useNow(to === undefined);
  return <span className="numeric elapsed">{duration((to ?? Math.max(now, from)) - from)}</span>;
}

function Disclosure({ summary, children, className, open, defaultOpen = false }: { summary: ReactNode; children: () => ReactNode; className?: string; open?: boolean; defaultOpen?: boolean }) {
  const [isOpen, setIsOpen] = useState(defaultOpen || Boolean(open));
  const id = useId();
  return (
    <div className={classes("disclosure", className, isOpen && "disclosure-open")}>
      <button type="button" className="disclosure-button" aria-expanded={isOpen} aria-controls={isOpen ? id : undefined} onClick={() => setIsOpen(!isOpen)}>
        <Icon name="chevron" size={14} />
        {summary}
      </button>
      {isOpen && (
        <div className="disclosure-body" id={id}>
          {children()}
        </div>
      )}
    </div>
  );
}

/** The arguments of a call in a line. */
function summaryOf(args: JsonObject | string): string {
  if (typeof args === "string") return args;
  const entries = Object.entries(args);
  if (entries.length === 0) return "";
  const short = (value: Json): string => (typeof value === "string" ? value : Array.isArray(value) ? `${value.length} items` : JSON.stringify(value));
  if (entries.length === 1) return short(entries[0]?.[1] ?? "");
  return entries.map(([name, value]) => `${name}: ${short(value)}`).join(", ");
}

/** The text of what a tool gave. */
function outputText(output: Json | undefined): Json | undefined {
  if (output === null || typeof output !== "object" || Array.isArray(output)) return output;
  const update = output["update"];
  const messages = update && typeof update === "object" && !Array.isArray(update) ? update["messages"] : undefined;
  const last = Array.isArray(messages) ? messages.at(-1) : output;
  if (last && typeof last === "object" && !Array.isArray(last) && "content" in last) return last["content"];
  return output;
}

export function ValueView({ value, label }: { value: Json | undefined; label: string }) {
  if (value === undefined) return <p className="muted">None yet.</p>;
  if (typeof value === "string") return value === "" ? <p className="muted">Empty.</p> : <LongText text={value} label={label} />;
  return <JsonView value={value} label={label} />;
}

interface CallProperties {
  call: ToolCall;
  namespace: readonly string[];
  result: Message | undefined;
  /** Whether the arguments are still being written. */
  isWriting: boolean;
}

const ToolCallView = memo(function ToolCallView({ call, namespace, result, isWriting }: CallProperties) {
  const { feed } = useFeed();
  const run = useTool(feed, namespace, call.id);
  const isFailed = result?.isError || run?.status === "error";
  const isDone = Boolean(result) || (run !== undefined && run.status !== "running");
  const output = result ? (result.others.length > 0 ? result.others : result.text) : outputText(run?.output);
  const todos = call.name === "write_todos" && typeof call.args === "object" ? call.args["todos"] : undefined;
  return (
    <Disclosure
      className="call"
      summary={
        <span className="call-line">
          <Icon name={call.name === "write_todos" ? "todo" : "tool"} size={14} />
          <span className="call-name">{call.name || "…"}</span>
          <span className="call-summary truncate">{summaryOf(call.args)}</span>
          <span className="call-end">
            {run?.endedAt !== undefined && <span className="numeric muted">{duration(run.endedAt - run.startedAt)}</span>}
            {isFailed ? <StatusBadge status="error" label="failed" /> : isDone ? <StatusBadge status="success" label="done" /> : isWriting || run ? <StatusBadge status="running" label={isWriting ? "writing" : "running"} /> : <StatusBadge status="pending" label="not made yet" />}
          </span>
        </span>
      }
    >
      {() => (
        <div className="call-body">
          {Array.isArray(todos) ? (
            <TodoList todos={todos} />
          ) : (
            <div>
              <p className="small-heading">Arguments</p>
              <ValueView value={call.args} label={`Arguments of ${call.name}`} />
            </div>
          )}
          <div>
            <p className="small-heading">Result</p>
            <ValueView value={isDone ? output : undefined} label={`Result of ${call.name}`} />
          </div>
        </div>
      )}
    </Disclosure>
  );
});

const TAIL = 320;

/** The end of what an agent says, while it says it. */
function tailOf(agent: AgentSnapshot): string {
  for (let index = agent.messages.length - 1; index >= 0; index -= 1) {
    const message = agent.messages[index];
    if (message?.role === "ai" && (message.text || message.reasoning)) {
      const text = message.text || message.reasoning;
      return text.length > TAIL ? `…${text.slice(-TAIL)}` : text;
    }
  }
  return "";
}

function SubagentTail({ agentKey }: { agentKey: string }) {
  const { feed } = useFeed();
  const agent = useAgent(feed, agentKey);
  if (!agent) return null;
  return (
    <p className="subagent-tail" data-agent={agent.name}>
      <span>{tailOf(agent) || "\u00a0"}</span>
    </p>
  );
}

function SubagentHead({ agentKey, call, result }: { agentKey: string | undefined; call: ToolCall; result: Message | undefined }) {
  const { feed } = useFeed();
  const agent = useAgent(feed, agentKey);
  const args = typeof call.args === "object" ? call.args : {};
  const asked = args["subagent_type"] ?? args["agent_type"] ?? args["task_name"];
  const task = args["description"] ?? args["instructions"];
  const status = agent?.status ?? (result ? (result.isError ? "failed" : "completed") : "pending");
  return (
    <span className="subagent-line">
      <span className="subagent-title">
        <Icon name="agents" size={15} />
        <strong>{agent?.name ?? (typeof asked === "string" ? asked : "subagent")}</strong>
        <span className="muted truncate">{agent?.displayText ?? (typeof task === "string" ? task : summaryOf(call.args))}</span>
      </span>
      <span className="subagent-end">
        <UsageLine usage={agent?.usage} />
        {agent && <Elapsed from={agent.startedAt} to={agent.endedAt} />}
        <StatusBadge status={status} label={status === "interrupted" ? "waits" : status} />
      </span>
    </span>
  );
}

/** A delegation: the subagent's conversation inside that of its caller. */
const SubagentView = memo(function SubagentView({ call, namespace, result }: CallProperties) {
  const { feed } = useFeed();
  const agentKey = useKeyOfCall(feed, namespace, call.id);
  const [isOpen, setIsOpen] = useState(false);
  const id = useId();
  return (
    <div className={classes("subagent", isOpen && "subagent-open")} role="group" aria-label={`Subagent ${typeof call.args === "object" ? String(call.args["subagent_type"] ?? "") : ""}`}>
      <button type="button" className="disclosure-button" aria-expanded={isOpen} aria-controls={isOpen ? id : undefined} onClick={() => setIsOpen(!isOpen)}>
        <Icon name="chevron" size={14} />
        <SubagentHead agentKey={agentKey} call={call} result={result} />
      </button>
      {!isOpen && agentKey !== undefined && <SubagentTail agentKey={agentKey} />}
      {!isOpen && agentKey === undefined && result && <p className="subagent-tail"><span>{result.text.slice(0, TAIL)}</span></p>}
      {isOpen && (
        <div className="subagent-body" id={id}>
          {agentKey !== undefined ? <AgentConversation agentKey={agentKey} /> : <ValueView value={result?.text} label="Result" />}
        </div>
      )}
    </div>
  );
});

/** What one agent has said and done so far. */
export function AgentConversation({ agentKey }: { agentKey: string }) {
  const { feed } = useFeed();
  const agent = useAgent(feed, agentKey);
  if (!agent) return null;
  return <MessageList messages={agent.messages} namespace={agent.namespace} agentName={agent.name} />;
}

interface MessageProperties {
  message: Message;
  namespace: readonly string[];
  agentName: string;
  results: ReadonlyMap<string, Message>;
}

function resultsOfCalls({ message, results }: MessageProperties): (Message | undefined)[] {
  return message.toolCalls.map((call) => results.get(call.id));
}

const MessageView = memo(
  function MessageView({ message, namespace, agentName, results }: MessageProperties) {
    const { feed } = useFeed();
    const isHuman = message.role === "human";
    const account = message.isStreaming ? undefined : message.usage ? message : feed.accountOf(message.id);
    return (
      <article className={classes("message", `message-${message.role}`)} aria-label={isHuman ? "You" : (message.name ?? agentName)} data-message={message.id}>
        <header className="message-head">
          <span className="message-author">{isHuman ? (namespace.length > 0 ? "Task" : "You") : message.role === "system" ? "System" : (message.name ?? agentName)}</span>
          {account?.model && <span className="muted">{account.model}</span>}
          {account?.usage && (
            <span className="muted numeric" title="Tokens read and written">
              {count(account.usage.input)} → {count(account.usage.output)} tokens
            </span>
          )}
        </header>
        {message.reasoning && (
          <Disclosure className="reasoning" summary={<span className="muted">Reasoning</span>}>
            {() => <LongText text={message.reasoning} label="Reasoning" />}
          </Disclosure>
        )}
        {message.text && (message.isStreaming || isHuman ? <div className={classes("plain-text", message.isStreaming && "streaming")}>{isHuman ? <HumanText text={message.text} /> : message.text}</div> : <Markdown text={message.text} />)}
        {message.others.length > 0 && <JsonView value={message.others} label="Other content" />}
        {message.toolCalls.length > 0 && (
          <div className="calls">
            {message.toolCalls.map((call, index) => {
              const properties = { call, namespace, result: results.get(call.id), isWriting: message.isStreaming };
              return call.name === "task" ? <SubagentView key={call.id || index} {...properties} /> : <ToolCallView key={call.id || index} {...properties} />;
            })}
          </div>
        )}
      </article>
    );
  },
  (before, after) => {
    if (before.message !== after.message || before.namespace !== after.namespace || before.agentName !== after.agentName) return false;
    const old = resultsOfCalls(before);
    return resultsOfCalls(after).every((result, index) => result === old[index] || (result?.text === old[index]?.text && result?.isError === old[index]?.isError));
  },
);

const HUMAN_LIMIT = 1_200;

function HumanText({ text }: { text: string }) {
  const [isWhole, setIsWhole] = useState(false);
  if (text.length <= HUMAN_LIMIT) return text;
  return (
    <>
      {isWhole ? text : `${text.slice(0, HUMAN_LIMIT)}…`}{" "}
      <button type="button" className="link-button" aria-expanded={isWhole} onClick={() => setIsWhole(!isWhole)}>
        {isWhole ? "Show less" : "Show all"}
      </button>
    </>
  );
}

/** Messages with their tool calls; results stand in the calls that they answer. */
export const MessageList = memo(function MessageList({ messages, namespace = none, agentName }: { messages: readonly Message[]; namespace?: readonly string[]; agentName: string }) {
  const results = useMemo(() => {
    const found = new Map<string, Message>();
    for (const message of messages) if (message.role === "tool" && message.toolCallId) found.set(message.toolCallId, message);
    return found;
  }, [messages]);
  return (
    <div className="messages">
      {messages.map((message, index) => (message.role === "tool" ? null : <MessageView key={message.id || index} message={message} namespace={namespace} agentName={agentName} results={results} />))}
    </div>
  );
});
