// The parts of a streaming front end, one for each trap in docs/front-ends.md. They run in browsers and in Node.

// Server-sent events, as the HTML standard reads them. An event without the empty line behind it is incomplete.
export async function* events(body) {
  // A character may be cut anywhere: the decoder keeps its beginning until the rest comes.
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  let event = {};
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      // Lines end with CRLF, LF or CR, and a CR at the end may be half of a CRLF.
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data !== undefined) yield event;
          event = {};
          continue;
        }
        const [, field, text] = /^([^:]*):? ?(.*)$/.exec(line);
        // Without a field it is a comment: a heartbeat. Several lines of data are one text.
        if (field === "data") event.data = event.data === undefined ? text : `${event.data}\n${text}`;
        else if (field) event[field] = text;
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}

// The name of an event is a mode, or a mode and the namespace of a subagent: `messages|tools:…|tools:…`.
export function nameOf(event) {
  const [mode, ...namespace] = event.split("|");
  return { mode, namespace };
}

// The messages of a conversation, assembled from the pieces of the mode `messages-tuple`.
export class Messages {
  byId = new Map();

  // Takes messages of the state, which a replay sends again in pieces.
  addState(messages) {
    for (const message of messages) this.byId.set(message.id, { ...message, isWhole: true });
  }

  // Takes the data of an event: a piece and its metadata. The first piece of a message has all of the metadata.
  add([piece, metadata]) {
    const known = this.byId.get(piece.id);
    if (known?.isWhole) return known;
    if (piece.type !== "AIMessageChunk") {
      const whole = { ...piece, metadata, isWhole: true };
      this.byId.set(piece.id, whole);
      return whole;
    }
    const message = known ?? { id: piece.id, type: "ai", text: "", calls: [], metadata };
    message.text += typeof piece.content === "string" ? piece.content : piece.content.map(({ text }) => text ?? "").join("");
    for (const { index, id, name, args } of piece.tool_call_chunks) {
      const call = (message.calls[index] ??= { id, name, args: "" });
      call.args += args ?? "";
    }
    message.isWhole = piece.chunk_position === "last";
    this.byId.set(piece.id, message);
    return message;
  }
}

// The arguments of a call are a text that becomes JSON with its last piece.
export function argumentsOf(call) {
  try {
    return JSON.parse(call.args);
  } catch {
    return undefined;
  }
}

// The answer to a question about tool calls: one decision for each call.
export const decide = ({ id, value }, type) => ({ [id]: { decisions: value.action_requests.map(() => ({ type })) } });

const wait = (milliseconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  signal?.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});

export class Server {
  // `silence` is the time without a byte after which a connection counts as dead. The server sends a heartbeat every
  // `keep_alive_s`, which is 5 seconds.
  constructor(url, { headers = {}, silence = 15_000 } = {}) {
    Object.assign(this, { url, silence, headers: { "content-type": "application/json", "x-stream-metadata": "lean", ...headers } });
  }

  async call(path, { body, headers, method = body ? "POST" : "GET", signal } = {}) {
    const response = await fetch(this.url + path, {
      method, signal, headers: { ...this.headers, ...headers }, body: body && JSON.stringify(body),
    });
    if (response.ok) return response;
    const error = new Error(`${response.status} ${await response.text()}`);
    // Another attempt helps when the server is busy, restarts or is gone, not when it refuses the request.
    error.isFinal = response.status < 500 && response.status !== 429;
    throw error;
  }

  // Starts a run and yields its events to the end, over as many connections as it takes. `signal` ends the reading, not the run.
  async *run(thread, body, signal) {
    // The same key with each attempt: the run is started once, even if the response to the first attempt was lost.
    const headers = { "idempotency-key": crypto.randomUUID() };
    const open = (signal) => this.call(`/threads/${thread}/runs/stream`, {
      body: { stream_mode: ["messages-tuple"], stream_subgraphs: true, stream_resumable: true, ...body }, headers, signal,
    });
    yield* this.follow(open, undefined, undefined, signal);
  }

  // Yields the events of a run behind the event `last`; `-1` is before the first.
  async *join(path, last = "-1", signal) {
    yield* this.follow(undefined, path, last, signal);
  }

  async *follow(open, path, last, signal) {
    for (let failures = 0; !signal?.aborted;) {
      const connection = new AbortController();
      const abort = () => connection.abort();
      signal?.addEventListener("abort", abort, { once: true });
      try {
        const response = path
          ? await this.call(`${path}/stream`, { headers: { "last-event-id": last ?? "-1" }, signal: connection.signal })
          : await open(connection.signal);
        path = response.headers.get("content-location") ?? path;
        for await (const event of events(this.watched(response.body, abort))) {
          last = event.id ?? last;
          failures = 0;
          yield { ...nameOf(event.event), data: JSON.parse(event.data), id: event.id, path };
        }
        return;
      } catch (error) {
        if (signal?.aborted) return;
        if (error.isFinal || ++failures > 8) throw error;
        await wait(Math.min(100 * 2 ** failures, 10_000) * (0.5 + Math.random() / 2), signal);
      } finally {
        signal?.removeEventListener("abort", abort);
        abort();
      }
    }
  }

  // Ends a connection on which nothing arrives, not even a heartbeat.
  watched(body, abort) {
    let timer = setTimeout(abort, this.silence);
    return body.pipeThrough(new TransformStream({
      transform: (bytes, controller) => {
        clearTimeout(timer);
        timer = setTimeout(abort, this.silence);
        controller.enqueue(bytes);
      },
      flush: () => clearTimeout(timer),
    }));
  }

  // Stops the run. Closing the connection does not: others may read it, and its user may come back.
  cancel = (path) => this.call(`${path}/cancel`, { method: "POST", body: {} });

  // Reads what is new of a run with `EventSource`, which cannot send headers. A ticket works once, so each connection gets its own.
  async source(path, take) {
    const { ticket } = await (await this.call("/auth/tickets", { method: "POST" })).json();
    const source = new EventSource(`${this.url}${path}/stream?${new URLSearchParams({ ticket, stream_metadata: "lean" })}`);
    // Only events of exactly this name: those of subagents have a namespace in theirs.
    source.addEventListener("messages", (event) => take(JSON.parse(event.data)));
    // Left alone, it would come back with the ticket that was used, and read the run from its end on.
    source.onerror = () => source.close();
    return source;
  }
}
