-- The JSON schema of a valid answer is stored once, if it is long: the one of the answer to an approval has those of all tools of the
-- agent. A row means: questions of agents of this tenant have this schema. `digest` is the beginning of that of the text, and
-- `used_at` about when the last such question was asked. Without questions, the row is deleted some days later.
create table answer_schemas (
    tenant text collate "C" not null,
    digest text collate "C" not null,
    used_at bigint not null,
    schema text not null,
    primary key (tenant, digest)
);
-- There are few rows, and each is read again and again: to expand it each time would cost more than its space.
alter table answer_schemas alter column schema set storage external;
alter table answer_schemas enable row level security;
alter table answer_schemas force row level security;
create policy tenant on answer_schemas using (
    (select current_setting('adjutant.tenant', true)) = '*' or tenant = (select current_setting('adjutant.tenant', true)));

-- The digest of the schema, if `interrupt` lacks it.
alter table interrupts add column schema_digest text collate "C";
create index interrupts_by_schema on interrupts (schema_digest) where schema_digest is not null;

-- Workers of this release, which find the schemas there, have ids whose last eight digits are a number from 4 on. Where these
-- constraints are, there are no former workers, and schemas are stored like this. `adjutant migrate --finish` makes the same ones in
-- a database that exists.
do $$
begin
    -- No server has been at work on this database: each stores its definitions when it starts.
    if not exists (select 1 from workers) and not exists (select 1 from definitions) then
        alter table workers drop constraint if exists reads_events_in_steps, add constraint reads_answer_schemas
            check (substr(worker_id::text, 29) collate "C" between '00000004' and '000000ff');
        alter table runs drop constraint if exists reads_events_in_steps, add constraint reads_answer_schemas
            check (status <> 'running' or substr(worker::text, 29) collate "C" between '00000004' and '000000ff');
        alter table jobs drop constraint if exists reads_events_in_steps, add constraint reads_answer_schemas
            check (substr(worker::text, 29) collate "C" between '00000004' and '000000ff');
    end if;
end
$$;
