import { useEffect, useRef, useState } from "react";

/** The value as of the last frame: a part that is given a new one hundreds of times in a second renders at most once in a frame. */
export function useFrame<T>(value: T): T {
  const [shown, setShown] = useState(value);
  const latest = useRef(value);
  const frame = useRef(0);
  latest.current = value;
  useEffect(() => {
    if (frame.current || Object.is(shown, value)) return;
    frame.current = requestAnimationFrame(() => {
      frame.current = 0;
      setShown(() => latest.current);
    });
  }, [value, shown]);
  useEffect(
    () => () => {
      cancelAnimationFrame(frame.current);
      frame.current = 0;
    },
    [],
  );
  return shown;
}

/** The time, every second while `isOn`. */
export function useNow(isOn: boolean): number {
  const [now, setNow] = useState(() => Date.now());
  useEffect(() => {
    if (!isOn) return;
    setNow(Date.now());
    const timer = window.setInterval(() => setNow(Date.now()), 1_000);
    return () => window.clearInterval(timer);
  }, [isOn]);
  return now;
}
