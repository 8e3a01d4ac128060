-- no-transaction
-- The log takes less space, and a step of a main agent is in one index less. The lane of a main agent is an empty blob, which is
-- shorter than zeros; most rows have it. Such rows are in the index of histories only, where they are in the order of the log,
-- too. Those of subagents are in a second index in that order.
-- So a number is unique among the steps of main agents and among those of subagents, not among both: the one server that a file has
-- counts them, and only while it holds the run.
--
-- The `source` of a checkpoint may be `begin`: that of an input before which its agent started anew. `started` is the event with
-- the number before then, and has no row of its own.
--
-- Rows are copied in the order of an index, so that the new tables and their indexes grow at the end: in a time in proportion to
-- their size. Each statement is a transaction of its own, since in a common one SQLite would keep the pages that it changes in
-- memory. If the server ends meanwhile, it begins anew: until the tables change places nothing is lost with the new ones, and from
-- then on nothing with the former ones.
drop table if exists lean_checkpoints;
drop table if exists lean_events;
drop table if exists former_checkpoints;
drop table if exists former_events;
drop index if exists checkpoints_of_children;
create table lean_checkpoints (
    checkpoint_id blob not null,
    thread_id blob not null references threads (thread_id) on delete cascade,
    lane blob not null,
    seq bigint not null,
    segment bigint not null,
    parent_id blob,
    step bigint not null,
    source text not null,
    node text not null,
    run_id blob,
    writes text not null,
    shown text,
    position text not null,
    touched_by blob,
    before text,
    created_at bigint not null,
    carried_from blob,
    primary key (thread_id, checkpoint_id),
    unique (thread_id, lane, seq)
);
-- The steps of all subagents of a thread.
create unique index checkpoints_of_children on lean_checkpoints (thread_id, seq) where lane <> x'';
create table lean_events (
    thread_id blob not null references threads (thread_id) on delete cascade,
    seq bigint not null,
    run_id blob not null,
    lane blob not null,
    body text not null,
    created_at bigint not null,
    primary key (thread_id, seq)
) without rowid;
insert into lean_checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown,
    position, touched_by, before, created_at, carried_from)
    select checkpoint_id, thread_id, case lane when zeroblob(16) then x'' else lane end, seq, segment, parent_id, step, source,
        node, run_id, writes, shown, position, touched_by, before, created_at, carried_from
        from checkpoints indexed by sqlite_autoindex_checkpoints_2 order by thread_id, seq;
insert into lean_events (thread_id, seq, run_id, lane, body, created_at)
    select thread_id, seq, run_id, case lane when zeroblob(16) then x'' else lane end, body, created_at
        from events order by thread_id, seq;
begin immediate;
alter table checkpoints rename to former_checkpoints;
alter table events rename to former_events;
alter table lean_checkpoints rename to checkpoints;
alter table lean_events rename to events;
commit;
