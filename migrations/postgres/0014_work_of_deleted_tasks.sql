-- A row of `remote_runs` without a task, but `unwanted`: a background task may have left work on its server when the thread of the
-- agent that started it was deleted. `remote_run_id` is the id of the task, and of its thread there. The work is cancelled there,
-- and then the row goes. The transaction that deletes the thread stores the row on behalf of a tenant, who cannot read it then; the
-- server itself does the rest. SQLite needs no change for that.
--
-- Servers of the former release, which may work beside new ones, look for that work on another thread, find none, and delete the
-- row.
create policy of_deleted_tasks on remote_runs for insert with check (task_id is null and unwanted);
