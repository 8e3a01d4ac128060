-- A run takes less space. `next_event` is the body of the event that has the number behind its checkpoint, and no row of its own.
-- `parent_id` of checkpoints is null if the parent is the row before in the segment, and the node `__start__` is an empty text. In
-- `runs`, the root of a main agent's run and the assistant that its agent has by itself are empty blobs, and `metadata` lack the
-- name of its agent and `created_by` if that is `system`. Texts may begin with a second mark of the short form. Rows of former
-- releases stay as they are.
alter table checkpoints add column next_event text;
