-- no-transaction
-- A run takes less space. `next_event` is the body of the event that has the number behind its checkpoint, and no row of its own.
-- The node `__start__` is an empty text. `parent_id` is null if the parent is the row before in the segment. In `runs`, the root
-- of a main agent's run is an empty blob, and `metadata` lack the name of its agent and `created_by` if that is `system`. Rows of
-- former releases stay as they are.
--
-- Checkpoints are found by their ids alone, without the id of the thread in the index: only copies of a thread have the same ids.
-- So a table without a primary key takes the place of the former one. It is copied in the order in which it was written, and its
-- indexes are made afterwards, so all of it takes a time in proportion to the size. Each statement is a transaction of its own. If
-- the server ends meanwhile, it begins anew: nothing is lost with a table that has not taken the place of the former one, and once
-- it has, it is copied again.
drop table if exists short_checkpoints;
drop table if exists former_checkpoints;
create table short_checkpoints (
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
    next_event text
);
insert into short_checkpoints (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown,
    position, touched_by, before, created_at, carried_from)
    select checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown,
        position, touched_by, before, created_at, carried_from
        from checkpoints order by rowid;
-- The former table keeps its indexes until it is dropped, but for these, whose names the new ones have.
drop index if exists checkpoints_of_children;
drop index if exists checkpoints_touched;
drop index if exists checkpoints_by_lane;
drop index if exists checkpoints_by_id;
create unique index checkpoints_by_lane on short_checkpoints (thread_id, lane, seq);
create unique index checkpoints_of_children on short_checkpoints (thread_id, seq) where lane <> x'';
create index checkpoints_touched on short_checkpoints (touched_by) where touched_by is not null;
create index checkpoints_by_id on short_checkpoints (checkpoint_id);
begin immediate;
alter table checkpoints rename to former_checkpoints;
alter table short_checkpoints rename to checkpoints;
commit;
drop table former_checkpoints;
-- SQLite takes an index without statistics for one of ten rows for each id, and would rather look at all steps of a thread. Of the
-- other indexes it has none, and assumes what it did.
analyze sqlite_schema;
delete from sqlite_stat1 where tbl = 'checkpoints' and idx = 'checkpoints_by_id';
insert into sqlite_stat1 (tbl, idx, stat) values ('checkpoints', 'checkpoints_by_id', '1048576 1');
analyze sqlite_schema;
