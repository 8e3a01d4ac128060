-- The approvers of interrupts.

-- A row means: this interrupt is assigned to this user of the tenant of its thread (`kind` is `user`), or to all its users with
-- this role (`kind` is `role`). An interrupt without rows is assigned to nobody.
create table interrupt_approvers (
    thread_id blob not null,
    interrupt_id text not null,
    kind text not null,
    name text not null,
    primary key (thread_id, interrupt_id, kind, name),
    foreign key (thread_id, interrupt_id) references interrupts (thread_id, interrupt_id) on delete cascade
) without rowid;
