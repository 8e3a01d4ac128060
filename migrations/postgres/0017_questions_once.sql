-- A question is stored once, in the row of its interrupt: `position` of checkpoints and `body` of events have its interrupt
-- without it. Workers of this release, which read that, have ids whose last eight digits are a number from 2 on. Where these
-- constraints are, there are no former workers, and questions are stored once. `adjutant migrate --finish` makes the same ones in
-- a database that exists.
do $$
begin
    -- No server has been at work on this database: each stores its definitions when it starts.
    if not exists (select 1 from workers) and not exists (select 1 from definitions) then
        alter table workers drop constraint if exists reads_short_texts, add constraint reads_questions_once
            check (substr(worker_id::text, 29) collate "C" between '00000002' and '000000ff');
        alter table runs drop constraint if exists reads_short_texts, add constraint reads_questions_once
            check (status <> 'running' or substr(worker::text, 29) collate "C" between '00000002' and '000000ff');
        alter table jobs drop constraint if exists reads_short_texts, add constraint reads_questions_once
            check (substr(worker::text, 29) collate "C" between '00000002' and '000000ff');
    end if;
end
$$;
