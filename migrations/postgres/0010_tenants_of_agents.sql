-- The tenant whose client defined the agent; for other tenants the agent does not exist. Servers of the former release, which may
-- work beside new ones, do not know the column: what they store belongs to the tenant `default`. There is no policy, since servers
-- read the agents of all tenants.
alter table agents add column tenant text collate "C" not null default 'default';
-- Where all threads are of one tenant, its agents stay its own.
update agents set tenant = (select min(tenant) from threads)
    where (select min(tenant) from threads) = (select max(tenant) from threads);
create index agents_by_tenant on agents (tenant, graph_id);
