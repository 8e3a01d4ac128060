-- What a run of the main agent, `touched_by`, found when it first changed a row that was not its own: `before`. When the
-- run is undone, the row is again as it was before.
alter table checkpoints add column touched_by uuid;
alter table checkpoints add column before text;
create index checkpoints_touched on checkpoints (touched_by) where touched_by is not null;
alter table interrupts add column touched_by uuid;
alter table interrupts add column before text;
alter table runs add column touched_by uuid;
alter table runs add column before text;
create index runs_touched on runs (touched_by) where touched_by is not null;
