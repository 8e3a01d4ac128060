-- The body of the event that has the number behind its checkpoint, and no row of its own. Only servers on SQLite store one.
alter table checkpoints add column next_event text;
