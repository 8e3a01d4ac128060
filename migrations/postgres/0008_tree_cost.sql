-- The cost of trees, for `limits.tree.cost`: the sum of what the answers of models cost, in millionths.

alter table trees add column cost_micros bigint not null default 0;
alter table tree_shares add column cost_micros bigint not null default 0;
