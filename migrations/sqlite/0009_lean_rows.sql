-- Runs of main agents are found by their own ids. On Postgres servers of the former release still look for them in this index.
drop index runs_by_root;
create index runs_by_root on runs (root_id, created_at, run_id) where depth > 0;
