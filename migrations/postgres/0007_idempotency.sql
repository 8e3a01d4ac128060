-- A row means: a request that came with this Idempotency-Key was granted, and this is how it was answered, or which run it
-- began. It is written together with what the request made.
create table idempotency_keys (
    idempotency_key text not null primary key,
    fingerprint uuid not null,
    status integer,
    body text,
    location text,
    thread_id uuid,
    run_id uuid,
    created_at bigint not null
);
create index idempotency_keys_by_created on idempotency_keys (created_at, idempotency_key);
