-- Row-level security, which SQLite does not have: only the column that it needs.

-- A row means also: the request came from this tenant, or from a caller without one (`*`). Null: it came before this migration;
-- such rows are gone after a day.
alter table idempotency_keys add column tenant text;
