// The messages that wait in the page until the run of their thread has ended. The tab keeps them over a reload.

const KEY = "adjutant.queued.";

/** Returns the messages that wait on a thread, in their order. */
export function queuedTexts(threadId: string): string[] {
  try {
    const kept: unknown = JSON.parse(sessionStorage.getItem(KEY + threadId) ?? "[]");
    return Array.isArray(kept) ? kept.filter((text): text is string => typeof text === "string") : [];
  } catch {
    return [];
  }
}

export function keepQueuedTexts(threadId: string, texts: readonly string[]): void {
  try {
    if (texts.length === 0) sessionStorage.removeItem(KEY + threadId);
    else sessionStorage.setItem(KEY + threadId, JSON.stringify(texts));
  } catch {
    // The storage is full. The messages wait in the page alone.
  }
}

/** Forgets what waits on all threads: another user may sign in. */
export function forgetQueuedTexts(): void {
  for (const key of Object.keys(sessionStorage)) {
    if (key.startsWith(KEY)) sessionStorage.removeItem(key);
  }
}
