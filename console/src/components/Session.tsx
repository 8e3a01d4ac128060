import { useQueryClient } from "@tanstack/react-query";
import { useStream, useSubmissionQueue } from "@langchain/react";
import { createContext, type ReactNode, useContext, useEffect, useMemo, useRef, useState } from "react";

import { sdk } from "../api/client";
import { useThread } from "../api/threads";
import type { JsonObject } from "../api/types";
import { Feed } from "../lib/feed";
import { useFrame } from "../lib/frame";
import { type Message, messageOfSdk } from "../lib/messages";
import { keepQueuedTexts, queuedTexts } from "../lib/queued";

/** One open thread: what is said on it, who works on it, and how to say something. */
export interface Session {
  threadId: string;
  feed: Feed;
  messages: readonly Message[];
  values: JsonObject;
  isLoading: boolean;
  isThreadLoading: boolean;
  error: unknown;
  queued: number;
  say: (text: string) => void;
  /** Continues from the state of the thread, or from one of its checkpoints. */
  goOn: (checkpointId?: string) => Promise<void>;
  stop: () => void;
}

const FeedContext = createContext<{ feed: Feed; threadId: string } | null>(null);

export function useFeed(): { feed: Feed; threadId: string } {
  const found = useContext(FeedContext);
  if (!found) throw new Error("This part needs a session around it.");
  return found;
}

/**
 * Cancels what runs and waits on a thread. The hook's own `stop` knows only the runs that it has started, and it would not
 * follow the end of the run.
 */
async function cancelRuns(threadId: string): Promise<void> {
  const { runs } = sdk();
  // What waits would begin as soon as the run that works has ended.
  for (const status of ["pending", "running"] as const) {
    const found = await runs.list(threadId, { status, limit: 100 });
    // A run that has ended meanwhile cannot be cancelled. The others are.
    await Promise.allSettled(found.map((run) => runs.cancel(threadId, run.run_id)));
  }
}

/** Returns the input of a run that says something. */
function saying(text: string) {
  return { messages: [{ type: "human", content: text }] };
}

/** Returns the text of what waits in the queue of the hook. */
function textOf(entry: { readonly values?: unknown }): string {
  return (entry.values as ReturnType<typeof saying> | undefined)?.messages[0]?.content ?? "";
}

interface Properties {
  threadId: string;
  assistantId: string;
  /** A message that is sent as soon as the thread is there. */
  first?: string;
  onFirst?: () => void;
  children: (session: Session) => ReactNode;
}

function Connected({ threadId, assistantId, first, onFirst, children, onForeignRun }: Properties & { onForeignRun: () => void }) {
  const queries = useQueryClient();
  const client = sdk();
  const stream = useStream<{ messages: unknown[] }>({ client, assistantId, threadId, transport: "sse" });
  const queue = useSubmissionQueue(stream);
  const feed = useMemo(() => new Feed(), []);
  const handle = stream.getThread();
  useEffect(() => {
    if (!handle) return;
    const end = new AbortController();
    feed.follow(handle, end.signal).catch(() => {
      // The hook tells of a broken stream as its error.
    });
    return () => end.abort();
  }, [handle, feed]);
  useEffect(() => () => feed.dispose(), [feed]);
  // What is read by other requests is read again when an agent begins, waits or ends, at most twice in a second.
  useEffect(() => {
    let timer = 0;
    let isRootToo = false;
    const listener = (event: string) => {
      isRootToo ||= event.startsWith("root-");
      if (timer) return;
      timer = window.setTimeout(() => {
        timer = 0;
        void queries.invalidateQueries({ queryKey: ["tree", threadId] });
        void queries.invalidateQueries({ queryKey: ["runs", threadId] });
        void queries.invalidateQueries({ queryKey: ["interrupts"] });
        if (isRootToo) void queries.invalidateQueries({ queryKey: ["thread", threadId] });
        isRootToo = false;
        void queries.invalidateQueries({ queryKey: ["history", threadId] });
      }, 500);
    };
    const end = feed.onLifecycle(listener);
    return () => {
      end();
      window.clearTimeout(timer);
    };
  }, [feed, queries, threadId]);

  // The hook does not follow an idle thread. If somebody else starts a run on it, it has to begin anew.
  const status = useThread(threadId).data?.status;
  const isIdleHere = !stream.isLoading && !stream.isThreadLoading;
  useEffect(() => {
    if (status !== "busy" || !isIdleHere) return;
    const timer = window.setTimeout(onForeignRun, 1_500);
    return () => window.clearTimeout(timer);
  }, [status, isIdleHere, onForeignRun]);

  const said = useRef(false);
  useEffect(() => {
    if (!first || said.current || stream.isThreadLoading || !handle) return;
    said.current = true;
    void stream.submit(saying(first));
    onFirst?.();
  }, [first, onFirst, stream, handle]);

  // Messages that waited before a reload, or before the hook began anew, wait again.
  const isRestored = useRef(false);
  useEffect(() => {
    if (isRestored.current || stream.isThreadLoading || !handle) return;
    isRestored.current = true;
    const texts = queuedTexts(threadId);
    keepQueuedTexts(threadId, []);
    for (const text of texts) void stream.submit(saying(text), { multitaskStrategy: "enqueue" });
  }, [stream, handle, threadId]);
  useEffect(() => {
    if (isRestored.current) keepQueuedTexts(threadId, queue.entries.map(textOf));
  }, [queue.entries, threadId]);

  const shown = useFrame(stream.messages);
  const messages = useMemo(() => {
    const made = shown.map(messageOfSdk);
    const last = made.at(-1);
    if (stream.isLoading && last?.role === "ai" && last.toolCalls.length === 0) made[made.length - 1] = { ...last, isStreaming: true };
    return made;
  }, [shown, stream.isLoading]);
  const session: Session = {
    threadId,
    feed,
    messages,
    values: stream.values as unknown as JsonObject,
    isLoading: stream.isLoading,
    isThreadLoading: stream.isThreadLoading,
    error: stream.error,
    queued: queue.size,
    say: (text) => void stream.submit(saying(text), { multitaskStrategy: "enqueue" }),
    goOn: (checkpointId) => stream.submit(null, checkpointId ? { forkFrom: checkpointId } : {}),
    stop: () => {
      // The hook would send them when the run has ended.
      void queue.clear();
      keepQueuedTexts(threadId, []);
      void cancelRuns(threadId);
    },
  };
  const context = useMemo(() => ({ feed, threadId }), [feed, threadId]);
  return <FeedContext.Provider value={context}>{children(session)}</FeedContext.Provider>;
}

/** Follows a thread by the official hook, and tells its children what happens. */
export function SessionProvider(properties: Properties) {
  const [generation, setGeneration] = useState(0);
  return <Connected key={`${properties.threadId} ${generation}`} {...properties} onForeignRun={() => setGeneration((before) => before + 1)} />;
}
