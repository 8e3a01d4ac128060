-- A row means: this is remembered, under this key, in this namespace. A namespace is written as its labels with a dot after
-- each, so that it and all below it lie in one range of the primary key. `ttl` is how long the item stays after it was
-- written, or read with a wish for that, in microseconds; an item is gone from `expires_at` on, swept or not.
create table items (
    namespace text collate "C" not null,
    key text collate "C" not null,
    value jsonb not null,
    ttl bigint,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (namespace, key)
);
create index items_by_expiry on items (expires_at) where expires_at is not null;

-- A row means: this is the direction in which the text at `path` of an item's value points, by the model that the server is
-- configured with; a unit vector.
create table item_vectors (
    namespace text collate "C" not null,
    key text collate "C" not null,
    path text collate "C" not null,
    vector real[] not null,
    primary key (namespace, key, path),
    foreign key (namespace, key) references items (namespace, key) on delete cascade
);
