-- A row means: some agent is or was defined like this. Rows never change but for `used_at`, when the definition was last
-- taken into or out of use; `digest` is the SHA-256 of `body`.
create table definitions (
    digest text not null primary key,
    body text not null,
    used_at bigint not null
);
create index definitions_by_use on definitions (used_at);

-- A row means: from then on this agent was defined like this, by the file named in `origin`, or by a client when empty.
create table definition_versions (
    graph_id text not null,
    version bigint not null,
    digest text not null references definitions (digest),
    origin text not null,
    created_at bigint not null,
    primary key (graph_id, version)
);
create index definition_versions_by_digest on definition_versions (digest);

-- A row means: clients defined this agent, and this is the version in use.
create table agents (
    graph_id text not null primary key,
    version bigint not null,
    foreign key (graph_id, version) references definition_versions (graph_id, version)
);

-- The one row counts the changes of `agents`, so that other servers see that there was one.
create table definition_changes (
    one bigint not null primary key,
    number bigint not null
);
