-- Row-level security: the second fence between tenants.
--
-- Every transaction sets `adjutant.tenant` to the tenant for which it works, or to `*` when the server itself works for all
-- tenants. Without the setting there are no rows. `force`: the policies hold for the owner of the tables, too, since that is
-- who the server usually connects as. They do not hold for superusers and for roles with BYPASSRLS.
--
-- The setting is read in a subquery, so that it is read once per statement and not for each row. `offset 0` keeps the planner
-- from reading all threads at once where it expects many rows: the rows of a statement belong to few threads.
--
-- Tables without content of tenants have no policy: `definitions` and what belongs to it, `jobs`, `daily_usage`, `data_keys`,
-- `data_key_changes`, `workers` and `probes`.

-- A row means also: the request came from this tenant, or from a caller without one (`*`). Null: it came before this migration;
-- such rows are gone after a day.
alter table idempotency_keys add column tenant text;

do $$
declare
    tenant constant text := '(select current_setting(''adjutant.tenant'', true))';
    of_thread constant text := 'exists (select from threads where threads.thread_id = %s offset 0)';
    guarded record;
begin
    for guarded in
        select guards.name, guards.condition from (values
            -- Tables with a tenant.
            ('threads', 'tenant = ' || tenant),
            ('thread_bytes', 'tenant = ' || tenant),
            ('assistants', 'tenant = ' || tenant),
            ('crons', 'tenant = ' || tenant),
            ('items', 'tenant = ' || tenant),
            ('item_vectors', 'tenant = ' || tenant),
            ('deliveries', 'tenant = ' || tenant),
            ('api_keys', 'tenant = ' || tenant),
            ('auth_tickets', 'tenant = ' || tenant),
            ('audit', 'tenant = ' || tenant),
            ('idempotency_keys', 'tenant = ' || tenant),
            -- Tables whose rows belong to whom their thread belongs.
            ('thread_terms', format(of_thread, 'thread_terms.thread_id')),
            ('unfinished_copies', format(of_thread, 'unfinished_copies.thread_id')),
            ('runs', format(of_thread, 'runs.thread_id')),
            ('trees', format(of_thread, 'trees.thread_id')),
            ('checkpoints', format(of_thread, 'checkpoints.thread_id')),
            ('events', format(of_thread, 'events.thread_id')),
            ('interrupts', format(of_thread, 'interrupts.thread_id')),
            ('interrupt_approvers', format(of_thread, 'interrupt_approvers.thread_id')),
            ('background_tasks', format(of_thread, 'background_tasks.parent_thread')),
            -- Tables whose rows belong to whom another row belongs.
            ('tree_shares', 'exists (select from trees where trees.tree_id = tree_shares.tree_id offset 0)'),
            ('remote_runs', 'exists (select from background_tasks where background_tasks.task_id = remote_runs.task_id offset 0)'
                ' or exists (select from runs where runs.run_id = remote_runs.remote_run_id offset 0)'),
            ('assistant_versions', 'exists (select from assistants where assistants.assistant_id = assistant_versions.assistant_id'
                ' and assistants.tenant = ' || tenant || ' offset 0)')
        ) as guards (name, condition)
    loop
        execute format('alter table %I enable row level security', guarded.name);
        execute format('alter table %I force row level security', guarded.name);
        execute format('create policy tenant on %I using (%s = ''*'' or %s)', guarded.name, tenant, guarded.condition);
    end loop;
end
$$;

-- The default assistants belong to the server, and all tenants can read them.
create policy of_server on assistants for select
    using (tenant = '*' and (select current_setting('adjutant.tenant', true)) <> '');
create policy of_server on assistant_versions for select
    using (exists (select from assistants where assistants.assistant_id = assistant_versions.assistant_id
        and assistants.tenant = '*' offset 0));

-- The keys from before this migration name their clients.
create policy older on idempotency_keys
    using (tenant is null and (select current_setting('adjutant.tenant', true)) <> '') with check (false);
