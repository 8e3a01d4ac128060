// As much of a browser as a chat page notices: requests across origins by the rules of fetch, a store for the session,
// and pages that are drawn by React.

import assert from "node:assert/strict";

import { modules } from "./modules.mjs";

const { createElement, useEffect, useState } = modules("react");
const { create } = modules("react-test-renderer");
const { useStream } = modules("sdk-1-15/react");

const ORIGIN = "http://localhost:3000";
const SENT_UNASKED = ["accept", "accept-language", "content-language"];
const READ_UNASKED = ["cache-control", "content-language", "content-length", "content-type", "expires", "last-modified", "pragma"];
const words = (text) => (text ?? "").toLowerCase().split(",").map((word) => word.trim()).filter(Boolean);

// One tab: its requests, in the order in which they were sent, and what it remembers for the session.
export class Tab {
  requests = [];
  closed = new AbortController();

  constructor(session = new Map()) {
    this.session = session;
    this.fetch = this.fetch.bind(this);
    const sessionStorage = {
      getItem: (key) => session.get(key) ?? null,
      setItem: (key, value) => session.set(key, String(value)),
      removeItem: (key) => session.delete(key),
    };
    globalThis.window = { sessionStorage };
  }

  // A reload: every connection breaks off, the session stays.
  reload() {
    this.closed.abort();
    return new Tab(this.session);
  }

  async fetch(input, init = {}) {
    const url = new URL(input);
    const method = init.method ?? "GET";
    const headers = new Headers(init.headers);
    this.requests.push({ method, path: url.pathname, body: init.body ? JSON.parse(init.body) : undefined });
    await ask(url, method, headers);
    headers.set("origin", ORIGIN);
    const signal = init.signal ? AbortSignal.any([init.signal, this.closed.signal]) : this.closed.signal;
    const response = await fetch(url, { ...init, method, headers, signal });
    assert.ok(["*", ORIGIN].includes(response.headers.get("access-control-allow-origin")), `the page may not read ${url}`);
    const exposed = [...READ_UNASKED, ...words(response.headers.get("access-control-expose-headers"))];
    const readable = [...response.headers].filter(([name]) => exposed.includes(name));
    return new Response(response.body, { status: response.status, statusText: response.statusText, headers: readable });
  }

  bodies(method, path) {
    return this.requests.filter((request) => request.method === method && path.test(request.path)).map(({ body }) => body);
  }
}

// The question of a browser before a request that a plain form could not send.
async function ask(url, method, headers) {
  const asked = [...headers.keys()].filter((name) => !SENT_UNASKED.includes(name)).sort();
  if (asked.length === 0 && ["GET", "HEAD", "POST"].includes(method)) return;
  const answer = await fetch(url, {
    method: "OPTIONS",
    headers: { origin: ORIGIN, "access-control-request-method": method, "access-control-request-headers": asked.join(",") },
  });
  const allows = (name) => words(answer.headers.get(`access-control-allow-${name}`));
  assert.ok(answer.ok, `${answer.status} to a preflight of ${method} ${url}`);
  assert.ok(["*", ORIGIN].includes(answer.headers.get("access-control-allow-origin")), `${url} is not for this origin`);
  assert.ok(["GET", "HEAD", "POST"].includes(method) || allows("methods").includes(method.toLowerCase()), `${method} ${url}`);
  // `*` does not stand for `authorization`, so headers have to be named.
  for (const name of asked) assert.ok(allows("headers").includes(name), `${name} to ${url}`);
}

// A page with `useStream`. `look` reads from it what the page shows, which decides the stream modes that are asked for.
export class Page {
  // True after the effects of the first drawing. The hook gives up what is sent before.
  isMounted = false;

  constructor(options, look) {
    const page = this;
    function Draw() {
      const [threadId, setThreadId] = useState(options.threadId ?? null);
      page.stream = useStream({
        ...options,
        threadId,
        onThreadId: (id) => {
          setThreadId(id);
          options.onThreadId?.(id);
        },
      });
      // Effects run in their order: those of the hook are before this one.
      useEffect(() => { page.isMounted = true; }, []);
      page.threadId = threadId;
      page.shown = look(page.stream);
      return null;
    }
    this.drawn = create(createElement(Draw));
  }

  async until(what, happened) {
    for (let turn = 0; turn < 2000; turn += 1) {
      if (this.isMounted && happened(this)) return;
      await new Promise((resolve) => { setTimeout(resolve, 10); });
    }
    assert.fail(`never: ${what}; the page shows ${JSON.stringify(this.shown)}, ${this.stream?.error}`);
  }

  // Sends something and waits until the answer is complete.
  async submit(values, options) {
    await this.until("it is drawn", () => true);
    this.stream.submit(values, options);
    await this.until("an answer begins", () => this.stream.isLoading);
    await this.rests();
  }

  async rests() {
    await this.until("an end", () => !this.stream.isLoading && !this.stream.isThreadLoading);
    assert.equal(this.stream.error, undefined);
  }

  close() {
    this.drawn.unmount();
  }
}
