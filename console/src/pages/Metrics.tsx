import { useQuery } from "@tanstack/react-query";
import type { ReactNode } from "react";

import type { MetricsAnswer, Sample } from "../api/admin";
import { request } from "../api/client";
import { Loaded, Table } from "../components/admin";
import { Sparkline } from "../components/Sparkline";
import { classes, EmptyState, PageHeader, Time } from "../components/ui";
import { bytes, count, duration } from "../lib/format";
import { glance, type Glance, quantile, rates, remember, sum, sumBy } from "../lib/metrics";
import "../styles/admin.css";

const EVERY_MS = 3_000;

function Tile({ title, value, note, values, tone }: { title: string; value: ReactNode; note?: ReactNode; values?: readonly number[]; tone?: "warning" | "danger" }) {
  return (
    <section className={classes("tile", tone && `tile-${tone}`)}>
      <h2>{title}</h2>
      <p className="tile-value">{value}</p>
      {note && <p className="tile-note">{note}</p>}
      {values && <Sparkline values={values} />}
    </section>
  );
}

function seconds(value: number | undefined): string {
  return value === undefined ? "–" : duration(value * 1000);
}

function perSecond(values: readonly number[]): string {
  const last = values.at(-1) ?? 0;
  return last >= 100 ? count(Math.round(last)) : last.toFixed(last === 0 ? 0 : 1);
}

function Tiles({ answer, glances }: { answer: MetricsAnswer; glances: readonly Glance[] }) {
  const { metrics, queue, workers } = answer;
  const now = glances.at(-1);
  const queued = queue.n_pending ?? 0;
  const failed = now?.failed ?? 0;
  const tokens = rates(glances, (each) => each.tokens);
  const runs = rates(glances, (each) => each.ended);
  const oldest = queue.pending_runs_wait_time_max_secs ?? 0;
  const lost = sum(metrics, "adjutant_commits_lost_total");
  return (
    <div className="tile-grid">
      <Tile title="Runs at work" value={count(now?.running ?? 0)} note={workers.max === null ? undefined : `of ${count(workers.max)} of this process`} values={glances.map((each) => each.running)} />
      <Tile title="Queued runs" value={queue.n_pending === null ? "–" : count(queued)} note={queued > 0 ? `the oldest waits for ${seconds(oldest)}` : "nothing waits"} tone={oldest > 10 ? "warning" : undefined} values={glances.map((each) => each.queued)} />
      <Tile title="Runs per second" value={perSecond(runs)} note={`${count(now?.ended ?? 0)} ended since the start`} values={runs} />
      <Tile title="Failed runs" value={count(failed)} note={`${count(sum(metrics, "adjutant_runs_total", { status: "success" }))} succeeded`} tone={failed > 0 ? "danger" : undefined} values={rates(glances, (each) => each.failed)} />
      <Tile title="Tokens per second" value={perSecond(tokens)} note={`${count(sum(metrics, "adjutant_model_tokens_total", { direction: "input" }))} in, ${count(sum(metrics, "adjutant_model_tokens_total", { direction: "output" }))} out`} values={tokens} />
      <Tile title="Time of a run" value={seconds(quantile(metrics, "adjutant_run_duration_seconds", 0.5))} note={`95 % within ${seconds(quantile(metrics, "adjutant_run_duration_seconds", 0.95))}`} />
      <Tile title="Time in the queue" value={seconds(quantile(metrics, "adjutant_run_queue_wait_seconds", 0.5))} note={`95 % within ${seconds(quantile(metrics, "adjutant_run_queue_wait_seconds", 0.95))}`} />
      <Tile title="Time of a commit" value={seconds(quantile(metrics, "adjutant_commit_duration_seconds", 0.5))} note={lost > 0 ? `${count(lost)} steps could not be stored` : `95 % within ${seconds(quantile(metrics, "adjutant_commit_duration_seconds", 0.95))}`} tone={lost > 0 ? "danger" : undefined} />
      <Tile title="Open streams" value={count(now?.streams ?? 0)} values={glances.map((each) => each.streams)} />
      <Tile title="Memory" value={now && now.memory > 0 ? bytes(now.memory) : "–"} note={`${count(sum(metrics, "process_open_fds"))} open files`} values={glances.map((each) => each.memory)} />
    </div>
  );
}

