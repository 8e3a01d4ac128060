-- The newest form of stored texts that a worker reads: 0 for those of former releases, 1 with the short form. A server writes a
-- form once no worker is left that does not read it.
alter table workers add column reads bigint not null default 0;
