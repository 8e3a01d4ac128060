-- A row means: clients can run this agent definition with these settings, which are those of the version in use.
-- `folded` is the name in small letters, for searching and sorting.
create table assistants (
    assistant_id blob not null primary key,
    version bigint not null,
    graph_id text not null,
    config text not null,
    context text not null,
    metadata text not null,
    name text not null,
    folded text not null,
    description text,
    created_at bigint not null,
    updated_at bigint not null
);
create index assistants_by_created on assistants (created_at, assistant_id);
create index assistants_by_updated on assistants (updated_at, assistant_id);
create index assistants_by_name on assistants (folded, assistant_id);
create index assistants_by_graph on assistants (graph_id, created_at, assistant_id);

-- A row means: this is what a version of an assistant says. Rows never change.
create table assistant_versions (
    assistant_id blob not null references assistants (assistant_id) on delete cascade,
    version bigint not null,
    graph_id text not null,
    config text not null,
    context text not null,
    metadata text not null,
    name text not null,
    description text,
    created_at bigint not null,
    primary key (assistant_id, version)
);
