-- Encryption at rest.

-- A row means: values of this tenant are, or were, sealed under this data key. `wrapped` is the data key, sealed under the master
-- key named `master`; null: the tenant was deleted, and its values can never be opened again. `change` is the number of the
-- change that made the row what it is.
create table data_keys (
    key_id blob not null primary key,
    tenant text not null,
    master text not null,
    wrapped blob,
    change bigint not null
) without rowid;
create index data_keys_by_tenant on data_keys (tenant, change);
create index data_keys_by_change on data_keys (change);

-- The one row counts the changes of `data_keys`, so that other servers see that there was one.
create table data_key_changes (
    one bigint not null primary key,
    number bigint not null
);

-- The digest of the definition that a run is pinned to, for requests that are sealed; null: there is none, or the request is
-- from before this migration.
alter table runs add column definition text;

-- The vector, sealed; null: it is in `vector`. A sealed vector leaves `vector` empty.
alter table item_vectors add column sealed blob;

-- Answers are forgotten with their thread.
create index idempotency_keys_by_thread on idempotency_keys (thread_id) where thread_id is not null;
