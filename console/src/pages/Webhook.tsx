import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { Delivery } from "../api/admin";
import { request } from "../api/client";
import { Facts, Loaded } from "../components/admin";
import { JsonView } from "../components/JsonView";
import { Button, Card, CopyId, ErrorNotice, PageHeader, StatusBadge, Time } from "../components/ui";
import { href } from "../lib/router";
import "../styles/admin.css";

export default function Webhook({ deliveryId }: { deliveryId: string }) {
  const queries = useQueryClient();
  const [isBusy, setIsBusy] = useState(false);
  const [error, setError] = useState<unknown>();
  const path = `/webhooks/deliveries/${encodeURIComponent(deliveryId)}`;
  const delivery = useQuery({
    queryKey: ["delivery", deliveryId],
    queryFn: ({ signal }) => request<Delivery>(path, { signal }),
    refetchInterval: ({ state }) => (state.data?.status === "pending" ? 2_000 : false),
  });
  const redeliver = async () => {
    setIsBusy(true);
    setError(undefined);
    try {
      queries.setQueryData(["delivery", deliveryId], { ...delivery.data, ...(await request<Delivery>(`${path}/redeliver`, { method: "POST", body: {} })) });
      await queries.invalidateQueries({ queryKey: ["deliveries"] });
      await delivery.refetch();
    } catch (failure) {
      setError(failure);
    } finally {
      setIsBusy(false);
    }
  };
  return (
    <>
      <a className="link-back" href={href("/webhooks")}>All deliveries</a>
      <PageHeader title="Webhook delivery" lead={delivery.data?.url}>
        {delivery.data && (
          <Button kind="primary" icon="replay" busy={isBusy} onClick={() => void redeliver()}>Deliver again</Button>
        )}
      </PageHeader>
      {error !== undefined && <ErrorNotice title="It was not delivered again" error={error} />}
      <Loaded query={delivery}>
        {(data) => (
          <>
            <Card title="Delivery">
              <div className="card-body">
                <Facts
                  facts={[
                    ["Id", <CopyId key="id" id={data.delivery_id} label="delivery id" full />],
                    ["Status", <StatusBadge key="status" status={data.status} />],
                    ["Address", data.url],
                    ["Thread", <a key="thread" href={href(`/threads/${data.thread_id}`)}>{data.thread_id}</a>],
                    ["Run", <CopyId key="run" id={data.run_id} label="run id" full />],
                    ["Attempts", String(data.attempts)],
                    ["Last status", data.response_status],
                    ["Last error", data.error],
                    ["Run ended", <Time key="created" value={data.created_at} />],
                    ["Next attempt", data.next_attempt_at && <Time key="next" value={data.next_attempt_at} />],
                    ["Finished", data.finished_at && <Time key="finished" value={data.finished_at} />],
                  ]}
                />
              </div>
            </Card>
            {data.payload && (
              <Card title="Payload">
                <div className="card-body">
                  <JsonView value={data.payload} label="Payload" />
                </div>
              </Card>
            )}
          </>
        )}
      </Loaded>
    </>
  );
}
