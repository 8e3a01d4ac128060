// The results of calls, so that a call is made once however often it is sent.

import { appendFileSync, closeSync, existsSync, fsyncSync, openSync, readFileSync, renameSync, writeFileSync } from "node:fs";

/** Keeps results: the newest ones, for a time. With a file they outlive the service. */
export class Results {
  #kept = new Map();
  #file;

  constructor({ file, most, seconds }) {
    this.most = most;
    this.milliseconds = seconds * 1_000;
    if (file !== undefined) this.#open(file);
  }

  /** Returns a call, without an answer if it was begun and never ended; nothing if it is not known. */
  find(key) {
    const found = this.#kept.get(key);
    return found === undefined || found.expires < Date.now() ? undefined : found;
  }

  /** Records that a call begins, or what its answer is. */
  put(key, fingerprint, answer) {
    this.#set({ key, fingerprint, answer, expires: Date.now() + this.milliseconds });
    this.#write({ ...this.#kept.get(key) });
  }

  /** Forgets a call, which may then be made again. */
  forget(key) {
    this.#kept.delete(key);
    this.#write({ key, expires: 0 });
  }

  close() {
    if (this.#file !== undefined) closeSync(this.#file);
    this.#file = undefined;
  }

  #set(entry) {
    this.#kept.delete(entry.key);
    if (entry.expires >= Date.now()) this.#kept.set(entry.key, entry);
    for (const [oldest, { expires }] of this.#kept) {
      if (this.#kept.size <= this.most && expires >= Date.now()) break;
      this.#kept.delete(oldest);
    }
  }

  #write(entry) {
    if (this.#file === undefined) return;
    appendFileSync(this.#file, `${JSON.stringify(entry)}\n`);
    fsyncSync(this.#file);
  }

  /** Reads a file, and writes it anew with what is still of use. */
  #open(file) {
    for (const line of existsSync(file) ? readFileSync(file, "utf8").split("\n") : []) {
      try {
        this.#set(JSON.parse(line));
      } catch {
        // The last line of a process that died may be half a line.
      }
    }
    const lines = [...this.#kept.values()].map((entry) => `${JSON.stringify(entry)}\n`);
    writeFileSync(`${file}.new`, lines.join(""), { mode: 0o600 });
    renameSync(`${file}.new`, file);
    this.#file = openSync(file, "a");
  }
}
