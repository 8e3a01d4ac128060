-- The tables of adjutant on Postgres, ordered by noun: conversations, runs, the log, interrupts, background tasks, assistants,
-- definitions, crons, the Store, webhooks, jobs, requests, servers.
--
-- Times are microseconds since 1970. Every value is given by the program.

-- ---------------------------------------------------------------------------------------------------------------- threads

-- A row means: there is this conversation. What was said in it are its checkpoints. The thread is kept for `ttl`
-- microseconds after its last change, and at `expires_at` happens what `ttl_strategy` says. At `pruned_at` all but the newest
-- state was taken away.
create table threads (
    thread_id uuid not null primary key,
    status text not null,
    metadata jsonb not null,
    config jsonb not null,
    error text,
    ttl bigint,
    ttl_strategy text,
    expires_at bigint,
    pruned_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    state_updated_at bigint not null
);
-- Every order, among all threads and among those of one status.
create index threads_by_created on threads (created_at, thread_id);
create index threads_by_updated on threads (updated_at, thread_id);
create index threads_by_state_updated on threads (state_updated_at, thread_id);
create index threads_by_status on threads (status, updated_at, thread_id);
create index threads_by_status_created on threads (status, created_at, thread_id);
create index threads_by_status_state_updated on threads (status, state_updated_at, thread_id);
create index threads_by_status_id on threads (status, thread_id);
create index threads_by_expiry on threads (expires_at, thread_id) where expires_at is not null;
create index threads_unpruned on threads (state_updated_at, thread_id)
    where pruned_at is null or pruned_at < state_updated_at;

-- A row means: the metadata of a thread has this value at this path. Value and path are one digest.
create table thread_terms (
    term uuid not null,
    thread_id uuid not null references threads (thread_id) on delete cascade,
    primary key (term, thread_id)
);
create index thread_terms_by_thread on thread_terms (thread_id);

-- A row means: this thread is a copy that is not finished. No client finds it yet.
create table unfinished_copies (
    thread_id uuid not null primary key references threads (thread_id) on delete cascade,
    touched_at bigint not null
);

-- ------------------------------------------------------------------------------------------------------------------- runs

-- A row means: an agent was asked to do something on a thread. Depth 0 is the main agent, asked by a client; deeper
-- ones were asked by another run. `worker` is the process that may write for it, `fence` counts its changes of hands.
-- `crashes`: how often a server has died at work on the run since its last step, or since the last result of one of its
-- calls; a server that stopped in good order has not died. The events of the run are in the thread's log from `first_seq` on,
-- until the events of another run begin; null: there are none yet. `usage`: calls, tokens, children and time so far; null:
-- nothing yet. `visibility`: how much clients see of a subagent's run (hidden, status or tools_only); null: all of it.
-- `touched_by` and `before`: see `checkpoints`.
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
    visibility text,
    status text not null,
    request text not null,
    metadata jsonb not null,
    error text,
    attempt integer not null,
    crashes integer not null,
    worker uuid,
    fence bigint not null,
    cancel text,
    first_seq bigint,
    usage text,
    touched_by uuid,
    before text,
    created_at bigint not null,
    updated_at bigint not null,
    due_at bigint not null
);
create index runs_by_thread on runs (thread_id, created_at, run_id, depth);
create index runs_by_root on runs (root_id, created_at, run_id);
create index runs_by_parent on runs (parent_id, created_at, run_id) where parent_id is not null;
-- The queue: pending runs by the time at which they may begin.
create index runs_due on runs (due_at, run_id) where depth = 0 and status = 'pending';
create index runs_in_flight on runs (thread_id, created_at, run_id)
    where depth = 0 and status in ('pending', 'running');
-- Runs of the main agent never overlap on a thread.
create unique index runs_running on runs (thread_id) where depth = 0 and status = 'running';
-- A thread's stream that is resumed is read from the beginning of the run in whose course it broke off.
create index runs_by_first_seq on runs (thread_id, first_seq) where depth = 0;
-- Running subagents that are to be stopped.
create index runs_children_cancelled on runs (thread_id) where depth > 0 and status = 'running' and cancel is not null;
-- Subagents that were cancelled while they waited for an answer, and whose callers do not know it yet.
create index runs_cancelled_while_waiting on runs (thread_id)
    where depth > 0 and status = 'interrupted' and cancel is not null;
