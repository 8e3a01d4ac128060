-- What a rollback restores besides the status of a subagent's run. `runs.usage_before` is what such a run had used until the
-- run `touched_by` changed it. A run with `touched_by` and without `before` was begun by the run `touched_by`, below the run of
-- a subagent that an earlier run had begun: it goes when `touched_by` is rolled back.
--
-- A row of `remote_runs` for a background task has a `parent_graph_id` when the run that started the task was rolled back: the
-- task is cancelled on its server, and then both rows go.
alter table runs add column usage_before text;
