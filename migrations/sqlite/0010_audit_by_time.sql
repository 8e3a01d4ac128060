-- The oldest entries of the audit are found by their ids, which sort by time.
drop index audit_by_time;
