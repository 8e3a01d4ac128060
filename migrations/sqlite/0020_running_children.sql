-- SQLite has one writer, which was held up when a run was cancelled or failed: to stop the subagents at work it read all runs of
-- subagents that the thread has had. Those that are to be stopped at the next renewal of a lease are found among those at work, too, so
-- there is no index more than before. On Postgres others go on meanwhile, and to make an index would hold up the servers.
drop index runs_children_cancelled;
create index runs_children_running on runs (thread_id) where depth > 0 and status = 'running';
