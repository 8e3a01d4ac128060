-- The number in the thread's log from which on the events of a run lie; null for one that has none yet. Runs of the main
-- agent never overlap on a thread, so a run's events are read from here on until another run's begin.
alter table runs add column first_seq bigint;

-- Waiting runs are looked for by the time at which they may begin.
drop index runs_pending;
create index runs_due on runs (due_at, run_id) where depth = 0 and status = 'pending';
