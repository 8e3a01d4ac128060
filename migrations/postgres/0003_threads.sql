-- A row means: this value stands at this path in the metadata of a thread. Value and path are one digest.
create table thread_terms (
    term uuid not null,
    thread_id uuid not null references threads (thread_id) on delete cascade,
    primary key (term, thread_id)
);
create index thread_terms_by_thread on thread_terms (thread_id);

-- A row means: the terms of this thread, which is older than they are, are still to be written.
create table threads_to_index (
    thread_id uuid not null primary key references threads (thread_id) on delete cascade
);
insert into threads_to_index select thread_id from threads where metadata <> '{}';

drop index threads_by_metadata;

-- Every order, among the threads of one status.
create index threads_by_status_created on threads (status, created_at, thread_id);
create index threads_by_status_state_updated on threads (status, state_updated_at, thread_id);
create index threads_by_status_id on threads (status, thread_id);

-- How long a thread is kept after its last change, in microseconds, and what becomes of it at `expires_at`.
alter table threads add column ttl bigint;
alter table threads add column ttl_strategy text;
alter table threads add column expires_at bigint;
create index threads_by_expiry on threads (expires_at, thread_id) where expires_at is not null;

-- When all but the newest state was taken away.
alter table threads add column pruned_at bigint;
create index threads_unpruned on threads (state_updated_at, thread_id)
    where pruned_at is null or pruned_at < state_updated_at;
