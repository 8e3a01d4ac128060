// The paths of the server are its API, so the console keeps its own place in the fragment of the address: `#/threads/ID?tab=tree`.
import { useMemo, useSyncExternalStore } from "react";

export interface Location {
  path: string;
  query: URLSearchParams;
}

function fragment(): string {
  return window.location.hash.slice(1) || "/";
}

function subscribe(listener: () => void): () => void {
  window.addEventListener("hashchange", listener);
  return () => window.removeEventListener("hashchange", listener);
}

function parse(text: string): Location {
  const mark = text.indexOf("?");
  const path = mark < 0 ? text : text.slice(0, mark);
  return { path: path || "/", query: new URLSearchParams(mark < 0 ? "" : text.slice(mark + 1)) };
}

export function useLocation(): Location {
  const text = useSyncExternalStore(subscribe, fragment);
  return useMemo(() => parse(text), [text]);
}

export type Query = Record<string, string | number | undefined | null>;

/** The address of a page, for `<a href>`. Parameters without a value are left out. */
export function href(path: string, query: Query = {}): string {
  const parameters = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") parameters.set(key, String(value));
  }
  const text = parameters.toString();
  return `#${path}${text ? `?${text}` : ""}`;
}

export function navigate(path: string, query: Query = {}, options: { replace?: boolean } = {}): void {
  const address = href(path, query);
  if (options.replace) {
    history.replaceState(null, "", address);
    window.dispatchEvent(new HashChangeEvent("hashchange"));
  } else {
    window.location.hash = address.slice(1);
  }
}

/** Changes parameters of the present page. `null` takes one away. */
export function setQuery(changes: Query, options: { replace?: boolean } = { replace: true }): void {
  const { path, query } = parse(fragment());
  const merged: Query = Object.fromEntries(query);
  navigate(path, { ...merged, ...changes }, options);
}

/** The parameters of `pattern` (`/threads/:id`) in `path`, or null if it is another page. */
export function match(pattern: string, path: string): Record<string, string> | null {
  const wanted = pattern.split("/").filter(Boolean);
  const given = path.split("/").filter(Boolean);
  if (wanted.length !== given.length) return null;
  const found: Record<string, string> = {};
  for (const [index, part] of wanted.entries()) {
    const value = given[index] ?? "";
    if (part.startsWith(":")) {
      try {
        found[part.slice(1)] = decodeURIComponent(value);
      } catch {
        return null;
      }
    } else if (part !== value) {
      return null;
    }
  }
  return found;
}
