-- A row means: the run of a subagent has its work done on another server, by `agent_name` as the definition says that the agent
-- `graph_id` had then, and it is not known that nothing is left of it there. It goes when the run has come to its end; what a
-- run leaves behind that was stopped is stopped there first, however long that takes. `due_at`: when somebody may look at it
-- next; `looks` were in vain, and its server is out of reach since `lost_since`.
create table errands (
    run_id blob not null primary key,
    graph_id text not null,
    definition text,
    agent_name text not null,
    url text not null,
    due_at bigint not null,
    looks integer not null,
    lost_since bigint
);
create index errands_due on errands (due_at, run_id);
