-- What a run has used so far: calls, tokens, children, time at work. Null as long as it has used nothing.
alter table runs add column usage text;

-- The runs of subagents at work that shall be stopped.
create index runs_children_cancelled on runs (thread_id) where depth > 0 and status = 'running' and cancel is not null;
