-- A change of its status moves a thread in each index of statuses. So those that only searches for interrupted and failed threads
-- need have no others: most runs begin and end with threads that are in none of them. The next migration drops those that they
-- replace, in a transaction of its own: on Postgres threads can be read while indexes are made, but not once one is dropped.
create index threads_stopped_by_created on threads (status, created_at, thread_id) where status <> 'idle' and status <> 'busy';
create index threads_stopped_by_state_updated on threads (status, state_updated_at, thread_id)
    where status <> 'idle' and status <> 'busy';
create index threads_stopped_by_id on threads (status, thread_id) where status <> 'idle' and status <> 'busy';
