-- SQLite has no statistics here, and takes one index whose condition the query contains for as good as another. It read all runs of
-- a thread, or of all threads, in the index by `first_seq` to find the few that wait or are at work. A run has such a number once it
-- has begun, so the index needs only those, and only queries about the number can use it.
drop index runs_by_first_seq;
create index runs_by_first_seq on runs (thread_id, first_seq) where depth = 0 and first_seq is not null;
-- Most runs begin where they are admitted and never wait. They were put into three small indexes, and taken out when they ended; now
-- it is one. Those that wait have an index by thread, and those at work are found in `runs_running`: there are no more of them than
-- the server has slots. Of two indexes that serve alike, SQLite takes the later one, so that of answers is made again.
drop index runs_at_work;
drop index runs_in_flight;
create index runs_queued on runs (thread_id, created_at, run_id) where depth = 0 and status = 'pending';
drop index runs_with_answers;
create index runs_with_answers on runs (thread_id) where depth = 0 and status = 'pending' and turn = 'answer';
