import { setQuery, useLocation } from "./router";

/** The place in a list, which is kept in the address, so that the way back leads to it. */
export function useOffset(): [number, (offset: number) => void] {
  const { query } = useLocation();
  const given = Number(query.get("offset"));
  const offset = Number.isInteger(given) && given > 0 ? given : 0;
  return [offset, (next) => setQuery({ offset: next || null }, { replace: false })];
}
