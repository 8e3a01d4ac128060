-- The event `started` before an input, and an event behind a step, are in the row of the step and have no rows of their own: `source` of
-- checkpoints is `begin` then, or `next_event` is the body of the event. Workers of this release, which find them there, have ids
-- whose last eight digits are a number from 3 on. Where these constraints are, there are no former workers, and events are stored
-- like this. `adjutant migrate --finish` makes the same ones in a database that exists.
do $$
begin
    -- No server has been at work on this database: each stores its definitions when it starts.
    if not exists (select 1 from workers) and not exists (select 1 from definitions) then
        alter table workers drop constraint if exists reads_questions_once, add constraint reads_events_in_steps
            check (substr(worker_id::text, 29) collate "C" between '00000003' and '000000ff');
        alter table runs drop constraint if exists reads_questions_once, add constraint reads_events_in_steps
            check (status <> 'running' or substr(worker::text, 29) collate "C" between '00000003' and '000000ff');
        alter table jobs drop constraint if exists reads_questions_once, add constraint reads_events_in_steps
            check (substr(worker::text, 29) collate "C" between '00000003' and '000000ff');
    end if;
end
$$;
