import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import { ApiError } from "../api/client";
import { type ActionRequest, actionsOf, allowedFor, type Decision, type Interrupt, mayBeRemembered, type Reach, questionsOf, resolveInterrupt } from "../api/interrupts";
import type { Json, JsonObject } from "../api/types";
import { href } from "../lib/router";
import { argsSchemaOf, initialOf, placeOf } from "../lib/schema";
import { Icon } from "./Icon";
import { JsonView, LongText } from "./JsonView";
import { type FormErrors, SchemaForm } from "./SchemaForm";
import { UserQuestions } from "./UserQuestions";
import { Badge, Button, classes, ErrorNotice, Field, Time } from "./ui";

const kinds = { tool_approval: "Approval", unknown_outcome: "Unknown outcome", question: "Question" };
const verbs: Record<Decision["type"], string> = { approve: "Approve", edit: "Edit", reject: "Reject", respond: "Respond" };
const said: Record<Decision["type"], string> = { approve: "Approved", edit: "Edited", reject: "Rejected", respond: "Answered" };

/** The words of a tool's arguments: short ones as fields, the rest as JSON. */
function Arguments({ action }: { action: ActionRequest }) {
  const entries = Object.entries(action.args);
  if (entries.length === 0) return <p className="muted">Without arguments.</p>;
  if (entries.some(([, value]) => typeof value === "object" && value !== null)) return <JsonView value={action.args} label={`Arguments of ${action.name}`} />;
  return (
    <dl className="arguments">
      {entries.map(([name, value]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{typeof value === "string" ? value.length > 400 ? <LongText text={value} limit={600} label={name} /> : value : JSON.stringify(value)}</dd>
        </div>
      ))}
    </dl>
  );
}

interface ActionProperties {
  action: ActionRequest;
  interrupt: Interrupt;
  allowed: Decision["type"][];
  decision: Decision | undefined;
  onDecide: (decision: Decision | undefined) => void;
  /** The only call of a question: its decision is sent at once. */
  isOnly: boolean;
  /** Whether the decision may be remembered for the rest of the thread. */
  isLasting: boolean;
  isBusy: boolean;
  errors: FormErrors;
}

/** The part of a decision that says what it covers. */
function reachOf(isAlways: boolean, isSame: boolean): Reach {
  if (!isAlways) return {};
  return isSame ? { scope: "thread", for: "same_arguments" } : { scope: "thread" };
}

