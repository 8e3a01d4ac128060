import { useMutation, useQueryClient } from "@tanstack/react-query";

import { type RememberedDecision, revokeDecision, useRememberedDecisions } from "../api/interrupts";
import type { JsonObject } from "../api/types";
import { LongText } from "./JsonView";
import { Badge, Button, ErrorNotice, Loading, Time } from "./ui";

/** The tests of a table, one on each line: `to equals "bob"`. */
function testsOf(table: JsonObject): string {
  const lines = Object.entries(table).flatMap(([argument, tests]) => Object.entries((tests ?? {}) as JsonObject).map(([test, value]) => `${argument} ${test} ${JSON.stringify(value)}`));
  return lines.join("\n");
}

/** The condition on the arguments in words; nothing if the decision is about all calls of the tool. */
function conditionOf({ for: condition }: RememberedDecision): string {
  if (condition === null) return "";
  return Array.isArray(condition) ? condition.map(testsOf).join("\nor\n") : testsOf(condition);
}

function Decided({ decision, number }: { decision: RememberedDecision; number: number }) {
  const queries = useQueryClient();
  const revoke = useMutation({
    mutationFn: () => revokeDecision(decision),
    onSettled: () => queries.invalidateQueries({ queryKey: ["interrupts", decision.thread_id] }),
  });
  const condition = conditionOf(decision);
  return (
    <li className="past-question remembered" data-decision={decision.id}>
      <span className="row">
        <Badge tone={decision.decision === "reject" ? "danger" : "success"}>{decision.decision === "reject" ? "Always rejected" : "Always approved"}</Badge>
        <span className="mono">{decision.tool}</span>
        <Button small busy={revoke.isPending} disabled={revoke.isSuccess} aria-label={`Revoke the decision about ${decision.tool}`} onClick={() => revoke.mutate()}>
          Revoke
        </Button>
      </span>
      {condition ? <LongText text={condition} limit={600} code label={`Arguments of the calls of decision ${number}`} /> : <span>All calls</span>}
      {decision.message && <span>Reason: {decision.message}</span>}
      <span className="muted">
        {decision.agent_path.join(" › ")}
        {decision.decided_by && `, by ${decision.decided_by}`}, <Time value={decision.created_at} />
      </span>
      <ErrorNotice error={revoke.error} />
    </li>
  );
}

/** The decisions that hold for the rest of a thread, each with a button that revokes it. */
export function RememberedDecisions({ threadId }: { threadId: string }) {
  const decisions = useRememberedDecisions(threadId);
  return (
    <section aria-label="Decisions for the rest of the thread">
      <h2 className="panel-heading">Decisions for the rest of the thread</h2>
      {decisions.isPending && <Loading lines={1} />}
      <ErrorNotice error={decisions.error} onRetry={() => void decisions.refetch()} />
      <p className={decisions.data?.length === 0 ? "muted" : "visually-hidden"} role="status">
        {decisions.data?.length === 0 ? "There are none: each call that needs an approval is asked about." : ""}
      </p>
      {decisions.data && decisions.data.length > 0 && (
        <ul className="stack">
          {decisions.data.map((decision, index) => (
            <Decided key={decision.id} decision={decision} number={index + 1} />
          ))}
        </ul>
      )}
    </section>
  );
}
