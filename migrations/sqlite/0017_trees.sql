-- A row means: a run and all below it have used this much, background tasks and what is below them included. Only trees have
-- one whose limits reach beyond the thread on which they began. `busy_`: for how long somebody was at work, in microseconds,
-- and the stretch of time that was counted last.
create table trees (
    tree_id blob not null primary key,
    thread_id blob not null references threads (thread_id) on delete cascade,
    model_calls bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    children bigint not null,
    under_way bigint not null,
    busy_micros bigint not null,
    busy_before bigint not null,
    busy_from bigint not null,
    busy_until bigint not null
) without rowid;
create index trees_by_thread on trees (thread_id);

-- A row means: of what a tree has used, the run `run_id` on `thread_id`, with those that went on with it, has used this much.
create table tree_shares (
    tree_id blob not null references trees (tree_id) on delete cascade,
    run_id blob not null,
    thread_id blob not null,
    model_calls bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    children bigint not null,
    under_way bigint not null,
    primary key (tree_id, run_id)
) without rowid;
