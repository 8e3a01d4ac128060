// A chat page as applications build it with `@langchain/react`: messages, cards of subagents, questions, a button to stop.

import { createRoot } from "react-dom/client";
import { useMessages, useStream } from "@langchain/react";

const parameters = new URLSearchParams(location.search);

const textOf = ({ content }) => (typeof content === "string" ? content : content.map(({ text }) => text ?? "").join(""));

function Messages({ messages }) {
  return messages.map((message) => (
    <p key={message.id} data-kind={message.getType?.() ?? message.type}>{textOf(message)}</p>
  ));
}

function Card({ stream, subagent }) {
  const messages = useMessages(stream, subagent);
  return (
    <section className="card" data-name={subagent.name} data-status={subagent.status}>
      <Messages messages={messages} />
    </section>
  );
}

function Chat() {
  const stream = useStream({
    apiUrl: parameters.get("api"),
    apiKey: parameters.get("key") ?? undefined,
    assistantId: "agent",
    threadId: parameters.get("thread"),
    transport: parameters.get("transport") ?? "sse",
    onThreadId: (thread) => {
      parameters.set("thread", thread);
      history.replaceState(null, "", `?${parameters}`);
    },
  });
  window.say = (text) => void stream.submit({ messages: [{ type: "human", content: text }] });
  // By its id: after a reload the question is known from the state before the stream has told of it again.
  window.answer = (response) => void stream.respond(response, { interruptId: stream.interrupts[0].id });
  window.stop = () => void stream.stop();
  return (
    <main data-loading={String(stream.isLoading)} data-error={stream.error ? String(stream.error) : ""}>
      <div id="messages"><Messages messages={stream.messages} /></div>
      {[...stream.subagents.values()].map((subagent) => (
        <Card key={subagent.id} stream={stream} subagent={subagent} />
      ))}
      {stream.interrupts.map(({ id, value }) => (
        <aside key={id} data-tool={value.action_requests[0].name} />
      ))}
    </main>
  );
}

createRoot(document.getElementById("root")).render(<Chat />);