function Action({ action, interrupt, allowed, decision, onDecide, isOnly, isLasting, isBusy, errors }: ActionProperties) {
  const [mode, setMode] = useState<Decision["type"]>();
  const [args, setArgs] = useState<JsonObject>(action.args);
  const [text, setText] = useState("");
  const [isAlways, setAlways] = useState(false);
  const [isSame, setSame] = useState(false);
  const reach = reachOf(isAlways, isSame);
  const schema = argsSchemaOf(interrupt.response_schema, action.name);
  const choose = (type: Decision["type"]) => {
    if (type === "approve") {
      setMode(undefined);
      onDecide({ type, ...reach });
    } else {
      setMode(mode === type ? undefined : type);
      setText("");
    }
  };
  const confirm = () => {
    if (mode === "edit") onDecide({ type: "edit", edited_action: { name: action.name, args } });
    else if (mode === "reject") onDecide(text.trim() ? { type: "reject", message: text, ...reach } : { type: "reject", ...reach });
    else if (mode === "respond") onDecide({ type: "respond", message: text });
    if (!isOnly) setMode(undefined);
  };
  const changeReach = (always: boolean, same: boolean) => {
    setAlways(always);
    setSame(same);
    // A decision that waits for those about the other calls is sent as it stands in the form.
    if (isOnly || !decision) return;
    if (decision.type === "approve") onDecide({ type: "approve", ...reachOf(always, same) });
    else if (decision.type === "reject") {
      const { message } = decision;
      onDecide(message === undefined ? { type: "reject", ...reachOf(always, same) } : { type: "reject", message, ...reachOf(always, same) });
    }
  };
  const chosen = mode ?? decision?.type;
  // Only approvals and rejections can be remembered.
  const offersReach = isLasting && (allowed.includes("approve") || allowed.includes("reject")) && chosen !== "edit" && chosen !== "respond";
  // The server writes a description of its own when the configuration has none. It says what stands here anyway.
  const isOwn = action.description && !action.description.startsWith("Tool execution requires approval");
  return (
    <div className="action">
      <div className="action-head">
        <Icon name="tool" size={15} />
        <strong className="mono">{action.name}</strong>
        {decision && !isOnly && <Badge tone={decision.type === "reject" ? "danger" : "success"}>{said[decision.type]}{"scope" in decision && " for the thread"}</Badge>}
      </div>
      {isOwn && <p className="action-description">{action.description}</p>}
      {mode !== "edit" && <Arguments action={decision?.type === "edit" ? { ...action, args: decision.edited_action.args } : action} />}
      <div className="row" role="group" aria-label={`Decision about ${action.name}`}>
        {allowed.map((type) => (
          <Button
            key={type}
            small
            kind={type === "approve" ? "primary" : type === "reject" ? "danger" : "secondary"}
            aria-expanded={type === "approve" ? undefined : mode === type}
            className={classes(mode === type && "button-chosen")}
            busy={isBusy && type === "approve" && isOnly && mode === undefined}
            disabled={isBusy}
            onClick={() => choose(type)}
          >
            {verbs[type]}
            {type !== "approve" && "…"}
          </Button>
        ))}
      </div>
      {offersReach && (
        <label className="checkbox muted">
          <input type="checkbox" checked={isAlways} disabled={isBusy} onChange={(event) => changeReach(event.target.checked, isSame)} />
          Decide so about {action.name} for the rest of this thread
        </label>
      )}
      {offersReach && isAlways && Object.keys(action.args).length > 0 && (
        <label className="checkbox muted">
          <input type="checkbox" checked={isSame} disabled={isBusy} onChange={(event) => changeReach(isAlways, event.target.checked)} />
          Only about calls with the same arguments
        </label>
      )}
      {mode && mode !== "approve" && (
        <form
          className="action-form"
          noValidate
          onSubmit={(event) => {
            event.preventDefault();
            confirm();
          }}
        >
          {mode === "edit" ? (
            <SchemaForm
              schema={schema ?? { type: "object" }}
              root={interrupt.response_schema}
              value={args}
              errors={errors}
              onChange={(value) => setArgs(typeof value === "object" && value !== null && !Array.isArray(value) ? value : {})}
            />
          ) : (
            <Field
              label={mode === "reject" ? "Reason" : "Result of the call"}
              hint={mode === "reject" ? "The agent reads it. It may be left out." : "The call is not made; the agent reads this as its result."}
              error={errors["message"]}
            >
              {({ id, describedBy, invalid }) => <textarea id={id} rows={2} autoFocus value={text} aria-describedby={describedBy} aria-invalid={invalid} onChange={(event) => setText(event.target.value)} />}
            </Field>
          )}
          <div className="row">
            <Button type="submit" small kind={mode === "reject" ? "danger" : "primary"} busy={isBusy && isOnly}>
              {mode === "edit" ? (isOnly ? "Make the edited call" : "Keep the edit") : mode === "reject" ? "Reject the call" : isOnly ? "Send the result" : "Keep the result"}
            </Button>
            <Button small kind="ghost" onClick={() => setMode(undefined)}>
              Cancel
            </Button>
          </div>
        </form>
      )}
    </div>
  );
}

function isPlain(value: Json | undefined): value is string {
  return typeof value === "string";
}

function Question({ interrupt, onAnswer, isBusy, errors }: { interrupt: Interrupt; onAnswer: (response: Json) => void; isBusy: boolean; errors: FormErrors }) {
  const [value, setValue] = useState<Json | undefined>(() => initialOf(interrupt.response_schema, interrupt.response_schema) ?? {});
  const text = interrupt.value["question"] ?? interrupt.value["message"] ?? interrupt.value["description"];
  const { question: _q, message: _m, description: _d, ...rest } = interrupt.value as JsonObject;
  return (
    <form
      className="action"
      noValidate
      onSubmit={(event) => {
        event.preventDefault();
        onAnswer(value ?? {});
      }}
    >
      {isPlain(text) ? <p className="question">{text}</p> : null}
      {(!isPlain(text) || Object.keys(rest).length > 0) && <JsonView value={isPlain(text) ? rest : interrupt.value} label="Question" />}
      <SchemaForm schema={interrupt.response_schema} value={value} onChange={setValue} errors={errors} />
      <div className="row">
        <Button type="submit" small kind="primary" busy={isBusy}>
          Send the answer
        </Button>
      </div>
    </form>
  );
}

