-- When a queued run begins among those of its thread: `answer` before the others, `after_answers` when no interrupt of the
-- thread is pending, and in the order of the queue if there is none.
alter table runs add column turn text;
create index runs_with_answers on runs (thread_id) where depth = 0 and status = 'pending' and turn = 'answer';
-- Whether a question of a thread is in the way of its queued runs.
create index interrupts_by_thread on interrupts (thread_id, status);
