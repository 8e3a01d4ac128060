// Everything the console asks the server. The official SDK (`sdk()`) is used for what it offers; `request` is for the rest.
import { Client } from "@langchain/langgraph-sdk";
import { useSyncExternalStore } from "react";

import { forgetQueuedTexts } from "../lib/queued";

const KEY = "adjutant.api-key";
const listeners = new Set<() => void>();
let isRefused = false;
let client: { key: string | null; sdk: Client } | undefined;

function changed(): void {
  listeners.forEach((listener) => listener());
}

/** The server that this page belongs to. */
export const apiUrl: string = window.location.origin;

export function apiKey(): string | null {
  return sessionStorage.getItem(KEY);
}

/** The header for an API key or a token: the server takes both there. */
export function bearer(key: string): string {
  return `Bearer ${key}`;
}

/** Keeps the key for this tab, until it is closed. */
export function signIn(key: string): void {
  // The key may be that of another user, in whose name no message of this one may be sent.
  if (apiKey() !== key) forgetQueuedTexts();
  sessionStorage.setItem(KEY, key);
  isRefused = false;
  changed();
}

export function signOut(): void {
  sessionStorage.removeItem(KEY);
  forgetQueuedTexts();
  isRefused = true;
  changed();
}

function refused(): void {
  if (!isRefused) {
    isRefused = true;
    changed();
  }
}

/** Whether the server refuses this page's credentials, so that a key has to be asked for. */
export function useIsRefused(): boolean {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => isRefused,
  );
}

/** A refusal or failure as the server says it. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string | undefined;
  readonly body: unknown;

  constructor(status: number, message: string, code?: string, body?: unknown) {
    super(message);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.body = body;
  }
}

export interface RequestOptions {
  method?: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  query?: Record<string, string | number | boolean | undefined | null>;
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

function headers(options: RequestOptions): Headers {
  const all = new Headers(options.headers);
  all.set("accept", "application/json");
  if (options.body !== undefined) all.set("content-type", "application/json");
  const key = apiKey();
  // A key that is tried is sent instead of the one before.
  if (key && !all.has("authorization")) all.set("authorization", bearer(key));
  return all;
}

async function failure(response: Response): Promise<ApiError> {
  const text = await response.text();
  let body: unknown = text;
  let message = text.slice(0, 500) || `The server answered with ${response.status}.`;
  let code: string | undefined;
  try {
    body = JSON.parse(text);
    const { detail, code: word } = body as { detail?: unknown; code?: unknown };
    if (typeof detail === "string") message = detail;
    else if (detail !== undefined) message = JSON.stringify(detail);
    if (typeof word === "string") code = word;
  } catch {
    // A proxy may answer with a page of its own.
  }
  return new ApiError(response.status, message, code, body);
}

/** Sends one request, and gives the response if it is a success. */
export async function fetchResponse(path: string, options: RequestOptions = {}): Promise<Response> {
  const address = new URL(path, apiUrl);
  for (const [name, value] of Object.entries(options.query ?? {})) {
    if (value !== undefined && value !== null && value !== "") address.searchParams.set(name, String(value));
  }
  const response = await fetch(address, {
    method: options.method ?? (options.body === undefined ? "GET" : "POST"),
    headers: headers(options),
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
    signal: options.signal,
    cache: "no-store",
  });
  if (response.status === 401) refused();
  if (!response.ok) throw await failure(response);
  return response;
}

/** Sends one request and reads its JSON. An empty answer is `undefined`. */
export async function request<T>(path: string, options: RequestOptions = {}): Promise<T> {
  const response = await fetchResponse(path, options);
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export interface Page<T> {
  items: T[];
  /** How many there are in all, if the server says it. */
  total: number | undefined;
}

/** A search whose answer is a list, with the number of all results. */
export async function requestPage<T>(path: string, options: RequestOptions = {}): Promise<Page<T>> {
  const response = await fetchResponse(path, options);
  const total = Number(response.headers.get("x-pagination-total") ?? Number.NaN);
  return { items: (await response.json()) as T[], total: Number.isFinite(total) ? total : undefined };
}

/** The official SDK's client for this server. */
export function sdk(): Client {
  const key = apiKey();
  if (!client || client.key !== key) {
    client = {
      key,
      sdk: new Client({
        apiUrl,
        apiKey: null,
        defaultHeaders: key ? { authorization: bearer(key) } : {},
        callerOptions: {
          maxRetries: 1,
          fetch: async (...parameters: Parameters<typeof fetch>) => {
            const response = await fetch(...parameters);
            if (response.status === 401) refused();
            return response;
          },
        },
      }),
    };
  }
  return client.sdk;
}

/** What a failure says to a person. */
export function messageOf(error: unknown): string {
  if (error instanceof Error) {
    // The SDK puts the answer of the server into its message.
    const start = error.message.indexOf('{"detail"');
    if (start >= 0) {
      try {
        return (JSON.parse(error.message.slice(start)) as { detail: string }).detail;
      } catch {
        return error.message;
      }
    }
    return error.message;
  }
  return String(error);
}
