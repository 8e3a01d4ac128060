import { useEffect, useRef } from "react";

/** Single keys (`n`) and sequences (`g t`). They do nothing while somebody types, or while a dialog is open. */
export function useShortcuts(shortcuts: Record<string, () => void>): void {
  const present = useRef(shortcuts);
  present.current = shortcuts;
  useEffect(() => {
    let prefix = "";
    let timer = 0;
    const listener = (event: KeyboardEvent) => {
      if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
      const target = event.target;
      if (target instanceof HTMLElement && target.closest("input, textarea, select, [contenteditable], dialog")) return;
      const keys = prefix ? `${prefix} ${event.key}` : event.key;
      const action = present.current[keys];
      prefix = "";
      window.clearTimeout(timer);
      if (action) {
        event.preventDefault();
        action();
      } else if (Object.keys(present.current).some((each) => each.startsWith(`${event.key} `))) {
        prefix = event.key;
        timer = window.setTimeout(() => (prefix = ""), 1_000);
      }
    };
    window.addEventListener("keydown", listener);
    return () => {
      window.removeEventListener("keydown", listener);
      window.clearTimeout(timer);
    };
  }, []);
}
