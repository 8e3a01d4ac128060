-- A row means: an operator has logged in to this MCP server of the configuration, for the agents of this tenant, or (`*`) for
-- those of all tenants that have no login of their own. `secrets` is JSON: the client and its tokens for the server at `url`,
-- from the authorization server `issuer`. `version` changes with the tokens. Until `refreshing_until` one server process
-- gets new ones. At `ended_at` the authorization server refused to give any; an operator has to log in again.
create table mcp_logins (
    tenant text collate "C" not null,
    server text collate "C" not null,
    url text not null,
    issuer text not null,
    secrets text not null,
    version uuid not null,
    expires_at bigint,
    refresh_at bigint,
    renewable boolean not null,
    refreshing_until bigint,
    logged_in_at bigint not null,
    ended_at bigint,
    primary key (tenant, server)
);
alter table mcp_logins enable row level security;
alter table mcp_logins force row level security;
create policy tenant on mcp_logins using (
    (select current_setting('adjutant.tenant', true)) = '*' or tenant = (select current_setting('adjutant.tenant', true)));
