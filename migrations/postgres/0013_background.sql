-- A row means: the agent of `parent_thread` has handed work to another agent, which does it on a thread of its own, and did
-- not wait for it. `watched`: something may come of it that the parent does not know; `told_run` is the run whose outcome it
-- was woken for last. `top_run` is the run under which the whole tree of such tasks hangs, `ancestry` what is left to this one.
create table background_tasks (
    task_id uuid not null primary key,
    parent_thread uuid not null references threads (thread_id) on delete cascade,
    parent_run uuid not null,
    parent_assistant uuid not null,
    call_id text not null,
    agent_name text not null,
    graph_id text not null,
    url text,
    top_run uuid not null,
    ancestry text not null,
    notify boolean not null,
    watched boolean not null,
    told_run uuid,
    created_at bigint not null
);
create index background_tasks_watched on background_tasks (parent_thread, created_at, task_id) where watched;
create index background_tasks_by_parent on background_tasks (parent_thread, created_at, task_id);
create index background_tasks_by_run on background_tasks (parent_run, created_at, task_id);
create index background_tasks_by_top on background_tasks (top_run, task_id);
