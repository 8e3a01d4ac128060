import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useEffect, useMemo, useRef, useState } from "react";

import { searchThreads, type ThreadFilter, type ThreadRow, type ThreadStatus } from "../api/threads";
import type { Json } from "../api/types";
import { Icon } from "../components/Icon";
import { Badge, Button, Card, EmptyState, ErrorNotice, Loading, PageHeader, Pager, StatusBadge, Time } from "../components/ui";
import { plural, shortId } from "../lib/format";
import { href, navigate, setQuery, useLocation } from "../lib/router";
import { useShortcuts } from "../lib/shortcuts";

const PAGE = 25;
/** How many threads a search for words looks through, the newest first. */
const DEPTH = 500;
const statuses: ThreadStatus[] = ["idle", "busy", "interrupted", "error"];
const times: Record<string, { label: string; hours: number }> = {
  hour: { label: "Last hour", hours: 1 },
  day: { label: "Last 24 hours", hours: 24 },
  week: { label: "Last 7 days", hours: 168 },
  month: { label: "Last 30 days", hours: 720 },
};
const uuid = /^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$/i;

function textOf(content: Json | undefined): string {
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return "";
  return content.map((block) => (block && typeof block === "object" && !Array.isArray(block) && typeof block["text"] === "string" ? block["text"] : "")).join(" ");
}

interface Search {
  words: string;
  status: ThreadStatus | undefined;
  time: string;
  sort: "updated_at" | "created_at";
  offset: number;
}

interface Found {
  threads: ThreadRow[];
  total: number | undefined;
  /** Whether older threads were left out of the search. */
  isCut: boolean;
}

function matches(thread: ThreadRow, words: string): boolean {
  const text = [thread.thread_id, textOf(thread.extracted?.first), textOf(thread.extracted?.last), JSON.stringify(thread.metadata)].join("\n").toLowerCase();
  return words
    .toLowerCase()
    .split(/\s+/)
    .every((word) => text.includes(word));
}

/**
 * What the server can find, it finds: ids, `key:value` of the metadata, the status, the order. Words of messages and times
 * are looked for in the newest threads that it gives.
 */
async function search({ words, status, time, sort, offset }: Search, signal: AbortSignal): Promise<Found> {
  const filter: ThreadFilter = { status, sort_by: sort, sort_order: "desc", limit: PAGE, offset };
  const pair = /^([\w.-]+)[:=](\S+)$/.exec(words);
  if (uuid.test(words)) filter.ids = [words];
  else if (pair?.[1] && pair[2]) filter.metadata = { [pair[1]]: pair[2] };
  const hasWords = words !== "" && !filter.ids && !filter.metadata;
  const since = times[time] ? Date.now() - times[time].hours * 3_600_000 : undefined;
  if (!hasWords && since === undefined) {
    const { items, total } = await searchThreads(filter, signal);
    return { threads: items, total, isCut: false };
  }
  const found: ThreadRow[] = [];
  let isCut = false;
  for (let from = 0; ; from += 100) {
    const { items } = await searchThreads({ ...filter, limit: 100, offset: from }, signal);
    const recent = since === undefined ? items : items.filter((thread) => Date.parse(thread[sort]) >= since);
    found.push(...(hasWords ? recent.filter((thread) => matches(thread, words)) : recent));
    if (items.length < 100 || recent.length < items.length) break;
    if (from + 100 >= DEPTH) {
      isCut = true;
      break;
    }
  }
  return { threads: found.slice(offset, offset + PAGE), total: found.length, isCut };
}

function Row({ thread, isCurrent }: { thread: ThreadRow; isCurrent: boolean }) {
  const first = textOf(thread.extracted?.first).trim();
  const last = textOf(thread.extracted?.last).trim();
  const graph = thread.metadata["graph_id"];
  const waiting = Object.values(thread.interrupts ?? {}).flat().length;
  return (
    <li className="thread-row" data-current={isCurrent || undefined}>
      <a className="thread-link" href={href(`/threads/${thread.thread_id}`)} data-row>
        <span className="thread-row-text">
          <span className="thread-row-title truncate">{first || "Empty thread"}</span>
          <span className="muted truncate">{thread.error ? `${thread.error.error}: ${thread.error.message}` : last && last !== first ? last : "No answer yet"}</span>
        </span>
        <span className="thread-row-facts">
          {waiting > 0 && <Badge tone="warning">{plural(waiting, "question")}</Badge>}
          <StatusBadge status={thread.status} />
          <span className="muted thread-row-agent truncate">{typeof graph === "string" ? graph : "–"}</span>
          <code className="muted thread-row-id">{shortId(thread.thread_id)}</code>
          <span className="muted numeric thread-row-time">
            <Time value={thread.updated_at} />
          </span>
        </span>
      </a>
    </li>
  );
}

