-- Workers of this release, which read texts in the short form, have ids of version 8; those of former releases are of version 7.
-- Where these constraints are, there are no former workers, and texts are stored in the short form. `adjutant migrate --finish`
-- makes the same ones in a database that exists.
do $$
begin
    -- No server has been at work on this database: each stores its definitions when it starts.
    if not exists (select 1 from workers) and not exists (select 1 from definitions) then
        alter table workers add constraint reads_short_texts check (substr(worker_id::text, 15, 1) = '8');
        alter table runs add constraint reads_short_texts check (status <> 'running' or substr(worker::text, 15, 1) = '8');
        alter table jobs add constraint reads_short_texts check (substr(worker::text, 15, 1) = '8');
    end if;
end
$$;
