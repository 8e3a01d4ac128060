-- Postgres checked for each new row of these tables that its thread exists, which took a fifteenth of what it does for a step. A
-- transaction that stores such rows has locked the thread before, or stores it, too, so it stays. The rows of a thread that is
-- deleted go with it as before: a trigger deletes them, also for servers of the former release.
--
-- The tables are locked in the order in which transactions use them.
lock table threads in access exclusive mode;
lock table checkpoints in access exclusive mode;
lock table thread_terms in access exclusive mode;
create function delete_rows_of_thread() returns trigger language plpgsql as $$
begin
    delete from checkpoints where thread_id = old.thread_id;
    delete from thread_terms where thread_id = old.thread_id;
    return old;
end;
$$;
-- Before the thread goes: the policies of its rows look at it.
create trigger delete_rows before delete on threads for each row execute function delete_rows_of_thread();
alter table checkpoints drop constraint checkpoints_thread_id_fkey;
alter table thread_terms drop constraint thread_terms_thread_id_fkey;
