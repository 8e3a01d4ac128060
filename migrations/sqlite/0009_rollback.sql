-- What a run of the main agent, `touched_by`, found when it first changed a row that was not its own: `before`. When the
-- run is undone, the row is again as it was before.
alter table checkpoints add column touched_by blob;
alter table checkpoints add column before text;
create index checkpoints_touched on checkpoints (touched_by) where touched_by is not null;
alter table interrupts add column touched_by blob;
alter table interrupts add column before text;
alter table runs add column touched_by blob;
alter table runs add column before text;
create index runs_touched on runs (touched_by) where touched_by is not null;

-- Whether the thread of a run is there for it alone and shall have gone with it.
alter table runs add column temporary boolean not null default false;
create index runs_left_over on runs (updated_at) where temporary and status not in ('pending', 'running');
