-- API keys and stream tickets.

-- A row means: there is, or was, this API key, which proves this identity. Of its secret only the SHA-256 digest is stored:
-- secrets are random and long, so a slow hash would protect nothing. After a rotation the secret before is valid until
-- `previous_until`. `roles` and `scopes` are JSON lists; null: the scopes are not limited. A key with `revoked_at` is refused;
-- its row is kept for a while, so that people see what happened to it.
create table api_keys (
    key_id text not null primary key,
    name text not null,
    tenant text not null,
    user_id text not null,
    roles text not null,
    scopes text,
    digest bytea not null,
    previous_digest bytea,
    previous_until bigint,
    created_at bigint not null,
    expires_at bigint,
    last_used_at bigint,
    rotated_at bigint,
    revoked_at bigint
);
create index api_keys_by_tenant on api_keys (tenant, created_at, key_id);
create index api_keys_by_created on api_keys (created_at, key_id);

-- A row means: whoever knows the text with this digest may open one stream as this identity, before `expires_at`. The row
-- goes when the ticket is used. `identity` is JSON.
create table auth_tickets (
    digest bytea not null primary key,
    tenant text not null,
    user_id text not null,
    identity text not null,
    expires_at bigint not null
);
create index auth_tickets_by_user on auth_tickets (tenant, user_id);
create index auth_tickets_by_expiry on auth_tickets (expires_at);
