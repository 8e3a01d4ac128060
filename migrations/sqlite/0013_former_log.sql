-- no-transaction
-- The tables whose rows the migration 11 has copied.
drop table if exists former_checkpoints;
drop table if exists former_events;
create index if not exists checkpoints_touched on checkpoints (touched_by) where touched_by is not null;
