// What the metrics say at a glance, and how they have changed while the page was open.
import type { MetricsAnswer, Sample } from "../api/admin";

/** The sum of the samples of this name whose labels have these values. */
export function sum(samples: Sample[], name: string, labels: Record<string, string> = {}): number {
  let total = 0;
  for (const sample of samples) {
    if (sample.name === name && Object.entries(labels).every(([key, value]) => sample.labels[key] === value)) total += sample.value ?? 0;
  }
  return total;
}

/** The sums by the values of a label, the largest first. */
export function sumBy(samples: Sample[], name: string, label: string): [string, number][] {
  const sums = new Map<string, number>();
  for (const sample of samples) {
    if (sample.name !== name) continue;
    const value = sample.labels[label] ?? "";
    sums.set(value, (sums.get(value) ?? 0) + (sample.value ?? 0));
  }
  return [...sums.entries()].sort((one, other) => other[1] - one[1]);
}

/** A quantile of a histogram, as a number within its bucket; undefined without observations. */
export function quantile(samples: Sample[], name: string, of: number): number | undefined {
  const buckets = new Map<number, number>();
  for (const sample of samples) {
    if (sample.name !== `${name}_bucket`) continue;
    const bound = sample.labels["le"] === "+Inf" ? Infinity : Number(sample.labels["le"]);
    buckets.set(bound, (buckets.get(bound) ?? 0) + (sample.value ?? 0));
  }
  const sorted = [...buckets.entries()].sort((one, other) => one[0] - other[0]);
  const total = sorted.at(-1)?.[1] ?? 0;
  if (total === 0) return undefined;
  const rank = of * total;
  let [lower, before] = [0, 0];
  for (const [bound, count] of sorted) {
    if (count >= rank) {
      if (bound === Infinity) return lower;
      return count === before ? bound : lower + ((rank - before) / (count - before)) * (bound - lower);
    }
    [lower, before] = [bound, count];
  }
  return lower;
}

/** The figures of one instant that are drawn as lines. */
export interface Glance {
  at: number;
  running: number;
  queued: number;
  streams: number;
  ended: number;
  failed: number;
  tokens: number;
  memory: number;
}

export function glance(answer: MetricsAnswer, at: number): Glance {
  const { metrics, queue, workers } = answer;
  return {
    at,
    running: workers.active ?? sum(metrics, "adjutant_runs_at_work"),
    queued: queue.n_pending ?? 0,
    streams: sum(metrics, "adjutant_streams_open"),
    ended: sum(metrics, "adjutant_runs_total"),
    failed: sum(metrics, "adjutant_runs_total", { status: "error" }) + sum(metrics, "adjutant_runs_total", { status: "timeout" }),
    tokens: sum(metrics, "adjutant_model_tokens_total"),
    memory: sum(metrics, "process_resident_memory_bytes"),
  };
}

const KEPT = 120;
const history: Glance[] = [];

/** Adds the figures of an instant to those that this tab remembers. A restart of the server begins anew. */
export function remember(next: Glance): readonly Glance[] {
  const last = history.at(-1);
  if (last && (next.ended < last.ended || next.tokens < last.tokens)) history.length = 0;
  if (history.at(-1)?.at !== next.at) history.push(next);
  if (history.length > KEPT) history.shift();
  return [...history];
}

/** The growth of a counter between the instants, for each second. */
export function rates(glances: readonly Glance[], of: (glance: Glance) => number): number[] {
  return glances.slice(1).map((glance, index) => {
    const before = glances[index];
    const seconds = before ? (glance.at - before.at) / 1000 : 0;
    return before && seconds > 0 ? Math.max(0, (of(glance) - of(before)) / seconds) : 0;
  });
}
