-- A stream of a thread that is taken up again is read from the beginning of the run in whose course it broke off.
create index runs_by_first_seq on runs (thread_id, first_seq) where depth = 0;
