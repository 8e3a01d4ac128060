import { useInfiniteQuery, useMutation, useQueryClient } from "@tanstack/react-query";
import { memo, useEffect, useMemo, useState } from "react";

import { sdk } from "../api/client";
import { readHistory, type ThreadState } from "../api/threads";
import type { Json, JsonObject } from "../api/types";
import { type Change, diff, diffLines } from "../lib/diff";
import { duration, plural } from "../lib/format";
import { messageOfWire } from "../lib/messages";
import { Icon, type IconName } from "./Icon";
import { JsonView } from "./JsonView";
import { useFeed } from "./Session";
import { fileText, StateView } from "./StateView";
import { Badge, Button, classes, CopyId, Dialog, EmptyState, ErrorNotice, Field, Loading, Time } from "./ui";

const PAGE = 20;
const signs = { added: "+", removed: "−", changed: "~", left: "−" };
const words = { added: "added", removed: "removed", changed: "changed", left: "has left the state" };

/** A message of a state in a line. */
function messageLine(value: Json | undefined): { role: string; text: string } | undefined {
  if (typeof value !== "object" || value === null || Array.isArray(value) || !("type" in value) || !("content" in value)) return undefined;
  const message = messageOfWire(value as Parameters<typeof messageOfWire>[0]);
  const calls = message.toolCalls.map((call) => `${call.name}(…)`).join(", ");
  return { role: message.role, text: [message.text, calls].filter(Boolean).join(" → ") };
}

function isLongText(value: Json | undefined): boolean {
  return typeof value === "string" && value.includes("\n");
}

/** A file, or a text of several lines, with its lines that are new or gone. */
function TextDiff({ before, after }: { before: Json | undefined; after: Json | undefined }) {
  const lines = useMemo(() => diffLines(before === undefined ? "" : fileText(before), after === undefined ? "" : fileText(after)), [before, after]);
  return (
    <pre className="pre pre-code diff-lines" tabIndex={0} role="region" aria-label="Changed lines">
      {lines.map((line, index) => (
        <span key={index} className={`diff-line diff-${line.kind}`}>
          <span aria-hidden="true">{line.kind === "added" ? "+ " : line.kind === "removed" ? "− " : "  "}</span>
          {line.kind !== "same" && <span className="visually-hidden">{line.kind}: </span>}
          {line.text}
          {"\n"}
        </span>
      ))}
    </pre>
  );
}

const ChangeView = memo(function ChangeView({ change }: { change: Change }) {
  const [isOpen, setIsOpen] = useState(false);
  const { path, kind, before, after } = change;
  const message = messageLine(after ?? before);
  const brief = (value: Json | undefined): string => (typeof value === "string" ? value : JSON.stringify(value) ?? "");
  const isFile = path.startsWith("files.");
  return (
    <li className={`change change-${kind}`}>
      <button type="button" className="change-line" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
        <span className="change-sign" aria-hidden="true">
          {signs[kind]}
        </span>
        <span className="visually-hidden">{words[kind]} </span>
        <span className="mono change-path">{path}</span>
        {kind === "left" && <Badge>left</Badge>}
        {message && <Badge>{message.role}</Badge>}
        <span className="truncate muted">{message ? message.text : isFile ? "" : kind === "changed" ? `${brief(before)} → ${brief(after)}` : brief(after ?? before)}</span>
      </button>
      {isOpen &&
        (isFile || isLongText(before) || isLongText(after) ? (
          <TextDiff before={before} after={after} />
        ) : (
          <div className="stack change-values">
            {before !== undefined && (
              <div>
                <p className="small-heading">Before</p>
                <JsonView value={before} label={`${path} before`} />
              </div>
            )}
            {after !== undefined && (
              <div>
                <p className="small-heading">After</p>
                <JsonView value={after} label={`${path} after`} />
              </div>
            )}
          </div>
        ))}
    </li>
  );
});

const SHOWN = 12;

function Changes({ before, after }: { before: JsonObject | undefined; after: JsonObject }) {
  const changes = useMemo(() => diff(before, after), [before, after]);
  const [isWhole, setIsWhole] = useState(false);
  if (changes.length === 0) return <p className="muted">The state is the same as before.</p>;
  return (
    <>
      <ul className="changes">
        {(isWhole ? changes : changes.slice(0, SHOWN)).map((change) => (
          <ChangeView key={`${change.path} ${change.kind}`} change={change} />
        ))}
      </ul>
      {changes.length > SHOWN && (
        <Button small kind="ghost" aria-expanded={isWhole} onClick={() => setIsWhole(!isWhole)}>
          {isWhole ? "Show less" : `Show all (${changes.length})`}
        </Button>
      )}
    </>
  );
}

