const units: [Intl.RelativeTimeFormatUnit, number][] = [
  ["year", 31_536_000],
  ["month", 2_592_000],
  ["day", 86_400],
  ["hour", 3_600],
  ["minute", 60],
];
const relative = new Intl.RelativeTimeFormat("en", { numeric: "auto", style: "narrow" });
const absolute = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });
const integer = new Intl.NumberFormat("en");
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function relativeTime(date: Date, now: number = Date.now()): string {
  const seconds = (date.getTime() - now) / 1000;
  for (const [unit, size] of units) {
    if (Math.abs(seconds) >= size) return relative.format(Math.round(seconds / size), unit);
  }
  return Math.abs(seconds) < 10 ? "just now" : relative.format(Math.round(seconds), "second");
}

export function absoluteTime(date: Date): string {
  return absolute.format(date);
}

export function duration(ms: number): string {
  if (!Number.isFinite(ms) || ms < 0) return "–";
  if (ms < 1_000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1_000).toFixed(ms < 10_000 ? 1 : 0)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1_000)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export function bytes(size: number): string {
  if (size < 1_024) return `${size} B`;
  if (size < 1_048_576) return `${(size / 1_024).toFixed(1)} KiB`;
  if (size < 1_073_741_824) return `${(size / 1_048_576).toFixed(1)} MiB`;
  return `${(size / 1_073_741_824).toFixed(1)} GiB`;
}

export function count(value: number): string {
  return Math.abs(value) < 100_000 ? integer.format(value) : compact.format(value);
}

/** `1 thread`, `2 threads`. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

/** Money in millionths of a unit. */
export function money(microUnits: number): string {
  const value = microUnits / 1_000_000;
  if (value === 0) return "0";
  return value < 0.01 ? value.toFixed(5) : value < 10 ? value.toFixed(3) : value.toFixed(2);
}

export function shortId(id: string): string {
  return id.length > 13 ? id.slice(0, 8) : id;
}
