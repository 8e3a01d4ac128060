-- Each change of a caller is an entry of the audit, and the index of users cost about as much as the entry itself. Searches look
-- through the entries of the tenant, newest first.
drop index audit_by_user;
