import { useMemo, useState } from "react";

import { Button, classes } from "./ui";
import { bytes } from "../lib/format";

const LIMIT = 4_000;

/** A text in its own lines. A long one is cut until it is asked for. */
export function LongText({ text, limit = LIMIT, code, label }: { text: string; limit?: number; code?: boolean; label?: string }) {
  const [isWhole, setIsWhole] = useState(false);
  const isCut = text.length > limit && !isWhole;
  return (
    <div className="long-text">
      <pre className={classes("pre", code && "pre-code")} tabIndex={0} role="region" aria-label={label ?? "Value"}>
        {isCut ? `${text.slice(0, limit)}…` : text}
      </pre>
      {text.length > limit && (
        <Button small kind="ghost" onClick={() => setIsWhole(!isWhole)} aria-expanded={isWhole}>
          {isWhole ? "Show less" : `Show all (${bytes(text.length)})`}
        </Button>
      )}
    </div>
  );
}

const token = /("(?:\\.|[^"\\])*")(\s*:)?|\b(true|false|null)\b|(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)/g;

function coloured(text: string) {
  const parts: React.ReactNode[] = [];
  let end = 0;
  for (const found of text.matchAll(token)) {
    if (found.index > end) parts.push(text.slice(end, found.index));
    const kind = found[1] ? (found[2] ? "key" : "string") : found[3] ? "word" : "number";
    parts.push(
      <span key={found.index} className={`json-${kind}`}>
        {found[1] ?? found[0]}
      </span>,
    );
    if (found[2]) parts.push(found[2]);
    end = found.index + found[0].length;
  }
  parts.push(text.slice(end));
  return parts;
}

/** A JSON value with colours, cut if it is long. */
export function JsonView({ value, limit = LIMIT, label }: { value: unknown; limit?: number; label?: string }) {
  const [isWhole, setIsWhole] = useState(false);
  const text = useMemo(() => (value === undefined ? "" : JSON.stringify(value, null, 2)) ?? "", [value]);
  const isCut = text.length > limit && !isWhole;
  const shown = isCut ? `${text.slice(0, limit)}…` : text;
  // Colours of a very long text would be tens of thousands of elements.
  const parts = useMemo(() => (shown.length > 20_000 ? shown : coloured(shown)), [shown]);
  return (
    <div className="long-text">
      <pre className="pre pre-code" tabIndex={0} role="region" aria-label={label ?? "JSON"}>
        {parts}
      </pre>
      {text.length > limit && (
        <Button small kind="ghost" onClick={() => setIsWhole(!isWhole)} aria-expanded={isWhole}>
          {isWhole ? "Show less" : `Show all (${bytes(text.length)})`}
        </Button>
      )}
    </div>
  );
}
