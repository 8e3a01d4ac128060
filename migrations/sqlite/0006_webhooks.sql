-- A row means: this is to be told to this address, because a run ended; or it was told, or nobody would listen. It is
-- written in the transaction that ends the run and outlives thread and run. `worker` is at it until `due_at`, `fence`
-- counts the attempts.
create table deliveries (
    delivery_id blob not null primary key,
    run_id blob not null,
    thread_id blob not null,
    url text not null,
    body text not null,
    status text not null,
    attempts integer not null,
    answer integer,
    error text,
    due_at bigint not null,
    worker blob,
    fence bigint not null,
    created_at bigint not null,
    finished_at bigint
) without rowid;
create index deliveries_due on deliveries (status, due_at, delivery_id);
create index deliveries_at_work on deliveries (worker) where worker is not null;
create index deliveries_by_created on deliveries (created_at, delivery_id);
create index deliveries_by_status on deliveries (status, created_at, delivery_id);
create index deliveries_by_run on deliveries (run_id, created_at, delivery_id);
create index deliveries_by_thread on deliveries (thread_id, created_at, delivery_id);
create index deliveries_finished on deliveries (finished_at, delivery_id) where finished_at is not null;
