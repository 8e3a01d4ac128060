-- The audit.

-- A row means: this caller did this to this resource, or was refused. Rows are never changed. They are deleted when they are
-- older than the configuration says, and outlive the resource and the caller. Ids sort by time.
create table audit (
    entry_id uuid not null primary key,
    tenant text not null,
    user_id text not null,
    credential text not null,
    action text not null,
    resource text not null,
    outcome text not null,
    address text,
    detail text not null,
    created_at bigint not null
);
create index audit_by_tenant on audit (tenant, entry_id);
create index audit_by_user on audit (tenant, user_id, entry_id);
create index audit_by_resource on audit (tenant, resource, entry_id);
create index audit_by_time on audit (created_at, entry_id);
