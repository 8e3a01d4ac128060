-- What a task of another server has used by all that was done for it, as far as that server tells.
alter table background_tasks add column used text;
