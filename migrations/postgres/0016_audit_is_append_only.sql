-- Entries of the audit are never changed. No statement of the server does that, and the database refuses those of others. Old entries
-- are still deleted.
create function refuse_change_of_audit() returns trigger language plpgsql as $$
begin
    raise exception 'entries of the audit are never changed';
end;
$$;
create trigger audit_is_append_only before update on audit for each row execute function refuse_change_of_audit();
