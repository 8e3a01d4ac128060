-- The ids of checkpoints are unique within a thread: a copy of a thread has those of the original.
create table checkpoints_of_threads (
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
    created_at bigint not null,
    touched_by blob,
    before text,
    primary key (thread_id, checkpoint_id),
    unique (thread_id, seq)
);
insert into checkpoints_of_threads (checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id,
    writes, shown, position, created_at, touched_by, before)
    select checkpoint_id, thread_id, lane, seq, segment, parent_id, step, source, node, run_id, writes, shown, position,
    created_at, touched_by, before from checkpoints;
drop table checkpoints;
alter table checkpoints_of_threads rename to checkpoints;
create index checkpoints_by_lane on checkpoints (thread_id, lane, seq);
create index checkpoints_touched on checkpoints (touched_by) where touched_by is not null;
