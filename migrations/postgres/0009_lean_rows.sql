-- The newest form of stored texts that a worker reads: 0 for those of former releases, 1 with the short form. While the column has
-- a default, servers of the former release can have leases, and texts are stored in a form that they read. `adjutant migrate
-- --finish` takes the default away.
alter table workers add column reads bigint not null default 0;
do $$
begin
    -- No server has been at work on this database: each stores its definitions when it starts.
    if not exists (select 1 from workers) and not exists (select 1 from definitions) then
        alter table workers alter column reads drop default;
    end if;
end
$$;
