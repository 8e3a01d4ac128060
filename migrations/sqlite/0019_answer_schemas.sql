-- The JSON schema of a valid answer is stored once, if it is long: the one of the answer to an approval has those of all tools of the
-- agent. A row means: questions of agents of this tenant have this schema. `digest` is the beginning of that of the text, and
-- `used_at` about when the last such question was asked. Without questions, the row is deleted some days later.
create table answer_schemas (
    tenant text not null,
    digest text not null,
    used_at bigint not null,
    schema text not null,
    primary key (tenant, digest)
);
-- The digest of the schema, if `interrupt` lacks it.
alter table interrupts add column schema_digest text;
create index interrupts_by_schema on interrupts (schema_digest) where schema_digest is not null;
