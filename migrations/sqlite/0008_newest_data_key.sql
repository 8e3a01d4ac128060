-- Each transaction reads the newest key. After a change of all keys they have the same number.
drop index data_keys_by_change;
create index data_keys_by_change on data_keys (change, key_id);
