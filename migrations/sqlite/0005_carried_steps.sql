-- From which checkpoint the tasks of a step have their ids, if the step was carried on to checkpoints of its own. In the row of
-- the step that ends: the checkpoint after which it began, if that is not `parent_id`. In the row of a fork or an update: the
-- one after which the unfinished step began that goes on here; null if another step follows.
alter table checkpoints add column carried_from blob;
