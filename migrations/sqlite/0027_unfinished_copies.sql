-- A row means: this thread is a copy in the making. Nobody is to find it yet.
create table unfinished_copies (
    thread_id blob not null primary key references threads (thread_id) on delete cascade,
    touched_at bigint not null
);