/** Changes values of a checkpoint, and goes on from the changed state. */
function ForkDialog({ state, onClose, onForked }: { state: ThreadState; onClose: () => void; onForked: (checkpointId: string, runs: boolean) => void }) {
  const { threadId } = useFeed();
  const [text, setText] = useState('{\n  "messages": [\n    { "role": "user", "content": "" }\n  ]\n}');
  const [fault, setFault] = useState<string>();
  const fork = useMutation({
    mutationFn: async (runs: boolean) => {
      const values = JSON.parse(text) as JsonObject;
      const updated = await sdk().threads.updateState(threadId, { values, checkpointId: state.checkpoint_id ?? undefined });
      return { updated, runs };
    },
    onSuccess: ({ updated, runs }) => {
      const { checkpoint_id } = (updated as unknown as { configurable: { checkpoint_id: string } }).configurable;
      onForked(checkpoint_id, runs);
    },
  });
  const send = (runs: boolean) => {
    try {
      JSON.parse(text);
    } catch {
      setFault("This is not JSON.");
      return;
    }
    setFault(undefined);
    fork.mutate(runs);
  };
  return (
    <Dialog title="Fork with changes" wide onClose={onClose}>
      <form
        className="stack"
        onSubmit={(event) => {
          event.preventDefault();
          send(true);
        }}
      >
        <Field label="Values" hint="What is written into the state of this checkpoint. Messages are appended, or replaced by their id; other fields are replaced." error={fault}>
          {({ id, describedBy, invalid }) => <textarea id={id} className="code" rows={12} spellCheck={false} autoFocus value={text} aria-describedby={describedBy} aria-invalid={invalid} onChange={(event) => setText(event.target.value)} />}
        </Field>
        <ErrorNotice error={fork.error} />
        <details className="details">
          <summary>The state of this checkpoint</summary>
          <JsonView value={state.values} label="State" />
        </details>
        <div className="dialog-actions">
          <Button disabled={fork.isPending} onClick={() => send(false)}>
            Write only
          </Button>
          <Button kind="primary" type="submit" icon="fork" busy={fork.isPending}>
            Write and run
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

const sources: Record<string, { icon: IconName; word: string }> = {
  input: { icon: "chat", word: "Input" },
  loop: { icon: "replay", word: "Step" },
  update: { icon: "fork", word: "Update" },
  fork: { icon: "fork", word: "Fork" },
};

interface StepProperties {
  state: ThreadState;
  parent: ThreadState | undefined;
  isNewest: boolean;
  isBranch: boolean;
  isBusy: boolean;
  onReplay: (state: ThreadState) => void;
  onFork: (state: ThreadState) => void;
  onShow: (state: ThreadState) => void;
}

/** Whether somebody stopped the task, which is no failure. */
function isCancellation(error: string): boolean {
  return /^User(Interrupt|Rollback)\(/.test(error);
}

function Step({ state, parent, isNewest, isBranch, isBusy, onReplay, onFork, onShow }: StepProperties) {
  const [isOpen, setIsOpen] = useState(isNewest);
  const metadata = state.metadata ?? {};
  const source = sources[String(metadata["source"])] ?? { icon: "clock" as const, word: String(metadata["source"] ?? "Checkpoint") };
  const step = metadata["step"];
  const took = state.created_at && parent?.created_at ? Date.parse(state.created_at) - Date.parse(parent.created_at) : undefined;
  const nodes = [...new Set(parent?.tasks.map((task) => task.name) ?? [])];
  const errors = [...new Set(state.tasks.flatMap((task) => task.error ?? []))];
  const waits = state.tasks.some((task) => task.interrupts.length > 0);
  return (
    <li className={classes("step", isBranch && "step-branch")} data-checkpoint={state.checkpoint_id}>
      <span className="step-mark" aria-hidden="true">
        <Icon name={source.icon} size={13} />
      </span>
      <div className="step-body">
        <div className="step-head">
          <button type="button" className="step-title" aria-expanded={isOpen} onClick={() => setIsOpen(!isOpen)}>
            <strong>
              {source.word} {typeof step === "number" ? step : ""}
            </strong>
            {nodes.length > 0 && <span className="mono muted">{nodes.join(", ")}</span>}
            {took !== undefined && <span className="muted numeric">{duration(took)}</span>}
            <span className="muted">
              <Time value={state.created_at} />
            </span>
            {isNewest && <Badge tone="accent">now</Badge>}
            {waits && <Badge tone="warning">waits</Badge>}
            {errors.length > 0 && (errors.every(isCancellation) ? <Badge>cancelled</Badge> : <Badge tone="danger">failed</Badge>)}
          </button>
        </div>
        {isOpen && (
          <div className="step-detail">
            {errors.map((error) => (
              <p key={error} className={isCancellation(error) ? "muted" : "field-error"}>
                {error}
              </p>
            ))}
            <Changes before={parent?.values} after={state.values} />
            <div className="row">
              <Button small icon="replay" disabled={isBusy} onClick={() => onReplay(state)} title="Run again from this checkpoint">
                Replay
              </Button>
              <Button small icon="fork" disabled={isBusy} onClick={() => onFork(state)} title="Change the state of this checkpoint, and go on from there">
                Fork…
              </Button>
              <Button small kind="ghost" onClick={() => onShow(state)}>
                Whole state
              </Button>
            </div>
            <div className="row step-facts">
              {state.next.length > 0 && <span className="muted">next: {[...new Set(state.next)].join(", ")}</span>}
              {state.checkpoint_id && <CopyId id={state.checkpoint_id} label="checkpoint id" />}
            </div>
          </div>
        )}
      </div>
    </li>
  );
}

/** The checkpoints of a thread, the newest first, with what each step has changed. */
export function Timeline({ isBusy, onRun }: { isBusy: boolean; onRun: (checkpointId: string) => Promise<void> }) {
  const { threadId } = useFeed();
  const queries = useQueryClient();
  const [forked, setForked] = useState<ThreadState>();
  const [shown, setShown] = useState<ThreadState>();
  const history = useInfiniteQuery({
    queryKey: ["history", threadId],
    queryFn: ({ pageParam, signal }) => readHistory(threadId, { limit: PAGE, before: pageParam || undefined }, signal),
    initialPageParam: "",
    getNextPageParam: (page) => (page.length === PAGE ? (page.at(-1)?.checkpoint_id ?? undefined) : undefined),
  });
  const states = useMemo(() => history.data?.pages.flat() ?? [], [history.data]);
  const pages = history.data?.pages.length ?? 0;
  const { hasNextPage, isFetching, isError, fetchNextPage } = history;
  // An event that makes the history stale ends the request for the next page, so the number of pages asked for is kept.
  const [pagesWanted, setPagesWanted] = useState(1);
  useEffect(() => {
    if (pages > 0 && pages < pagesWanted && hasNextPage && !isFetching && !isError) void fetchNextPage();
  }, [pages, pagesWanted, hasNextPage, isFetching, isError, fetchNextPage]);
  const byId = useMemo(() => new Map(states.map((state) => [state.checkpoint_id, state])), [states]);
  // The line from the newest checkpoint back to the first one; all others are on branches that were left.
  const line = useMemo(() => {
    const ids = new Set<string | null>();
    let state: ThreadState | undefined = states[0];
    while (state && !ids.has(state.checkpoint_id)) {
      ids.add(state.checkpoint_id);
      state = byId.get(state.parent_checkpoint_id);
    }
    return ids;
  }, [states, byId]);
  const replay = useMutation({ mutationFn: onRun });
  if (history.isPending) return <Loading lines={6} />;
  if (history.isError) return <ErrorNotice error={history.error} onRetry={() => void history.refetch()} />;
  if (states.length === 0) {
    return (
      <EmptyState icon="clock" title="No checkpoint yet">
        Every step of a run leaves a checkpoint here, from which it can be replayed or forked.
      </EmptyState>
    );
  }
  return (
    <div>
      <ErrorNotice title="The replay has failed" error={replay.error} />
      <ol className="timeline" aria-label="Checkpoints, the newest first">
        {states.map((state, index) => (
          <Step
            key={state.checkpoint_id ?? index}
            state={state}
            parent={byId.get(state.parent_checkpoint_id)}
            isNewest={index === 0}
            isBranch={!line.has(state.checkpoint_id)}
            isBusy={isBusy || replay.isPending}
            onReplay={({ checkpoint_id }) => checkpoint_id && replay.mutate(checkpoint_id)}
            onFork={setForked}
            onShow={setShown}
          />
        ))}
      </ol>
      {hasNextPage && (
        <Button small busy={pages < pagesWanted} onClick={() => setPagesWanted(pages + 1)}>
          Show older checkpoints
        </Button>
      )}
      {!hasNextPage && <p className="muted timeline-end">{plural(states.length, "checkpoint")}</p>}
      {forked && (
        <ForkDialog
          state={forked}
          onClose={() => setForked(undefined)}
          onForked={(checkpointId, runs) => {
            setForked(undefined);
            void queries.invalidateQueries({ queryKey: ["history", threadId] });
            if (runs) replay.mutate(checkpointId);
          }}
        />
      )}
      {shown && (
        <Dialog title={`State at ${shown.checkpoint_id ?? "the checkpoint"}`} wide onClose={() => setShown(undefined)}>
          <StateView values={shown.values} />
          <h3 className="panel-heading">As JSON</h3>
          <JsonView value={shown.values} label="State" />
        </Dialog>
      )}
    </div>
  );
}
