-- Entries of the audit are never changed. No statement of the server does that, and the database refuses those of others. Old entries
-- are still deleted.
create trigger audit_is_append_only before update on audit begin
    select raise(abort, 'entries of the audit are never changed');
end;
