-- Quotas, and turns in the queue.

-- `queue` is the account on whose behalf a run works, as `TENANT/USER/KEY/`, with the priority of the run behind it. Runs with
-- the same text take their turns by age.
alter table runs add column queue text collate "C" not null default 'default/-/-/0';
-- Whose turn it can be, and the runs of each account that wait.
create index runs_waiting on runs (queue, due_at, run_id) where depth = 0 and status = 'pending';
-- How many runs of each account are at work.
create index runs_at_work on runs (queue) where depth = 0 and status = 'running';

-- A row means: on this day (UTC, counted from 1970), runs of the accounts that begin with `subject` have used this much. A day
-- has several rows, by `slot`, so that commits of different runs rarely wait for each other; their sum counts. Only subjects
-- with a quota for a day have rows.
create table daily_usage (
    subject text collate "C" not null,
    day bigint not null,
    slot integer not null,
    tokens bigint not null,
    cost_micros bigint not null,
    primary key (subject, day, slot)
);
create index daily_usage_by_day on daily_usage (day);
