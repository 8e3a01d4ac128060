-- How often the server has died at work on the run since the run last got on: since its last step, or the last answer to one of
-- its calls. A server that stopped in good order has not died.
alter table runs add column crashes integer not null default 0;
