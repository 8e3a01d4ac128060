-- How much clients see of a subagent's run: hidden, status or tools_only. Null: all of it.
alter table runs add column visibility text;