export default function Threads() {
  const { query } = useLocation();
  const given = query.get("q") ?? "";
  const [words, setWords] = useState(given);
  const wanted: Search = {
    words: given.trim(),
    status: statuses.find((status) => status === query.get("status")),
    time: query.get("time") ?? "",
    sort: query.get("sort") === "created_at" ? "created_at" : "updated_at",
    offset: Number(query.get("offset") ?? 0) || 0,
  };
  const threads = useQuery({
    queryKey: ["threads", wanted],
    queryFn: ({ signal }) => search(wanted, signal),
    placeholderData: keepPreviousData,
    refetchInterval: 5_000,
  });
  useEffect(() => {
    if (words === given) return;
    const timer = window.setTimeout(() => setQuery({ q: words, offset: null }), 250);
    return () => window.clearTimeout(timer);
  }, [words, given]);
  const list = useRef<HTMLUListElement>(null);
  const [current, setCurrent] = useState(-1);
  const move = (step: number) => {
    const rows = list.current?.querySelectorAll<HTMLElement>("[data-row]");
    if (!rows || rows.length === 0) return;
    const next = Math.max(0, Math.min(rows.length - 1, current + step));
    setCurrent(next);
    rows[next]?.focus();
  };
  useShortcuts({ j: () => move(1), k: () => move(-1) });
  const isFiltered = Boolean(wanted.words || wanted.status || wanted.time);
  const found = threads.data;
  const rows = useMemo(() => found?.threads ?? [], [found]);
  return (
    <>
      <PageHeader title="Threads" lead="All conversations with agents, and what has become of them.">
        <Button kind="primary" icon="plus" onClick={() => navigate("/chat")}>
          New chat
        </Button>
      </PageHeader>
      <div className="toolbar" role="search">
        <div className="search">
          <Icon name="search" />
          <input type="search" data-search aria-label="Search threads" placeholder="Words, a thread id, or key:value of the metadata" value={words} onChange={(event) => setWords(event.target.value)} />
        </div>
        <select aria-label="Status" value={wanted.status ?? ""} onChange={(event) => setQuery({ status: event.target.value, offset: null })}>
          <option value="">Any status</option>
          {statuses.map((status) => (
            <option key={status} value={status}>
              {status}
            </option>
          ))}
        </select>
        <select aria-label="Time" value={wanted.time} onChange={(event) => setQuery({ time: event.target.value, offset: null })}>
          <option value="">Any time</option>
          {Object.entries(times).map(([id, { label }]) => (
            <option key={id} value={id}>
              {label}
            </option>
          ))}
        </select>
        <select aria-label="Order" value={wanted.sort} onChange={(event) => setQuery({ sort: event.target.value === "updated_at" ? null : event.target.value, offset: null })}>
          <option value="updated_at">Last changed first</option>
          <option value="created_at">Newest first</option>
        </select>
      </div>
      <ErrorNotice error={threads.error} onRetry={() => void threads.refetch()} />
      {threads.isPending && (
        <Card>
          <Loading lines={9} />
        </Card>
      )}
      {found && rows.length === 0 && (
        <Card>
          {isFiltered ? (
            <EmptyState icon="search" title="No thread matches" action={<Button onClick={() => { setWords(""); navigate("/"); }}>Clear the search</Button>}>
              Try other words, another status or a longer time.
            </EmptyState>
          ) : (
            <EmptyState icon="threads" title="No threads yet" action={<Button kind="primary" icon="plus" onClick={() => navigate("/chat")}>Start a chat</Button>}>
              A thread begins with the first message to an agent: from a program, an SDK, a cron, or from here.
            </EmptyState>
          )}
        </Card>
      )}
      {rows.length > 0 && (
        <Card>
          <ul className="thread-list" ref={list} aria-label="Threads">
            {rows.map((thread, index) => (
              <Row key={thread.thread_id} thread={thread} isCurrent={index === current} />
            ))}
          </ul>
        </Card>
      )}
      {found && (
        <>
          {found.isCut && <p className="muted search-note">The newest {DEPTH} threads were searched.</p>}
          <Pager offset={wanted.offset} limit={PAGE} shown={rows.length} total={found.total} onChange={(offset) => setQuery({ offset: offset || null })} />
        </>
      )}
    </>
  );
}
