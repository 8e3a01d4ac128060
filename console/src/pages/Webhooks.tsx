import { useQuery } from "@tanstack/react-query";

import type { Delivery } from "../api/admin";
import { requestPage } from "../api/client";
import { Loaded, Table } from "../components/admin";
import { EmptyState, PageHeader, Pager, StatusBadge, Time } from "../components/ui";
import { useOffset } from "../lib/paging";
import { href, setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 25;
const statuses = ["pending", "delivered", "dead"];

export default function Webhooks() {
  const { query } = useLocation();
  const status = query.get("status") ?? "";
  const [offset, setOffset] = useOffset();
  const deliveries = useQuery({
    queryKey: ["deliveries", status, offset],
    // One more than is shown, so that it is known whether there are more.
    queryFn: ({ signal }) => requestPage<Delivery>("/webhooks/deliveries", { query: { status, limit: LIMIT + 1, offset }, signal }),
    refetchInterval: 5_000,
    placeholderData: (before) => before,
  });
  return (
    <>
      <PageHeader title="Webhook deliveries" lead="Reports of the end of runs, which are repeated until they arrive or are given up." />
      <div className="toolbar">
        <select aria-label="Status" value={status} onChange={(event) => setQuery({ status: event.target.value, offset: null })}>
          <option value="">All deliveries</option>
          {statuses.map((each) => (
            <option key={each}>{each}</option>
          ))}
        </select>
      </div>
      <Loaded query={deliveries}>
        {({ items }) =>
          items.length === 0 ? (
            <EmptyState icon="webhooks" title={status ? `No delivery is ${status}` : "There are no deliveries"}>
              A run that is started with a webhook reports its end to that address.
            </EmptyState>
          ) : (
            <>
              <Table
                label="Deliveries"
                head={
                  <>
                    <th scope="col">Address</th>
                    <th scope="col">Status</th>
                    <th scope="col" className="numeric">Attempts</th>
                    <th scope="col">Last answer</th>
                    <th scope="col">Run ended</th>
                    <th scope="col">Next attempt</th>
                  </>
                }
              >
                {items.slice(0, LIMIT).map((delivery) => (
                  <tr key={delivery.delivery_id} className="row-link">
                    <td><a className="cell-main wrap-anywhere" href={href(`/webhooks/${delivery.delivery_id}`)}>{delivery.url}</a></td>
                    <td><StatusBadge status={delivery.status} /></td>
                    <td className="numeric">{delivery.attempts}</td>
                    <td>{delivery.response_status ?? (delivery.error ? <span className="cell-sub">{delivery.error}</span> : "–")}</td>
                    <td><Time value={delivery.created_at} /></td>
                    <td><Time value={delivery.next_attempt_at} /></td>
                  </tr>
                ))}
              </Table>
              <Pager offset={offset} limit={LIMIT} shown={Math.min(items.length, LIMIT)} total={items.length > LIMIT ? undefined : offset + items.length} onChange={setOffset} />
            </>
          )
        }
      </Loaded>
    </>
  );
}
