import { useQueryClient } from "@tanstack/react-query";
import { useCallback, useState } from "react";

import { messageOf, sdk } from "../api/client";
import { useAssistants } from "../api/threads";
import { Composer } from "../components/Composer";
import { ThreadView } from "../components/ThreadView";
import { Button, EmptyState, ErrorNotice, Loading } from "../components/ui";
import { setQuery, useLocation } from "../lib/router";

/** A new conversation with any agent. */
export default function Chat() {
  const { query } = useLocation();
  const queries = useQueryClient();
  const assistants = useAssistants();
  const [first, setFirst] = useState<string>();
  const [error, setError] = useState<unknown>();
  const [isBusy, setIsBusy] = useState(false);
  const threadId = query.get("thread");
  const onFirst = useCallback(() => setFirst(undefined), []);
  if (assistants.isPending) return <Loading lines={6} />;
  if (assistants.isError) return <ErrorNotice error={assistants.error} onRetry={() => void assistants.refetch()} />;
  if (assistants.data.length === 0) {
    return (
      <EmptyState icon="agents" title="No agent is defined" action={<a className="button button-secondary" href="#/agents">Go to the agents</a>}>
        Define an agent in adjutant.toml, and it can be tried here.
      </EmptyState>
    );
  }
  const wanted = query.get("assistant");
  const chosen = assistants.data.find((each) => each.assistant_id === wanted || each.graph_id === wanted) ?? assistants.data[0];
  if (!chosen) return null;
  const picker = (
    <label className="picker">
      <span className="visually-hidden">Agent</span>
      <select value={chosen.assistant_id} onChange={(event) => setQuery({ assistant: event.target.value, thread: null })}>
        {assistants.data.map((assistant) => (
          <option key={assistant.assistant_id} value={assistant.assistant_id}>
            {assistant.name === assistant.graph_id ? assistant.name : `${assistant.name} (${assistant.graph_id})`}
          </option>
        ))}
      </select>
    </label>
  );
  const begin = async (text: string) => {
    setIsBusy(true);
    setError(undefined);
    try {
      const thread = await sdk().threads.create({ metadata: { source: "console" } });
      setFirst(text);
      setQuery({ assistant: chosen.assistant_id, thread: thread.thread_id }, { replace: false });
      void queries.invalidateQueries({ queryKey: ["threads"] });
    } catch (failure) {
      setError(new Error(messageOf(failure)));
    } finally {
      setIsBusy(false);
    }
  };
  if (threadId) {
    return (
      <ThreadView
        key={threadId}
        threadId={threadId}
        assistantId={chosen.assistant_id}
        agentName={chosen.name}
        first={first}
        onFirst={onFirst}
        title={
          <>
            <h1 className="visually-hidden">Chat with {chosen.name}</h1>
            {picker}
            <Button small icon="plus" onClick={() => setQuery({ thread: null, tab: null }, { replace: false })}>
              New chat
            </Button>
          </>
        }
      />
    );
  }
  return (
    <div className="chat-start">
      <div className="chat-intro">
        <h1>Chat with {chosen.name}</h1>
        <p className="page-lead">{chosen.description ?? "This agent has no description."}</p>
        <div className="row chat-picker">
          {picker}
          <span className="muted">version {chosen.version}</span>
        </div>
      </div>
      <ErrorNotice error={error} />
      <Composer autoFocus isBusy={false} isDisabled={isBusy} placeholder={`Message to ${chosen.name}`} onSend={(text) => void begin(text)} />
    </div>
  );
}
