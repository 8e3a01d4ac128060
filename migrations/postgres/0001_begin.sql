-- Times are microseconds since 1970. Every value is given by the program.

-- A row means: there is this conversation. What was said in it are its checkpoints.
create table threads (
    thread_id uuid not null primary key,
    status text not null,
    metadata jsonb not null,
    config jsonb not null,
    error text,
    created_at bigint not null,
    updated_at bigint not null,
    state_updated_at bigint not null
);
create index threads_by_metadata on threads using gin (metadata jsonb_path_ops);
create index threads_by_created on threads (created_at, thread_id);
create index threads_by_updated on threads (updated_at, thread_id);
create index threads_by_state_updated on threads (state_updated_at, thread_id);
create index threads_by_status on threads (status, updated_at, thread_id);

-- A row means: an agent was asked to do something on a thread. Depth 0 is the main agent, asked by a client; deeper
-- ones were asked by another run. `worker` is the process that may write for it, `fence` counts its changes of hands.
create table runs (
    run_id uuid not null primary key,
    thread_id uuid not null references threads (thread_id) on delete cascade,
    assistant_id uuid not null,
    root_id uuid not null,
    parent_id uuid,
    depth integer not null,
    cause text,
    namespace text not null,
    path jsonb not null,
    status text not null,
    request text not null,
    metadata jsonb not null,
    error text,
    attempt integer not null,
    worker uuid,
    fence bigint not null,
    cancel text,
    created_at bigint not null,
    updated_at bigint not null,
    due_at bigint not null
);
create index runs_by_thread on runs (thread_id, created_at, run_id, depth);
create index runs_by_root on runs (root_id, created_at, run_id);
create index runs_by_parent on runs (parent_id, created_at, run_id) where parent_id is not null;
create index runs_in_flight on runs (thread_id, created_at, run_id)
    where depth = 0 and status in ('pending', 'running');
create index runs_pending on runs (created_at, run_id) where depth = 0 and status = 'pending';
-- Runs of the main agent never overlap on a thread.
create unique index runs_running on runs (thread_id) where depth = 0 and status = 'running';

-- A row means: an agent took this step on a thread, and wrote this. It is an event of the thread's log at the same
-- time: `seq` counts on one line with the table `events`. The state at a checkpoint is the sum of the writes of its
-- ancestors. `lane` is the child run whose history this is, all zeros for the main agent. Rows of one lane and one
-- `segment` (the seq of its first row) are a chain without forks, each the child of the one before.
create table checkpoints (
    checkpoint_id uuid not null primary key,
    thread_id uuid not null references threads (thread_id) on delete cascade,
    lane uuid not null,
    seq bigint not null,
    segment bigint not null,
    parent_id uuid,
    step bigint not null,
    source text not null,
    node text not null,
    run_id uuid,
    writes text not null,
    shown text,
    position text not null,
    created_at bigint not null,
    unique (thread_id, seq)
);
create index checkpoints_by_lane on checkpoints (thread_id, lane, seq);

-- A row means: this happened on a thread, and it was not a step.
create table events (
    thread_id uuid not null references threads (thread_id) on delete cascade,
    seq bigint not null,
    run_id uuid not null,
    lane uuid not null,
    body text not null,
    created_at bigint not null,
    primary key (thread_id, seq)
);

-- A row means: a human was asked this, and the row says what became of the question. `run_id` is the run of the main
-- agent in whose course it was asked, `seq` puts the questions of a thread in order.
create table interrupts (
    interrupt_id text not null,
    thread_id uuid not null references threads (thread_id) on delete cascade,
    run_id uuid not null,
    lane uuid not null,
    agent_name text not null,
    path jsonb not null,
    task_id uuid not null,
    task_call_id text,
    status text not null,
    interrupt text not null,
    resolution text,
    resumed_by uuid,
    created_at bigint not null,
    resolved_at bigint,
    seq bigint not null,
    primary key (thread_id, interrupt_id)
);
create index interrupts_by_status on interrupts (status, created_at, seq);
create index interrupts_by_id on interrupts (interrupt_id);

-- A row means: this server process promised to be alive until then.
create table workers (
    worker_id uuid not null primary key,
    alive_until bigint not null
);
