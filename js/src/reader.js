// Reads what a call may of the run that makes it, at adjutant, with the token of the call.

const PART = 1024 * 1024;
const TIMEOUT_MS = 30_000;

/** A request that adjutant has refused. */
export class ReadError extends Error {
  name = "ReadError";

  constructor(status, code, detail) {
    super(`${detail} (${code})`);
    this.status = status;
    this.code = code;
  }
}

/** What a call may read: fields of the state, files, and items of the Store. It works until the call has its result. */
export class RunReader {
  #base;
  #token;

  /** `url` is the address of adjutant, and `access` what the request to the tool has as `read_access`. */
  constructor(url, access) {
    if (!/^https?:\/\//.test(url)) throw new TypeError("the address of adjutant must begin with http:// or https://");
    this.#base = `${url.replace(/\/+$/, "")}${access.path}`;
    this.#token = access.token;
    this.expiresAt = access.expires_at;
  }

  /** Returns these fields of the state, or all that can be read. Fields that are not set are left out. */
  async state(...fields) {
    return (await this.#json("/state", fields.map((field) => ["fields", field]))).values;
  }

  /** Returns a part of a field that is a list, such as `messages`. */
  async entries(field, { offset = 0, limit = 100 } = {}) {
    return (await this.#json("/state", [["fields", field], ["offset", offset], ["limit", limit]])).values[field] ?? [];
  }

  /** Returns the path, the size and more of the files that can be read. What only reading tells is null. */
  async files({ offset = 0, limit = 100 } = {}) {
    return (await this.#json("/files", [["offset", offset], ["limit", limit]])).files;
  }

  /** Returns the bytes of a file. */
  async readFile(path) {
    const parts = [];
    let length = 0;
    for (;;) {
      const response = await this.#send("/files/content", [["path", path], ["offset", length], ["limit", PART]]);
      const part = Buffer.from(await response.arrayBuffer());
      parts.push(part);
      length += part.length;
      if (part.length === 0 || length >= Number(response.headers.get("x-file-size"))) return Buffer.concat(parts);
    }
  }

  /** Returns the text of a file. */
  async readText(path) {
    return (await this.readFile(path)).toString("utf8");
  }

  /** Returns an item of the Store, with its `value`; null if there is none. */
  async item(namespace, key) {
    return this.#json("/store/items", [["namespace", namespace.join(".")], ["key", key]]);
  }

  /** Returns the items of the Store at and below a namespace. */
  async search(namespace, { query, filter, limit = 10, offset = 0 } = {}) {
    const body = JSON.stringify({ namespace_prefix: namespace, query, filter, limit, offset });
    return (await (await this.#send("/store/items/search", [], body)).json()).items;
  }

  async #json(path, query) {
    return (await this.#send(path, query)).json();
  }

  async #send(path, query, body) {
    const response = await fetch(`${this.#base}${path}?${new URLSearchParams(query)}`, {
      method: body === undefined ? "GET" : "POST",
      headers: { authorization: `Bearer ${this.#token}`, "content-type": "application/json" },
      body,
      // A redirect could send the token to another server.
      redirect: "manual",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    if (response.ok) return response;
    const said = await response.json().catch(() => undefined);
    throw new ReadError(
      response.status,
      said?.code ?? "unknown",
      said?.detail ?? `adjutant answered with status ${response.status}`,
    );
  }
}

/** Returns the function with which a tool gets the reader of its call. */
export function readerOf(url, access) {
  const base = url ?? process.env.ADJUTANT_URL;
  return () => {
    if (!base || !access) throw new Error("the tool has no `read_access`, or the service has no `adjutantUrl`");
    return new RunReader(base, access);
  };
}
