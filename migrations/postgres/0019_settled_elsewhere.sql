-- While the run waits for the answer to a question of its server, it is looked there whether somebody has answered it:
-- not before `look_at`.
alter table errands add column look_at bigint not null default 0;
