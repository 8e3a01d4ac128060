-- The tables of adjutant on SQLite, ordered by noun: conversations, runs, the log, interrupts, background tasks, assistants,
-- definitions, crons, the Store, webhooks, jobs, quotas, API keys, the audit, data keys, requests, servers.
--
-- Ids are 16-byte blobs, times are microseconds since 1970, JSON is text. Every value is given by the program.
--
-- `tenant` is the organisation or team to which a row belongs, `owner` the user of that tenant; an empty owner means: to the
-- tenant as a whole. The tenant `*` is the server itself, whose rows are there for all tenants.

-- ---------------------------------------------------------------------------------------------------------------- threads

-- A row means: there is this conversation. What was said in it are its checkpoints. Runs, checkpoints, events and interrupts
-- belong to whom their thread belongs. The thread is kept for `ttl` microseconds after its last change, and at `expires_at`
-- happens what `ttl_strategy` says. At `pruned_at` all but the newest state was taken away.
create table threads (
    thread_id blob not null primary key,
    tenant text not null,
    owner text not null,
    status text not null,
    metadata text not null,
    config text not null,
    error text,
    ttl bigint,
    ttl_strategy text,
    expires_at bigint,
    pruned_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    state_updated_at bigint not null
) without rowid;
-- Every order, among all threads and among those of one status.
create index threads_by_created on threads (created_at, thread_id);
create index threads_by_updated on threads (updated_at, thread_id);
create index threads_by_state_updated on threads (state_updated_at, thread_id);
create index threads_by_status on threads (status, updated_at, thread_id);
create index threads_by_status_created on threads (status, created_at, thread_id);
create index threads_by_status_state_updated on threads (status, state_updated_at, thread_id);
create index threads_by_status_id on threads (status, thread_id);
create index threads_by_owner on threads (tenant, owner);
create index threads_by_expiry on threads (expires_at, thread_id) where expires_at is not null;
create index threads_unpruned on threads (state_updated_at, thread_id)
    where pruned_at is null or pruned_at < state_updated_at;

-- A row means: the metadata of a thread has this value at this path. Value and path are one digest.
create table thread_terms (
    term blob not null,
    thread_id blob not null references threads (thread_id) on delete cascade,
    primary key (term, thread_id)
) without rowid;
create index thread_terms_by_thread on thread_terms (thread_id);

-- A row means: this thread is a copy that is not finished. No client finds it yet.
create table unfinished_copies (
    thread_id blob not null primary key references threads (thread_id) on delete cascade,
    touched_at bigint not null
);

-- ------------------------------------------------------------------------------------------------------------------- runs

