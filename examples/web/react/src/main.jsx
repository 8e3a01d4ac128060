// A chat with a deep agent: its messages, the work of each subagent, tool calls, and questions to the human. The thread is in the
// address of the page, so that a reload comes back to it, also in the middle of an answer.

import { useState } from "react";
import { createRoot } from "react-dom/client";
import { useMessages, useStream, useToolCalls } from "@langchain/react";

const query = new URLSearchParams(location.search);

const textOf = ({ content }) => (typeof content === "string" ? content : content.map((block) => block.text ?? "").join(""));

function Messages({ messages }) {
  return messages.map((message) => textOf(message) && <p key={message.id} data-type={message.getType()}>{textOf(message)}</p>);
}

function ToolCalls({ calls }) {
  return calls.map(({ id, name, input, status }) => (
    <small key={id} data-tool={name} data-status={status}>{name}({JSON.stringify(input)}): {status}<br /></small>
  ));
}

// The messages and calls of a subagent are streamed while its card is shown.
function Subagent({ stream, subagent }) {
  const messages = useMessages(stream, subagent);
  const calls = useToolCalls(stream, subagent);
  return (
    <section data-agent={subagent.name} data-status={subagent.status}>
      <b>{subagent.name}</b> <small>{subagent.status}</small>
      <ToolCalls calls={calls} />
      <Messages messages={messages} />
    </section>
  );
}

// An answer has one decision for each call.
function Approval({ stream, interrupt: { id, value } }) {
  const decide = (type) => stream.respond({ decisions: value.action_requests.map(() => ({ type })) }, { interruptId: id });
  return (
    <fieldset>
      <legend>May this be done?</legend>
      {value.action_requests.map(({ name, args }, at) => <pre key={at}>{name}({JSON.stringify(args, null, 1)})</pre>)}
      <button onClick={() => decide("approve")}>Approve</button> <button onClick={() => decide("reject")}>Reject</button>
    </fieldset>
  );
}

function Chat() {
  const [text, setText] = useState("");
  const stream = useStream({
    apiUrl: query.get("api") ?? "http://127.0.0.1:8123",
    apiKey: query.get("key") ?? undefined,
    assistantId: "agent",
    threadId: query.get("thread"),
    onThreadId: (thread) => {
      query.set("thread", thread);
      history.replaceState(null, "", `?${query}`);
    },
  });
  const send = (event) => {
    event.preventDefault();
    stream.submit({ messages: [{ type: "human", content: text }] });
    setText("");
  };
  return (
    <main aria-busy={stream.isLoading}>
      <Messages messages={stream.messages} />
      {[...stream.subagents.values()].map((subagent) => <Subagent key={subagent.id} stream={stream} subagent={subagent} />)}
      {stream.interrupts.map((interrupt) => <Approval key={interrupt.id} stream={stream} interrupt={interrupt} />)}
      {stream.error && <p role="alert">{String(stream.error)}</p>}
      <form onSubmit={send}>
        <input aria-label="Your message" value={text} onChange={({ target }) => setText(target.value)} required />
        <button>Send</button> <button type="button" onClick={() => stream.stop()} disabled={!stream.isLoading}>Stop</button>
      </form>
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