function Agents({ metrics }: { metrics: Sample[] }) {
  const agents = sumBy(metrics, "adjutant_runs_total", "agent").slice(0, 20);
  if (agents.length === 0) {
    return (
      <EmptyState icon="metrics" title="No run has ended since the start">
        The figures of agents and tools come with the first run.
      </EmptyState>
    );
  }
  const of = (name: string, labels: Record<string, string>) => count(sum(metrics, name, labels));
  return (
    <Table
      label="Agents"
      head={
        <>
          <th scope="col">Agent</th>
          <th scope="col" className="numeric">Runs</th>
          <th scope="col" className="numeric">Failed</th>
          <th scope="col" className="numeric">Model calls</th>
          <th scope="col" className="numeric">Tokens in</th>
          <th scope="col" className="numeric">Tokens out</th>
          <th scope="col" className="numeric">Tool calls</th>
        </>
      }
    >
      {agents.map(([agent, runs]) => (
        <tr key={agent}>
          <th scope="row" className="cell-main">{agent}</th>
          <td className="numeric">{count(runs)}</td>
          <td className="numeric">{of("adjutant_runs_total", { agent, status: "error" })}</td>
          <td className="numeric">{of("adjutant_model_calls_total", { agent })}</td>
          <td className="numeric">{of("adjutant_model_tokens_total", { agent, direction: "input" })}</td>
          <td className="numeric">{of("adjutant_model_tokens_total", { agent, direction: "output" })}</td>
          <td className="numeric">{of("adjutant_tool_calls_total", { agent })}</td>
        </tr>
      ))}
    </Table>
  );
}

function Tools({ metrics }: { metrics: Sample[] }) {
  const tools = sumBy(metrics, "adjutant_tool_calls_total", "tool").slice(0, 20);
  if (tools.length === 0) return null;
  return (
    <Table label="Tools" head={<><th scope="col">Tool</th><th scope="col" className="numeric">Calls</th><th scope="col" className="numeric">Failed</th></>}>
      {tools.map(([tool, calls]) => (
        <tr key={tool}>
          <th scope="row" className="cell-main">{tool}</th>
          <td className="numeric">{count(calls)}</td>
          <td className="numeric">{count(calls - sum(metrics, "adjutant_tool_calls_total", { tool, outcome: "success" }))}</td>
        </tr>
      ))}
    </Table>
  );
}

export default function Metrics() {
  const answer = useQuery({
    queryKey: ["metrics"],
    queryFn: async ({ signal }) => {
      const read = await request<MetricsAnswer>("/metrics", { query: { format: "json" }, signal });
      return { read, glances: remember(glance(read, Date.now())) };
    },
    refetchInterval: EVERY_MS,
  });
  return (
    <>
      <PageHeader title="Metrics" lead="This process at a glance, and the queue of all. The lines begin when this page is opened." />
      <Loaded query={answer}>
        {({ read, glances }) => (
          <>
            <Tiles answer={read} glances={glances} />
            <div className="stack">
              <Agents metrics={read.metrics} />
              <Tools metrics={read.metrics} />
              <p className="muted">
                Version {read.metrics.find((sample) => sample.name === "adjutant_build_info")?.labels["version"] ?? "–"}, started{" "}
                <Time value={new Date(sum(read.metrics, "process_start_time_seconds") * 1000).toISOString()} />. All metrics, for Prometheus, are at <code>/metrics</code>.
              </p>
            </div>
          </>
        )}
      </Loaded>
    </>
  );
}
