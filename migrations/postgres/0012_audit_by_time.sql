-- Every change of a caller writes a row of the audit. An index by user made each of these transactions write a second page for it;
-- those of one user, which people look for now and then, are found by going through the rows of the tenant by time.
drop index audit_by_user;
