-- How much is stored.

-- A row means: the checkpoints and events of this thread up to the number `seq` had this many bytes at this time. Only threads
-- of owners with a quota for stored bytes have a row; it goes with its thread.
create table thread_bytes (
    thread_id uuid not null primary key references threads (thread_id) on delete cascade,
    tenant text collate "C" not null,
    owner text collate "C" not null,
    bytes bigint not null,
    seq bigint not null,
    measured_at bigint not null
);
create index thread_bytes_by_owner on thread_bytes (tenant, owner, bytes);
