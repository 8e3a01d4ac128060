import { useThread, useAssistants } from "../api/threads";
import { ThreadView } from "../components/ThreadView";
import { EmptyState, ErrorNotice, Loading } from "../components/ui";

/** The text of the first message, as the name of the thread. */
function titleOf(values: unknown): string {
  const first = (values as { messages?: { content?: unknown }[] } | null | undefined)?.messages?.[0]?.content;
  const text = typeof first === "string" ? first : Array.isArray(first) ? first.map((block: { text?: string }) => block.text ?? "").join(" ") : "";
  return text.trim().split("\n")[0]?.slice(0, 90) || "Thread";
}

export default function Thread({ threadId }: { threadId: string }) {
  const thread = useThread(threadId);
  const assistants = useAssistants();
  if (thread.isError) {
    const isMissing = /404|not found/i.test(String(thread.error));
    return isMissing ? (
      <EmptyState icon="search" title="There is no such thread" action={<a className="button button-secondary" href="#/">Go to the threads</a>}>
        It may have been deleted, or it belongs to somebody else.
      </EmptyState>
    ) : (
      <ErrorNotice error={thread.error} onRetry={() => void thread.refetch()} />
    );
  }
  if (thread.isPending || assistants.isPending) return <Loading lines={8} />;
  const metadata = thread.data.metadata as { assistant_id?: string; graph_id?: string } | undefined;
  const assistantId = metadata?.assistant_id ?? metadata?.graph_id ?? assistants.data?.[0]?.assistant_id ?? "agent";
  const name = assistants.data?.find((assistant) => assistant.assistant_id === assistantId || assistant.graph_id === assistantId)?.name ?? "agent";
  return <ThreadView key={threadId} threadId={threadId} assistantId={assistantId} agentName={name} title={<h1 className="truncate">{titleOf(thread.data.values)}</h1>} />;
}
