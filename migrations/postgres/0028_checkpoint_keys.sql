-- The ids of checkpoints are unique within a thread: a copy of a thread has those of the original.
alter table checkpoints drop constraint checkpoints_pkey;
alter table checkpoints add primary key (thread_id, checkpoint_id);
