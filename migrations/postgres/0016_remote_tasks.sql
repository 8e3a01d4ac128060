-- What is known of a task that another server does. `seen` is how it stood when it was seen last, with the status and the run
-- of it; null while it is being begun. `unwanted`: it is to be stopped there. `due_at`: when somebody has to look at it again;
-- whoever does is `worker`, under the number `fence`. `looks` were in vain since something changed; `lost_since` its server is
-- out of reach. Tasks of this server have none of it.
alter table background_tasks add column seen text;
alter table background_tasks add column seen_status text;
alter table background_tasks add column seen_run uuid;
alter table background_tasks add column unwanted boolean not null default false;
alter table background_tasks add column looks integer not null default 0;
alter table background_tasks add column lost_since bigint;
alter table background_tasks add column due_at bigint;
alter table background_tasks add column worker uuid;
alter table background_tasks add column fence bigint not null default 0;
create index background_tasks_due on background_tasks (due_at, task_id) where due_at is not null;