create index runs_touched on runs (touched_by) where touched_by is not null;

-- A row means: a run and all below it have used this much, background tasks and what is below them included. Only those runs
-- have one whose limits reach beyond the thread on which they began. `busy_…`: for how long work went on, in microseconds,
-- and the stretch of time that was counted last.
create table trees (
    tree_id uuid not null primary key,
    thread_id uuid not null references threads (thread_id) on delete cascade,
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
);
create index trees_by_thread on trees (thread_id);

-- A row means: of what a tree has used, the run `run_id` on `thread_id`, with the runs that continued it, has used this much.
create table tree_shares (
    tree_id uuid not null references trees (tree_id) on delete cascade,
    run_id uuid not null,
    thread_id uuid not null,
    model_calls bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    children bigint not null,
    under_way bigint not null,
    primary key (tree_id, run_id)
);

-- ---------------------------------------------------------------------------------------------------------------- the log

-- A row means: an agent took this step on a thread, and wrote this. It is an event of the thread's log at the same
-- time: `seq` counts on one line with the table `events`. The state at a checkpoint is the sum of the writes of its
-- ancestors. `lane` is the child run whose history this is, all zeros for the main agent. Rows of one lane and one
-- `segment` (the seq of its first row) are a chain without forks, each the child of the one before. Ids are unique within a
-- thread: a copy of a thread has those of the original.
-- `touched_by` is the first run of the main agent that changed the row although the row is not its own, and `before` is what
-- the row was until then: when that run is rolled back, the row is so again. The same in `runs` and `interrupts`.
create table checkpoints (
    checkpoint_id uuid not null,
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
    touched_by uuid,
    before text,
    created_at bigint not null,
    primary key (thread_id, checkpoint_id),
    unique (thread_id, seq)
);
create index checkpoints_by_lane on checkpoints (thread_id, lane, seq);
create index checkpoints_touched on checkpoints (touched_by) where touched_by is not null;

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

-- ------------------------------------------------------------------------------------------------------------- interrupts

-- A row means: a human was asked this, and the row says what became of the question. `run_id` is the run of the main
-- agent in whose course it was asked, `seq` puts the questions of a thread in order. `touched_by` and `before`: see
-- `checkpoints`.
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
    touched_by uuid,
    before text,
    created_at bigint not null,
    resolved_at bigint,
    seq bigint not null,
    primary key (thread_id, interrupt_id)
);
create index interrupts_by_status on interrupts (status, created_at, seq);
create index interrupts_by_id on interrupts (interrupt_id);

-- ------------------------------------------------------------------------------------ background tasks and remote agents