/** Sorts a refusal to the call and the field that it is about. */
function errorsOf(error: unknown): { action: number; errors: FormErrors } | undefined {
  if (!(error instanceof ApiError) || error.status !== 422) return undefined;
  const place = placeOf(error.message);
  if (!place) return undefined;
  const [word, index, ...rest] = place.path;
  const isListed = word === "decisions" && index !== undefined;
  // Otherwise the first part is `response`.
  const path = isListed ? rest : place.path.slice(1);
  const inside = path[0] === "edited_action" && path[1] === "args" ? path.slice(2) : path;
  return { action: isListed ? Number(index) : 0, errors: { [inside.join(".")]: place.message } };
}

/** A question to a human, with all that is needed to answer it. */
export function InterruptCard({ interrupt, showsThread = false }: { interrupt: Interrupt; showsThread?: boolean }) {
  const queries = useQueryClient();
  const actions = actionsOf(interrupt);
  const questions = questionsOf(interrupt);
  const [decisions, setDecisions] = useState<(Decision | undefined)[]>(() => actions.map(() => undefined));
  const answer = useMutation({
    mutationFn: (given: { decisions: Decision[] } | { response: Json }) => resolveInterrupt(interrupt, given),
    onSettled: (_result, error) => {
      if (!error || (error instanceof ApiError && error.status === 409)) {
        void queries.invalidateQueries({ queryKey: ["interrupts"] });
        void queries.invalidateQueries({ queryKey: ["thread", interrupt.thread_id] });
        void queries.invalidateQueries({ queryKey: ["runs", interrupt.thread_id] });
      }
    },
  });
  const placed = errorsOf(answer.error);
  const isOnly = actions.length === 1;
  const missing = decisions.filter((decision) => decision === undefined).length;
  const decide = (index: number, decision: Decision | undefined) => {
    const next = decisions.map((each, at) => (at === index ? decision : each));
    setDecisions(next);
    if (isOnly && decision) answer.mutate({ decisions: [decision] });
  };
  const isGone = answer.isSuccess;
  return (
    <article className="interrupt" aria-label={`${kinds[interrupt.kind]} for ${interrupt.agent_name}`} data-interrupt={interrupt.id}>
      <header className="interrupt-head">
        <Badge tone="warning">{kinds[interrupt.kind]}</Badge>
        <span className="interrupt-agent">{interrupt.agent_path.join(" › ")}</span>
        <span className="muted interrupt-time">
          <Time value={interrupt.created_at} />
          {interrupt.expires_at && (
            <>
              , expires <Time value={interrupt.expires_at} />
            </>
          )}
        </span>
        {showsThread && (
          <a className="button button-ghost button-small" href={href(`/threads/${interrupt.thread_id}`)}>
            Open the thread
          </a>
        )}
      </header>
      {interrupt.approvers && <p className="muted">Assigned to {[...(interrupt.approvers.users ?? []), ...(interrupt.approvers.roles ?? [])].join(", ")}.</p>}
      {actions.length > 0
        ? actions.map((action, index) => (
            <Action
              key={index}
              action={action}
              interrupt={interrupt}
              allowed={allowedFor(interrupt, index)}
              decision={decisions[index]}
              onDecide={(decision) => decide(index, decision)}
              isOnly={isOnly}
              isLasting={mayBeRemembered(interrupt, index)}
              isBusy={answer.isPending || isGone}
              errors={placed?.action === index ? placed.errors : {}}
            />
          ))
        : questions
          ? <UserQuestions questions={questions} isBusy={answer.isPending || isGone} error={placed ? Object.values(placed.errors)[0] : undefined} onAnswer={(response) => answer.mutate({ response })} />
          : <Question interrupt={interrupt} isBusy={answer.isPending || isGone} errors={placed?.errors ?? {}} onAnswer={(response) => answer.mutate({ response })} />}
      {actions.length > 1 && (
        <div className="row interrupt-foot">
          <Button kind="primary" small disabled={missing > 0} busy={answer.isPending} onClick={() => answer.mutate({ decisions: decisions.filter((decision): decision is Decision => decision !== undefined) })}>
            {missing > 0 ? `${missing} of ${actions.length} undecided` : `Send ${actions.length} decisions`}
          </Button>
          {actions.every((_action, index) => allowedFor(interrupt, index).includes("approve")) && (
            <Button small disabled={answer.isPending || isGone} onClick={() => answer.mutate({ decisions: actions.map(() => ({ type: "approve" as const })) })}>
              Approve all
            </Button>
          )}
        </div>
      )}
      <ErrorNotice error={answer.error} />
      <span className="visually-hidden" role="status">
        {isGone ? "The answer is sent." : ""}
      </span>
    </article>
  );
}
