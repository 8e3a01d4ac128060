-- The runs of subagents that were cancelled while they waited, and whose callers are still to be told.
create index runs_given_up on runs (thread_id) where depth > 0 and status = 'interrupted' and cancel is not null;
