const WIDTH = 100;
const HEIGHT = 36;

/** A small line without axes. What it shows is said by the text beside it. */
export function Sparkline({ values }: { values: readonly number[] }) {
  if (values.length < 2) return <svg className="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} aria-hidden="true" />;
  const top = Math.max(...values, 1e-9);
  const points = values.map((value, index) => `${((index / (values.length - 1)) * WIDTH).toFixed(2)},${(HEIGHT - 2 - (value / top) * (HEIGHT - 6)).toFixed(2)}`);
  return (
    <svg className="sparkline" viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      <polygon points={`0,${HEIGHT} ${points.join(" ")} ${WIDTH},${HEIGHT}`} />
      <polyline points={points.join(" ")} />
    </svg>
  );
}
