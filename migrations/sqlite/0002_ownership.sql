-- To whom resources belong, and who finds them.
--
-- `tenant` is the organisation or team to which a row belongs, `owner` the user of that tenant; an empty owner means: to the
-- tenant as a whole. The tenant `*` is the server itself, whose rows are there for all tenants. Rows from before this migration
-- belong to the tenant `default` as a whole.

-- ------------------------------------------------------------------------------------------------------------- threads

-- A row means also: this conversation belongs to them. The runs, checkpoints, events and interrupts of a thread belong to
-- whom the thread belongs.
alter table threads add column tenant text not null default 'default';
alter table threads add column owner text not null default '';
create index threads_by_owner on threads (tenant, owner);

-- ---------------------------------------------------------------------------------------------------------- assistants

-- A row means also: these settings belong to them. The default assistants of definitions belong to the server; it takes them
-- over when it starts.
alter table assistants add column tenant text not null default 'default';
alter table assistants add column owner text not null default '';
create index assistants_by_tenant on assistants (tenant, created_at, assistant_id, owner);

-- --------------------------------------------------------------------------------------------------------------- crons

-- A row means also: this schedule belongs to them, and so do the threads that it makes.
alter table crons add column tenant text not null default 'default';
alter table crons add column owner text not null default '';
create index crons_by_tenant on crons (tenant, created_at, cron_id, owner);

-- ------------------------------------------------------------------------------------------------------------ webhooks

-- A row means also: the thread of this report belonged to them.
alter table deliveries add column tenant text not null default 'default';
alter table deliveries add column owner text not null default '';
create index deliveries_by_tenant on deliveries (tenant, created_at, delivery_id, owner);

-- ----------------------------------------------------------------------------------------------------------- the Store

-- A row means: these owners remember this, under this key, in this namespace. Each owner has a Store of their own.
create table owned_items (
    namespace text not null,
    key text not null,
    value text not null,
    ttl bigint,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    tenant text not null default 'default',
    owner text not null default '',
    primary key (tenant, owner, namespace, key)
);
insert into owned_items (namespace, key, value, ttl, expires_at, created_at, updated_at)
    select namespace, key, value, ttl, expires_at, created_at, updated_at from items;

-- A row means: this is the embedding of the text at `path` of the value of this owner's item.
create table owned_item_vectors (
    namespace text not null,
    key text not null,
    path text not null,
    vector blob not null,
    tenant text not null default 'default',
    owner text not null default '',
    primary key (tenant, owner, namespace, key, path),
    foreign key (tenant, owner, namespace, key)
        references owned_items (tenant, owner, namespace, key) on delete cascade
);
insert into owned_item_vectors (namespace, key, path, vector)
    select namespace, key, path, vector from item_vectors;

-- The vectors go first: to drop a table is to delete its rows, and theirs with them.
drop table item_vectors;
drop table items;
alter table owned_items rename to items;
alter table owned_item_vectors rename to item_vectors;
create index items_by_expiry on items (expires_at) where expires_at is not null;
