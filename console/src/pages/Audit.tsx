import { useInfiniteQuery, useQuery } from "@tanstack/react-query";
import { useState } from "react";

import type { AuditEntry } from "../api/admin";
import { ApiError, messageOf, request, requestPage } from "../api/client";
import type { Caller } from "../api/types";
import { Facts, SearchField, Table } from "../components/admin";
import { JsonView } from "../components/JsonView";
import { Badge, Button, Dialog, EmptyState, ErrorNotice, Loading, PageHeader, Time } from "../components/ui";
import { absoluteTime } from "../lib/format";
import { setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 50;

function Entry({ entry, onClose }: { entry: AuditEntry; onClose: () => void }) {
  return (
    <Dialog title={entry.action} onClose={onClose}>
      <div className="stack">
        <Facts
          facts={[
            ["Time", absoluteTime(new Date(entry.created_at))],
            ["User", entry.user],
            ["Tenant", entry.tenant],
            ["Credential", <code key="credential">{entry.credential}</code>],
            ["Resource", entry.resource && <code key="resource">{entry.resource}</code>],
            ["Outcome", entry.outcome],
            ["Address", entry.address],
          ]}
        />
        <JsonView value={entry.detail} label="Detail" />
      </div>
    </Dialog>
  );
}

export default function Audit() {
  const { query } = useLocation();
  const filter = { user: query.get("user") ?? "", action: query.get("action") ?? "", outcome: query.get("outcome") ?? "" };
  const [shown, setShown] = useState<AuditEntry>();
  const caller = useQuery({ queryKey: ["me"], queryFn: () => request<Caller>("/auth/me"), staleTime: 60_000 });
  const isOff = caller.data?.credential === "none";
  const entries = useInfiniteQuery({
    queryKey: ["audit", filter],
    enabled: caller.data !== undefined && !isOff,
    initialPageParam: "",
    queryFn: async ({ pageParam, signal }) => (await requestPage<AuditEntry>("/audit", { query: { ...filter, before: pageParam, limit: LIMIT }, signal })).items,
    getNextPageParam: (last) => (last.length < LIMIT ? undefined : last.at(-1)?.id),
  });
  const rows = entries.data?.pages.flat() ?? [];
  const isForbidden = entries.error instanceof ApiError && entries.error.status === 403;
  return (
    <>
      <PageHeader title="Audit" lead="Who did what, and what was refused. The newest entries are first." />
      {isOff ? (
        <EmptyState icon="audit" title="This server has no authentication">
          Without the section [auth] nobody is known by name, so there is no audit.
        </EmptyState>
      ) : isForbidden ? (
        <EmptyState icon="key" title="You may not see the audit">{messageOf(entries.error)}</EmptyState>
      ) : (
        <>
          <div className="toolbar">
            <SearchField label="User" value={filter.user} onChange={(user) => setQuery({ user })} />
            <SearchField label="Action, such as threads:delete" value={filter.action} onChange={(action) => setQuery({ action })} />
            <select aria-label="Outcome" value={filter.outcome} onChange={(event) => setQuery({ outcome: event.target.value })}>
              <option value="">All outcomes</option>
              <option>allowed</option>
              <option>denied</option>
            </select>
          </div>
          {entries.isPending ? (
            <Loading lines={6} />
          ) : entries.isError && rows.length === 0 ? (
            <ErrorNotice title="The audit could not be loaded" error={entries.error} onRetry={() => void entries.refetch()} />
          ) : rows.length === 0 ? (
            <EmptyState icon="audit" title="No entries are found">Entries are written when somebody changes something, or is refused.</EmptyState>
          ) : (
            <>
              <Table
                label="Audit"
                head={
                  <>
                    <th scope="col">Time</th>
                    <th scope="col">User</th>
                    <th scope="col">Action</th>
                    <th scope="col">Resource</th>
                    <th scope="col">Outcome</th>
                    <th scope="col"><span className="visually-hidden">Actions</span></th>
                  </>
                }
              >
                {rows.map((entry) => (
                  <tr key={entry.id}>
                    <td><Time value={entry.created_at} /></td>
                    <td>{entry.user}</td>
                    <td className="mono">{entry.action}</td>
                    <td className="mono wrap-anywhere">{entry.resource || "–"}</td>
                    <td>{entry.outcome === "denied" ? <Badge tone="danger">denied</Badge> : <Badge tone="success">allowed</Badge>}</td>
                    <td><Button small onClick={() => setShown(entry)} aria-label={`Details of ${entry.action} by ${entry.user}`}>Details</Button></td>
                  </tr>
                ))}
              </Table>
              {entries.hasNextPage && (
                <div className="pager">
                  <Button small busy={entries.isFetchingNextPage} onClick={() => void entries.fetchNextPage()}>Older entries</Button>
                </div>
              )}
            </>
          )}
        </>
      )}
      {shown && <Entry entry={shown} onClose={() => setShown(undefined)} />}
    </>
  );
}
