-- A question is stored once, in the row of its interrupt: `position` of checkpoints and `body` of events have its interrupt
-- without it. No table changes. Programs of former releases would take such a position for an unreadable one and end its run, so
-- they must not open the file: they refuse one with a migration that they do not know.
select 1;
