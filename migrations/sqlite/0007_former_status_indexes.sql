-- The indexes of all statuses in orders that only searches for interrupted and failed threads need.
drop index threads_by_status_created;
drop index threads_by_status_state_updated;
drop index threads_by_status_id;
