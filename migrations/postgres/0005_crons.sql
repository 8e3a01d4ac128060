-- A row means: whenever the schedule says so, an agent is asked to do this, on the thread, or on a new one each time. The
-- run of a due time is made in the transaction that moves `due_at` on.
create table crons (
    cron_id uuid not null primary key,
    assistant_id uuid not null references assistants (assistant_id) on delete cascade,
    thread_id uuid references threads (thread_id) on delete cascade,
    schedule text not null,
    timezone text,
    end_time bigint,
    enabled boolean not null,
    keep_threads boolean not null,
    due_at bigint,
    request text not null,
    payload text not null,
    metadata jsonb not null,
    created_at bigint not null,
    updated_at bigint not null
);
create index crons_due on crons (due_at, cron_id) where enabled and due_at is not null;
create index crons_by_thread on crons (thread_id nulls first, created_at, cron_id);
create index crons_by_assistant on crons (assistant_id, created_at, cron_id);
create index crons_by_created on crons (created_at, cron_id);
create index crons_by_updated on crons (updated_at, cron_id);
create index crons_by_due on crons (due_at nulls first, cron_id);
create index crons_by_end on crons (end_time nulls first, cron_id);
create index crons_by_metadata on crons using gin (metadata jsonb_path_ops);