-- A row means: the agent of `parent_thread` has handed work to another agent, which does it on a thread of its own, and did
-- not wait for it. `watched`: the task may have an outcome that the parent does not know; `told_run` is the run whose outcome
-- the parent was woken for last. `top_run` is the run under which the whole tree of such tasks hangs, `ancestry` what is left
-- to this one of its limits.
create table background_tasks (
    task_id uuid not null primary key,
    parent_thread uuid not null references threads (thread_id) on delete cascade,
    parent_run uuid not null,
    parent_assistant uuid not null,
    call_id text not null,
    agent_name text not null,
    graph_id text not null,
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

-- A row means: the agent `agent_name` of the server at `url` works for a background task, `task_id`, or for the run of a subagent
-- that waits for it, and work may still go on there. `remote_run_id` is the id of that task or run.
--
-- Of a task: `seen` is the task as it was when it was polled last, with the status and the run of it; null: it is being started.
-- `unwanted`: it is to be cancelled there. `attempts` polls found no change. `used`: what the task has used, as far as its
-- server says. `version` counts the changes of the row. Of the run of a subagent: the subagent is described in the definition
-- that the agent `parent_graph_id` had then, and the row goes when the run has ended; work that a stopped run leaves behind is
-- cancelled there first, however long that takes. Since `lost_since` the server is out of reach. When a job polls, cancels or
-- watches the work says the table `jobs`.
create table remote_runs (
    remote_run_id uuid not null primary key,
    task_id uuid references background_tasks (task_id) on delete cascade,
    url text not null,
    agent_name text not null,
    parent_graph_id text,
    parent_definition text,
    seen text,
    seen_status text,
    seen_run uuid,
    used text,
    unwanted boolean not null,
    attempts integer not null,
    lost_since bigint,
    version bigint not null
);
create index remote_runs_by_task on remote_runs (task_id) where task_id is not null;
create index remote_runs_awaited on remote_runs (remote_run_id) where task_id is null;

-- ------------------------------------------------------------------------------------------------------------- assistants

-- A row means: clients can run this agent definition with these settings, which are those of the version in use.
-- `folded` is the name in small letters, for searching and sorting.
create table assistants (
    assistant_id uuid not null primary key,
    version bigint not null,
    graph_id text not null,
    config jsonb not null,
    context jsonb not null,
    metadata jsonb not null,
    name text not null,
    folded text collate "C" not null,
    description text,
    created_at bigint not null,
    updated_at bigint not null
);
create index assistants_by_created on assistants (created_at, assistant_id);
create index assistants_by_updated on assistants (updated_at, assistant_id);
create index assistants_by_name on assistants (folded, assistant_id);
create index assistants_by_graph on assistants (graph_id, created_at, assistant_id);
create index assistants_by_metadata on assistants using gin (metadata jsonb_path_ops);

-- A row means: this is what a version of an assistant says. Rows never change.
create table assistant_versions (
    assistant_id uuid not null references assistants (assistant_id) on delete cascade,
    version bigint not null,
    graph_id text not null,
    config jsonb not null,
    context jsonb not null,
    metadata jsonb not null,
    name text not null,
    description text,
    created_at bigint not null,
    primary key (assistant_id, version)
);

-- ------------------------------------------------------------------------------------------------------------ definitions

-- A row means: some agent is or was defined like this. Rows never change but for `used_at`, when the definition was last
-- taken into or out of use; `digest` is the SHA-256 of `body`.
create table definitions (
    digest text not null primary key,
    body text not null,
    used_at bigint not null
);
create index definitions_by_use on definitions (used_at);

-- A row means: from then on this agent was defined like this, by the file named in `origin`, or by a client when empty.
create table definition_versions (
    graph_id text not null,
    version bigint not null,
    digest text not null references definitions (digest),
    origin text not null,
    created_at bigint not null,
    primary key (graph_id, version)
);
create index definition_versions_by_digest on definition_versions (digest);

-- A row means: clients defined this agent, and this is the version in use.
create table agents (
    graph_id text not null primary key,
    version bigint not null,
    foreign key (graph_id, version) references definition_versions (graph_id, version)
);

-- The one row counts the changes of `agents`, so that other servers see that there was one.
create table definition_changes (
    one bigint not null primary key,
    number bigint not null
);

-- ------------------------------------------------------------------------------------------------------------------ crons

-- A row means: whenever the schedule says so, an agent is asked to do this, on the thread, or on a new one each time. The
-- run of a due time is made in the transaction that moves `due_at` on, and with it the job of the cron.
create table crons (
    cron_id uuid not null primary key,
    assistant_id uuid not null references assistants (assistant_id) on delete cascade,
    thread_id uuid references threads (thread_id) on delete cascade,
    schedule text not null,
    timezone text,
    end_time bigint,
    enabled boolean not null,
    keep_threads boolean not null,
    due_at bigint,
    request text not null,
    payload text not null,
    metadata jsonb not null,
    created_at bigint not null,
    updated_at bigint not null
);
create index crons_by_thread on crons (thread_id nulls first, created_at, cron_id);
create index crons_by_assistant on crons (assistant_id, created_at, cron_id);
create index crons_by_created on crons (created_at, cron_id);
create index crons_by_updated on crons (updated_at, cron_id);
create index crons_by_due on crons (due_at nulls first, cron_id);
create index crons_by_end on crons (end_time nulls first, cron_id);
create index crons_by_metadata on crons using gin (metadata jsonb_path_ops);

-- -------------------------------------------------------------------------------------------------------------- the Store

-- A row means: this is remembered, under this key, in this namespace. A namespace is written as its labels with a dot after
-- each, so that it and all below it lie in one range of the primary key. `ttl` is how long the item stays after it was
-- written, or read by a request that renews it, in microseconds; an item is gone from `expires_at` on, swept or not.
create table items (
    namespace text collate "C" not null,
    key text collate "C" not null,
    value jsonb not null,
    ttl bigint,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (namespace, key)
);
create index items_by_expiry on items (expires_at) where expires_at is not null;

-- A row means: this is the embedding of the text at `path` of an item's value, by the model that the server is configured
-- with; a unit vector.
create table item_vectors (
    namespace text collate "C" not null,
    key text collate "C" not null,
    path text collate "C" not null,
    vector real[] not null,
    primary key (namespace, key, path),
    foreign key (namespace, key) references items (namespace, key) on delete cascade
);

-- --------------------------------------------------------------------------------------------------------------- webhooks

-- A row means: this is to be sent to this address, because a run ended; or it was sent, or it was given up. It is
-- written in the transaction that ends the run and outlives thread and run. While it is pending it has a job; `attempts` are
-- those that were made before the last one ended.
create table deliveries (
    delivery_id uuid not null primary key,
    run_id uuid not null,
    thread_id uuid not null,
    url text not null,
    body text not null,
    status text not null,
    attempts integer not null,
    answer integer,
    error text,
    created_at bigint not null,
    finished_at bigint
);
create index deliveries_by_created on deliveries (created_at, delivery_id);
create index deliveries_by_status on deliveries (status, created_at, delivery_id);
create index deliveries_by_run on deliveries (run_id, created_at, delivery_id);
create index deliveries_by_thread on deliveries (thread_id, created_at, delivery_id);
create index deliveries_finished on deliveries (finished_at, delivery_id) where finished_at is not null;

-- -------------------------------------------------------------------------------------------------------------------- jobs

-- A row means: from `due_at` on, this is to be done to what `key` names: a delivery, a cron, a run, a thread. A row that was
-- claimed is with `worker` until `due_at`, or until that worker dies; `fence` counts the claims. It goes with the thread or
-- the assistant that it is for.
create table jobs (
    job_id uuid not null primary key,
    kind text not null,
    key uuid not null,
    thread_id uuid references threads (thread_id) on delete cascade,
    assistant_id uuid references assistants (assistant_id) on delete cascade,
    due_at bigint not null,
    attempts integer not null,
    worker uuid,
    fence bigint not null,
    unique (kind, key)
);
create index jobs_due on jobs (kind, due_at, job_id);
create index jobs_at_work on jobs (worker) where worker is not null;
create index jobs_by_thread on jobs (thread_id) where thread_id is not null;
create index jobs_by_assistant on jobs (assistant_id) where assistant_id is not null;

-- --------------------------------------------------------------------------------------------------- requests and servers

-- A row means: a request that came with this Idempotency-Key was granted, and this is how it was answered, or which run it
-- began. It is written together with what the request made.
create table idempotency_keys (
    idempotency_key text not null primary key,
    fingerprint uuid not null,
    status integer,
    body text,
    location text,
    thread_id uuid,
    run_id uuid,
    created_at bigint not null
);
create index idempotency_keys_by_created on idempotency_keys (created_at, idempotency_key);

-- A row means: this server process has promised to be alive until then.
create table workers (
    worker_id uuid not null primary key,
    alive_until bigint not null
);

-- The one row is written to see whether the database can be written to.
create table probes (
    probe integer not null primary key,
    written_at bigint not null
);
