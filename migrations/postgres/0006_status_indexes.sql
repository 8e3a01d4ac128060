-- A change of its status moves a thread in each index of statuses. So those that only searches for interrupted and failed threads
-- need have no others: most runs begin and end with threads that are in none of them.
drop index threads_by_status_created;
drop index threads_by_status_state_updated;
drop index threads_by_status_id;
create index threads_stopped_by_created on threads (status, created_at, thread_id) where status <> 'idle' and status <> 'busy';
create index threads_stopped_by_state_updated on threads (status, state_updated_at, thread_id)
    where status <> 'idle' and status <> 'busy';
create index threads_stopped_by_id on threads (status, thread_id) where status <> 'idle' and status <> 'busy';
