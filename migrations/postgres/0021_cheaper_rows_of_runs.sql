-- Each step and each end of a run changes its row, and Postgres opens every index of the table for that, those of which the row is no
-- part as well.
--
-- Subagents that were cancelled, by their status: those that are to be stopped, and those whose callers do not know it yet.
create index runs_cancelled_subagents on runs (thread_id, status) where depth > 0 and cancel is not null;
drop index runs_children_cancelled;
drop index runs_cancelled_while_waiting;
-- Questions about the runs of one thread are read from `runs_in_flight`.
drop index runs_with_answers;

-- The check of the worker of a running run took a fifth of such a change, since Postgres prepares its condition anew each time. A
-- worker is stored when it begins a run, claims it or adopts it, and only then a trigger looks at it.
create function refuse_former_worker() returns trigger language plpgsql as $$
begin
    if new.status = 'running' and not (right(new.worker::text, 8) collate "C" between '00000004' and '000000ff') then
        raise exception 'new row for relation "runs" violates check constraint "reads_answer_schemas"'
            using errcode = 'check_violation', constraint = 'reads_answer_schemas', table = 'runs';
    end if;
    return null;
end;
$$;
do $$
begin
    if exists (select from pg_constraint where conrelid = 'runs'::regclass and conname = 'reads_answer_schemas') then
        alter table runs drop constraint reads_answer_schemas;
        create trigger reads_answer_schemas after insert or update of worker on runs
            for each row execute function refuse_former_worker();
    end if;
end
$$;