-- A row means: an agent was asked to do something on a thread. Depth 0 is the main agent, asked by a client; deeper
-- ones were asked by another run. `worker` is the process that may write for it, `fence` counts its changes of hands.
-- `crashes`: how often a server has died at work on the run since its last step, or since the last result of one of its
-- calls; a server that stopped in good order has not died. The events of the run are in the thread's log from `first_seq` on,
-- until the events of another run begin; null: there are none yet. `usage`: calls, tokens, children and time so far; null:
-- nothing yet. `visibility`: how much clients see of a subagent's run (hidden, status or tools_only); null: all of it.
-- `queue` is the account on whose behalf the run works, as `TENANT/USER/KEY/`, with the priority of the run behind it; runs with
-- the same text take their turns by age. `definition` is the digest of the definition that the run is pinned to, since a
-- `request` may be sealed; null: there is none. `touched_by` and `before`: see `checkpoints`.
create table runs (
    run_id blob not null primary key,
    thread_id blob not null references threads (thread_id) on delete cascade,
    assistant_id blob not null,
    root_id blob not null,
    parent_id blob,
    depth integer not null,
    cause text,
    namespace text not null,
    path text not null,
    visibility text,
    status text not null,
    queue text not null,
    request text not null,
    definition text,
    metadata text not null,
    error text,
    attempt integer not null,
    crashes integer not null,
    worker blob,
    fence bigint not null,
    cancel text,
    first_seq bigint,
    usage text,
    touched_by blob,
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
-- Whose turn it can be, and the runs of each account that wait.
create index runs_waiting on runs (queue, due_at, run_id) where depth = 0 and status = 'pending';
-- How many runs of each account are at work.
create index runs_at_work on runs (queue) where depth = 0 and status = 'running';
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
-- have one whose limits reach beyond the thread on which they began. `cost_micros` is what the answers of models cost, in
-- millionths. `busy_…`: for how long work went on, in microseconds, and the stretch of time that was counted last.
create table trees (
    tree_id blob not null primary key,
    thread_id blob not null references threads (thread_id) on delete cascade,
    model_calls bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cost_micros bigint not null,
    children bigint not null,
    under_way bigint not null,
    busy_micros bigint not null,
    busy_before bigint not null,
    busy_from bigint not null,
    busy_until bigint not null
) without rowid;
create index trees_by_thread on trees (thread_id);

-- A row means: of what a tree has used, the run `run_id` on `thread_id`, with the runs that continued it, has used this much.
create table tree_shares (
    tree_id blob not null references trees (tree_id) on delete cascade,
    run_id blob not null,
    thread_id blob not null,
    model_calls bigint not null,
    tool_calls bigint not null,
    input_tokens bigint not null,
    output_tokens bigint not null,
    cost_micros bigint not null,
    children bigint not null,
    under_way bigint not null,
    primary key (tree_id, run_id)
) without rowid;

-- ---------------------------------------------------------------------------------------------------------------- the log

-- A row means: an agent took this step on a thread, and wrote this. It is an event of the thread's log at the same
-- time: `seq` counts on one line with the table `events`. The state at a checkpoint is the sum of the writes of its
-- ancestors. `lane` is the child run whose history this is, all zeros for the main agent. Rows of one lane and one
-- `segment` (the seq of its first row) are a chain without forks, each the child of the one before. Ids are unique within a
-- thread: a copy of a thread has those of the original.
-- `touched_by` is the first run of the main agent that changed the row although the row is not its own, and `before` is what
-- the row was until then: when that run is rolled back, the row is so again. The same in `runs` and `interrupts`.
create table checkpoints (
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
    primary key (thread_id, checkpoint_id),
    unique (thread_id, seq)
);
create index checkpoints_by_lane on checkpoints (thread_id, lane, seq);
create index checkpoints_touched on checkpoints (touched_by) where touched_by is not null;

-- A row means: this happened on a thread, and it was not a step.
create table events (
    thread_id blob not null references threads (thread_id) on delete cascade,
    seq bigint not null,
    run_id blob not null,
    lane blob not null,
    body text not null,
    created_at bigint not null,
    primary key (thread_id, seq)
) without rowid;

-- A row means: texts of this tenant contain these bytes as base64, and the texts are stored without them. `digest` is the
-- SHA-256 of the bytes in hexadecimal digits, `bytes` their number. `sealed`: `content` is sealed. The row goes with the last
-- reference to it.
create table blobs (
    tenant text not null,
    digest text not null,
    bytes bigint not null,
    sealed boolean not null,
    content blob not null,
    primary key (tenant, digest)
);

-- A row means: the checkpoint or event `seq` of this thread refers to this blob, which adds `chars` characters to its texts when
-- they are read.
create table entry_blobs (
    thread_id blob not null references threads (thread_id) on delete cascade,
    seq bigint not null,
    digest text not null,
    tenant text not null,
    bytes bigint not null,
    chars bigint not null,
    primary key (thread_id, seq, digest),
    foreign key (tenant, digest) references blobs (tenant, digest)
) without rowid;
create index entry_blobs_by_blob on entry_blobs (tenant, digest);

-- A row means: the request of this run refers to this blob.
create table request_blobs (
    run_id blob not null references runs (run_id) on delete cascade,
    digest text not null,
    thread_id blob not null references threads (thread_id) on delete cascade,
    tenant text not null,
    bytes bigint not null,
    primary key (run_id, digest),
    foreign key (tenant, digest) references blobs (tenant, digest)
) without rowid;
create index request_blobs_by_thread on request_blobs (thread_id);
create index request_blobs_by_blob on request_blobs (tenant, digest);

-- ------------------------------------------------------------------------------------------------------------- interrupts

-- A row means: a human was asked this, and the row says what became of the question. `run_id` is the run of the main
-- agent in whose course it was asked. `seq` puts the questions of a thread in order, and `ordinal` those that were asked
-- together. `touched_by` and `before`: see `checkpoints`.
create table interrupts (
    interrupt_id text not null,
    thread_id blob not null references threads (thread_id) on delete cascade,
    run_id blob not null,
    lane blob not null,
    agent_name text not null,
    path text not null,
    task_id blob not null,
    task_call_id text,
    status text not null,
    interrupt text not null,
    resolution text,
    resumed_by blob,
    touched_by blob,
    before text,
    created_at bigint not null,
    expires_at bigint,
    resolved_at bigint,
    seq bigint not null,
    ordinal integer not null,
    primary key (thread_id, interrupt_id)
) without rowid;
create index interrupts_by_expiry on interrupts (status, expires_at) where expires_at is not null;
create index interrupts_by_status on interrupts (status, created_at, seq, ordinal);
create index interrupts_by_id on interrupts (interrupt_id);

-- A row means: this interrupt is assigned to this user of the tenant of its thread (`kind` is `user`), or to all its users with
-- this role (`kind` is `role`). An interrupt without rows is assigned to nobody.
create table interrupt_approvers (
    thread_id blob not null,
    interrupt_id text not null,
    kind text not null,
    name text not null,
    primary key (thread_id, interrupt_id, kind, name),
    foreign key (thread_id, interrupt_id) references interrupts (thread_id, interrupt_id) on delete cascade
) without rowid;

-- A row means: a reviewer has decided about such calls for the rest of the thread. `run_id` is the run that brought the
-- decision; when it is undone, the decision is forgotten.
create table remembered_decisions (
    decision_id blob not null primary key,
    thread_id blob not null references threads (thread_id) on delete cascade,
    run_id blob not null,
    body text not null
) without rowid;
create index remembered_decisions_by_thread on remembered_decisions (thread_id, decision_id);

-- ------------------------------------------------------------------------------------ background tasks and remote agents

-- A row means: the agent of `parent_thread` has handed work to another agent, which does it on a thread of its own, and did
-- not wait for it. `watched`: the task may have an outcome that the parent does not know; `told_run` is the run whose outcome
-- the parent was woken for last. `top_run` is the run under which the whole tree of such tasks hangs, `ancestry` what is left
-- to this one of its limits.
create table background_tasks (
    task_id blob not null primary key,
    parent_thread blob not null references threads (thread_id) on delete cascade,
    parent_run blob not null,
    parent_assistant blob not null,
    call_id text not null,
    agent_name text not null,
    graph_id text not null,
    top_run blob not null,
    ancestry text not null,
    notify boolean not null,
    watched boolean not null,
    told_run blob,
    created_at bigint not null
) without rowid;
create index background_tasks_watched on background_tasks (parent_thread, created_at, task_id) where watched;
create index background_tasks_by_parent on background_tasks (parent_thread, created_at, task_id);
create index background_tasks_by_run on background_tasks (parent_run, created_at, task_id);
create index background_tasks_by_top on background_tasks (top_run, task_id);

-- A row means: the agent `agent_name` of the server at `url` works for a background task, `task_id`, or for the run of a subagent
-- that waits for it, and work may still go on there. `remote_run_id` is the id of that task or run.
--
-- Of a task: `seen` is the task as it was when it was polled last, with the status and the run of it; null: it is being started.
-- `unwanted`: it is to be cancelled there. `attempts` polls found no change. `used`: what the task has used, as far as its
-- server says. `version` counts the changes of the row. Of a run: its agent is described in the definition that the agent
-- `parent_graph_id` had then, or is that agent, and the row goes when the run has ended; work that a stopped run leaves behind is
-- cancelled there first, however long that takes. `first_run`: the run whose work it is, which is another one if a run of a main
-- agent continues with answers. Since `lost_since` the server is out of reach. When a job polls, cancels or
-- watches the work says the table `jobs`.
create table remote_runs (
    remote_run_id blob not null primary key,
    task_id blob references background_tasks (task_id) on delete cascade,
    url text not null,
    agent_name text not null,
    parent_graph_id text,
    parent_definition text,
    first_run blob,
    seen text,
    seen_status text,
    seen_run blob,
    used text,
    unwanted boolean not null,
    attempts integer not null,
    lost_since bigint,
    version bigint not null
) without rowid;
create index remote_runs_by_task on remote_runs (task_id) where task_id is not null;
create index remote_runs_awaited on remote_runs (remote_run_id) where task_id is null;

-- -------------------------------------------------------------------------------------------------------------- sandboxes

-- A row means: at the sandbox service `service` of the configuration, this sandbox is for the agent at `agent_path` of the
-- thread, or for all of its agents if that is empty. Until `created` it may not be there yet. When the thread is deleted, the
-- sandbox has none any more; a job ends it, and then the row goes.
create table sandboxes (
    sandbox_id blob not null primary key,
    thread_id blob references threads (thread_id) on delete set null,
    service text not null,
    agent_path text not null,
    created boolean not null
) without rowid;
create unique index sandboxes_by_thread on sandboxes (thread_id, service, agent_path);

-- ------------------------------------------------------------------------------------------------------------- assistants

-- A row means: clients can run this agent definition with these settings, which are those of the version in use.
-- `folded` is the name in small letters, for searching and sorting. The default assistants of definitions belong to the server.
create table assistants (
    assistant_id blob not null primary key,
    tenant text not null,
    owner text not null,
    version bigint not null,
    graph_id text not null,
    config text not null,
    context text not null,
    metadata text not null,
    name text not null,
    folded text not null,
    description text,
    created_at bigint not null,
    updated_at bigint not null
);
create index assistants_by_created on assistants (created_at, assistant_id);
create index assistants_by_updated on assistants (updated_at, assistant_id);
create index assistants_by_name on assistants (folded, assistant_id);
create index assistants_by_tenant on assistants (tenant, created_at, assistant_id, owner);
create index assistants_by_graph on assistants (graph_id, created_at, assistant_id);

-- A row means: this is what a version of an assistant says. Rows never change.
create table assistant_versions (
    assistant_id blob not null references assistants (assistant_id) on delete cascade,
    version bigint not null,
    graph_id text not null,
    config text not null,
    context text not null,
    metadata text not null,
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
-- run of a due time is made in the transaction that moves `due_at` on, and with it the job of the cron. The threads that it
-- makes belong to whom the cron belongs.
create table crons (
    cron_id blob not null primary key,
    tenant text not null,
    owner text not null,
    assistant_id blob not null references assistants (assistant_id) on delete cascade,
    thread_id blob references threads (thread_id) on delete cascade,
    schedule text not null,
    timezone text,
    end_time bigint,
    enabled boolean not null,
    keep_threads boolean not null,
    due_at bigint,
    request text not null,
    payload text not null,
    metadata text not null,
    created_at bigint not null,
    updated_at bigint not null
) without rowid;
create index crons_by_thread on crons (thread_id, created_at, cron_id);
create index crons_by_tenant on crons (tenant, created_at, cron_id, owner);
create index crons_by_assistant on crons (assistant_id, created_at, cron_id);
create index crons_by_created on crons (created_at, cron_id);
create index crons_by_updated on crons (updated_at, cron_id);
create index crons_by_due on crons (due_at, cron_id);
create index crons_by_end on crons (end_time, cron_id);

-- -------------------------------------------------------------------------------------------------------------- the Store

-- A row means: its owners remember this, under this key, in this namespace. Each owner has a Store of their own. A namespace is
-- written as its labels with a dot after each, so that it and all below it lie in one range of the primary key. `ttl` is how
-- long the item stays after it was written, or read by a request that renews it, in microseconds; an item is gone from
-- `expires_at` on, swept or not.
create table items (
    tenant text not null,
    owner text not null,
    namespace text not null,
    key text not null,
    value text not null,
    ttl bigint,
    expires_at bigint,
    created_at bigint not null,
    updated_at bigint not null,
    primary key (tenant, owner, namespace, key)
);
create index items_by_expiry on items (expires_at) where expires_at is not null;

-- A row means: this is the embedding of the text at `path` of an item's value, by the model that the server is configured
-- with; a unit vector. `sealed` is the vector when it is sealed, which leaves `vector` empty; null: it is in `vector`.
create table item_vectors (
    tenant text not null,
    owner text not null,
    namespace text not null,
    key text not null,
    path text not null,
    vector blob not null,
    sealed blob,
    primary key (tenant, owner, namespace, key, path),
    foreign key (tenant, owner, namespace, key) references items (tenant, owner, namespace, key) on delete cascade
);

-- --------------------------------------------------------------------------------------------------------------- webhooks

-- A row means: this is to be sent to this address, because a run ended; or it was sent, or it was given up. It is
-- written in the transaction that ends the run, belongs to whom the thread belonged, and outlives thread and run. While it is
-- pending it has a job; `attempts` are those that were made before the last one ended.
create table deliveries (
    delivery_id blob not null primary key,
    tenant text not null,
    owner text not null,
    run_id blob not null,
    thread_id blob not null,
    url text not null,
    body text not null,
    status text not null,
    attempts integer not null,
    answer integer,
    error text,
    created_at bigint not null,
    finished_at bigint
) without rowid;
create index deliveries_by_created on deliveries (created_at, delivery_id);
create index deliveries_by_status on deliveries (status, created_at, delivery_id);
create index deliveries_by_run on deliveries (run_id, created_at, delivery_id);
create index deliveries_by_thread on deliveries (thread_id, created_at, delivery_id);
create index deliveries_by_tenant on deliveries (tenant, created_at, delivery_id, owner);
create index deliveries_finished on deliveries (finished_at, delivery_id) where finished_at is not null;

-- -------------------------------------------------------------------------------------------------------------------- jobs

-- A row means: from `due_at` on, this is to be done to what `key` names: a delivery, a cron, a run, a thread. A row that was
-- claimed is with `worker` until `due_at`, or until that worker dies; `fence` counts the claims. It goes with the thread or
-- the assistant that it is for.
create table jobs (
    job_id blob not null primary key,
    kind text not null,
    key blob not null,
    thread_id blob references threads (thread_id) on delete cascade,
    assistant_id blob references assistants (assistant_id) on delete cascade,
    due_at bigint not null,
    attempts integer not null,
    worker blob,
    fence bigint not null,
    unique (kind, key)
) without rowid;
create index jobs_due on jobs (kind, due_at, job_id);
create index jobs_at_work on jobs (worker) where worker is not null;
create index jobs_by_thread on jobs (thread_id) where thread_id is not null;
create index jobs_by_assistant on jobs (assistant_id) where assistant_id is not null;

-- ----------------------------------------------------------------------------------------------------------------- quotas

-- A row means: on this day (UTC, counted from 1970), runs of the accounts that begin with `subject` have used this much. A day
-- has several rows, by `slot`, so that commits of different runs rarely wait for each other; their sum counts. Only subjects
-- with a quota for a day have rows.
create table daily_usage (
    subject text not null,
    day bigint not null,
    slot integer not null,
    tokens bigint not null,
    cost_micros bigint not null,
    primary key (subject, day, slot)
) without rowid;
create index daily_usage_by_day on daily_usage (day);

-- A row means: the checkpoints and events of this thread up to the number `seq` had this many bytes at this time. Only threads
-- of owners with a quota for stored bytes have a row; it goes with its thread.
create table thread_bytes (
    thread_id blob not null primary key references threads (thread_id) on delete cascade,
    tenant text not null,
    owner text not null,
    bytes bigint not null,
    seq bigint not null,
    measured_at bigint not null
) without rowid;
create index thread_bytes_by_owner on thread_bytes (tenant, owner, bytes);

-- --------------------------------------------------------------------------------------------------- API keys and tickets

-- A row means: there is, or was, this API key, which proves this identity. Of its secret only the SHA-256 digest is stored:
-- secrets are random and long, so a slow hash would protect nothing. After a rotation the secret before is valid until
-- `previous_until`. `roles` and `scopes` are JSON lists; null: the scopes are not limited. A key with `revoked_at` is refused;
-- its row is kept for a while, so that people see what happened to it.
create table api_keys (
    key_id text not null primary key,
    name text not null,
    tenant text not null,
    user_id text not null,
    roles text not null,
    scopes text,
    digest blob not null,
    previous_digest blob,
    previous_until bigint,
    created_at bigint not null,
    expires_at bigint,
    last_used_at bigint,
    rotated_at bigint,
    revoked_at bigint
) without rowid;
create index api_keys_by_tenant on api_keys (tenant, created_at, key_id);
create index api_keys_by_created on api_keys (created_at, key_id);

-- A row means: whoever knows the text with this digest may open one stream as this identity, before `expires_at`. The row
-- goes when the ticket is used. `identity` is JSON.
create table auth_tickets (
    digest blob not null primary key,
    tenant text not null,
    user_id text not null,
    identity text not null,
    expires_at bigint not null
) without rowid;
create index auth_tickets_by_user on auth_tickets (tenant, user_id);
create index auth_tickets_by_expiry on auth_tickets (expires_at);

-- A row means: whoever knows the text with this digest may read what `access` says of the run, before `expires_at` and while
-- the run is at work: a tool, during the one call `task_id` of it. `child_id` is the run of the subagent that makes the call,
-- null for the main agent. The row goes when the call ends. `access` is JSON.
create table call_tokens (
    digest blob not null primary key,
    task_id blob not null,
    thread_id blob not null references threads (thread_id) on delete cascade,
    run_id blob not null,
    child_id blob,
    tool text not null,
    access text not null,
    expires_at bigint not null
) without rowid;
create unique index call_tokens_by_task on call_tokens (task_id);
create index call_tokens_by_thread on call_tokens (thread_id);
create index call_tokens_by_expiry on call_tokens (expires_at);

-- -------------------------------------------------------------------------------------------------------------- the audit

-- A row means: this caller did this to this resource, or was refused. Rows are never changed. They are deleted when they are
-- older than the configuration says, and outlive the resource and the caller. Ids sort by time. Every change of a caller
-- writes a row, so there is one index besides the key.
create table audit (
    entry_id blob not null,
    tenant text not null,
    user_id text not null,
    credential text not null,
    action text not null,
    resource text not null,
    outcome text not null,
    address text,
    detail text not null,
    created_at bigint not null,
    primary key (tenant, entry_id)
) without rowid;
create index audit_by_user on audit (tenant, user_id, entry_id);

-- -------------------------------------------------------------------------------------------------------------- data keys

-- A row means: values of this tenant are, or were, sealed under this data key. `wrapped` is the data key, sealed under the master
-- key named `master`; null: the tenant was deleted, and its values can never be opened again. `change` is the number of the
-- change that made the row what it is.
create table data_keys (
    key_id blob not null primary key,
    tenant text not null,
    master text not null,
    wrapped blob,
    change bigint not null
) without rowid;
create index data_keys_by_tenant on data_keys (tenant, change);
create index data_keys_by_change on data_keys (change);

-- The one row counts the changes of `data_keys`, so that other servers see that there was one.
create table data_key_changes (
    one bigint not null primary key,
    number bigint not null
);

-- --------------------------------------------------------------------------------------------------- requests and servers

-- A row means: a request that came with this Idempotency-Key was granted, and this is how it was answered, or which run it
-- began. It is written together with what the request made. The request came from this tenant, or from a caller without one
-- (`*`).
create table idempotency_keys (
    idempotency_key text not null primary key,
    tenant text not null,
    fingerprint blob not null,
    status integer,
    body text,
    location text,
    thread_id blob,
    run_id blob,
    created_at bigint not null
);
create index idempotency_keys_by_created on idempotency_keys (created_at, idempotency_key);
-- Answers are forgotten with their thread.
create index idempotency_keys_by_thread on idempotency_keys (thread_id) where thread_id is not null;

-- A row means: this server process has promised to be alive until then. The other columns serve Postgres, where several
-- processes share a database.
create table workers (
    worker_id blob not null primary key,
    alive_until bigint not null,
    session_lock bigint,
    missed_at bigint
) without rowid;

-- The one row is written to see whether the database can be written to.
create table probes (
    probe integer not null primary key,
    written_at bigint not null
);
