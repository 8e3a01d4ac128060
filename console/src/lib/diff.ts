// What has changed from one state to the next.
import type { Json, JsonObject } from "../api/types";
import { leftMessages } from "./messages";

export interface Change {
  /** `messages[3]`, `files./notes.md`, `todos[0].status`. */
  path: string;
  /** Messages have left if a summary stands for them and the state had no room: nobody has removed them. */
  kind: "added" | "removed" | "changed" | "left";
  before?: Json;
  after?: Json;
}

const LIMIT = 200;

function isObject(value: Json | undefined): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function same(one: Json | undefined, other: Json | undefined): boolean {
  return one === other || JSON.stringify(one) === JSON.stringify(other);
}

/** Messages and other things with an id are the same if their id is. */
function keyed(list: Json[]): Map<string, Json> | undefined {
  const found = new Map<string, Json>();
  for (const item of list) {
    const id = isObject(item) ? item["id"] : undefined;
    if (typeof id !== "string" || found.has(id)) return undefined;
    found.set(id, item);
  }
  return found;
}

function compare(path: string, before: Json | undefined, after: Json | undefined, changes: Change[]): void {
  if (changes.length >= LIMIT || same(before, after)) return;
  if (before === undefined) {
    changes.push({ path, kind: "added", after });
  } else if (after === undefined) {
    changes.push({ path, kind: "removed", before });
  } else if (Array.isArray(before) && Array.isArray(after)) {
    const old = keyed(before);
    const now = keyed(after);
    if (old && now && (old.size > 0 || now.size > 0)) {
      [...now.entries()].forEach(([id, item], index) => compare(`${path}[${index}]`, old.get(id), item, changes));
      [...old.entries()].forEach(([id, item], index) => {
        if (!now.has(id)) compare(`${path}[${index}]`, item, undefined, changes);
      });
      return;
    }
    for (let index = 0; index < Math.max(before.length, after.length); index += 1) compare(`${path}[${index}]`, before[index], after[index], changes);
  } else if (isObject(before) && isObject(after)) {
    for (const name of new Set([...Object.keys(before), ...Object.keys(after)])) compare(path ? `${path}.${name}` : name, before[name], after[name], changes);
  } else {
    changes.push({ path, kind: "changed", before, after });
  }
}

export function diff(before: JsonObject | undefined, after: JsonObject): Change[] {
  const changes: Change[] = [];
  const old = before ?? {};
  for (const name of new Set([...Object.keys(old), ...Object.keys(after)])) {
    const now = after[name];
    // The first messages and files are shown one by one, too.
    const empty = Array.isArray(now) ? [] : isObject(now) ? {} : undefined;
    compare(name, old[name] ?? empty, now, changes);
  }
  // The oldest leave, in their order.
  const gone = leftMessages(after) - leftMessages(before);
  if (gone <= 0) return changes;
  const places = new Set(Array.from({ length: gone }, (_, index) => `messages[${index}]`));
  return changes.map((change): Change => (change.kind === "removed" && places.has(change.path) ? { ...change, kind: "left" } : change));
}

export interface Line {
  kind: "same" | "added" | "removed";
  text: string;
}

const LINES = 600;

/** The lines of two texts, by their longest common subsequence. Long texts are compared as far as it is quick. */
export function diffLines(before: string, after: string): Line[] {
  const old = before.split("\n").slice(0, LINES);
  const now = after.split("\n").slice(0, LINES);
  const lengths: Uint16Array[] = Array.from({ length: old.length + 1 }, () => new Uint16Array(now.length + 1));
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      const row = lengths[i];
      if (row) row[j] = old[i] === now[j] ? (lengths[i + 1]?.[j + 1] ?? 0) + 1 : Math.max(lengths[i + 1]?.[j] ?? 0, row[j + 1] ?? 0);
    }
  }
  const lines: Line[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push({ kind: "same", text: old[i] ?? "" });
      i += 1;
      j += 1;
    } else if (j < now.length && (i === old.length || (lengths[i]?.[j + 1] ?? 0) > (lengths[i + 1]?.[j] ?? 0))) {
      lines.push({ kind: "added", text: now[j] ?? "" });
      j += 1;
    } else {
      lines.push({ kind: "removed", text: old[i] ?? "" });
      i += 1;
    }
  }
  return lines;
}
