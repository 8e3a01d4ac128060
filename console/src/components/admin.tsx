// Parts of the pages that manage the server.
import type { UseQueryResult } from "@tanstack/react-query";
import { type ReactNode, useState } from "react";

import { ApiError, messageOf } from "../api/client";
import { problemOf } from "../lib/json";
import { Icon } from "./Icon";
import { Button, Dialog, EmptyState, ErrorNotice, Field, Loading } from "./ui";

/** What a query has brought, or that it is still waited for, or how it failed. */
export function Loaded<T>({ query, lines = 5, children }: { query: UseQueryResult<T>; lines?: number; children: (data: T) => ReactNode }) {
  if (query.data !== undefined) {
    return (
      <>
        {query.isError && <ErrorNotice title="This is not up to date" error={query.error} onRetry={() => void query.refetch()} />}
        {children(query.data)}
      </>
    );
  }
  if (query.isPending) return <Loading lines={lines} />;
  if (query.error instanceof ApiError && query.error.status === 403) {
    return (
      <EmptyState icon="key" title="You may not see this">
        {messageOf(query.error)}
      </EmptyState>
    );
  }
  return <ErrorNotice title="This could not be loaded" error={query.error} onRetry={() => void query.refetch()} />;
}

/** A table in a card, which scrolls by itself where it is too wide. */
export function Table({ label, head, children }: { label: string; head: ReactNode; children: ReactNode }) {
  return (
    <div className="card table-scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>{head}</tr>
        </thead>
        <tbody>{children}</tbody>
      </table>
    </div>
  );
}

/** A question before something that cannot be undone. */
export function Confirm({ title, children, action, onConfirm, onClose }: { title: string; children: ReactNode; action: string; onConfirm: () => Promise<unknown>; onClose: () => void }) {
  const [error, setError] = useState<unknown>();
  const [isBusy, setIsBusy] = useState(false);
  const confirm = async () => {
    setIsBusy(true);
    setError(undefined);
    try {
      await onConfirm();
      onClose();
    } catch (failure) {
      setError(failure);
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose}>
      <div className="stack">
        <div>{children}</div>
        {error !== undefined && <ErrorNotice error={error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="danger" busy={isBusy} onClick={() => void confirm()}>
            {action}
          </Button>
        </div>
      </div>
    </Dialog>
  );
}

/** A dialog with a form, which stays open when the server refuses it. */
export function FormDialog({ title, action, isValid = true, wide, onSubmit, onClose, children }: { title: string; action: string; isValid?: boolean; wide?: boolean; onSubmit: () => Promise<unknown>; onClose: () => void; children: ReactNode }) {
  const [error, setError] = useState<unknown>();
  const [isBusy, setIsBusy] = useState(false);
  const submit = async () => {
    setIsBusy(true);
    setError(undefined);
    try {
      await onSubmit();
      onClose();
    } catch (failure) {
      setError(failure);
      setIsBusy(false);
    }
  };
  return (
    <Dialog title={title} onClose={onClose} wide={wide}>
      <form
        className="stack"
        noValidate
        onSubmit={(event) => {
          event.preventDefault();
          if (isValid) void submit();
        }}
      >
        {children}
        {error !== undefined && <ErrorNotice title="The server refuses this" error={error} />}
        <div className="dialog-actions">
          <Button onClick={onClose}>Cancel</Button>
          <Button kind="primary" type="submit" busy={isBusy} disabled={!isValid}>
            {action}
          </Button>
        </div>
      </form>
    </Dialog>
  );
}

/** A text area for a JSON object, which says what is wrong with it. */
export function JsonField({ label, hint, value, required, rows = 6, onChange }: { label: string; hint?: ReactNode; value: string; required?: boolean; rows?: number; onChange: (text: string) => void }) {
  return (
    <Field label={label} hint={hint} error={problemOf(value, required)}>
      {({ id, describedBy, invalid }) => (
        <textarea id={id} className="code" rows={rows} spellCheck={false} value={value} aria-describedby={describedBy} aria-invalid={invalid} onChange={(event) => onChange(event.target.value)} />
      )}
    </Field>
  );
}

export function TextField({ label, hint, error, value, onChange, placeholder, type = "text", autoFocus, required }: { label: string; hint?: ReactNode; error?: string; value: string; onChange: (text: string) => void; placeholder?: string; type?: string; autoFocus?: boolean; required?: boolean }) {
  return (
    <Field label={label} hint={hint} error={error}>
      {({ id, describedBy, invalid }) => (
        <input id={id} type={type} value={value} placeholder={placeholder} autoFocus={autoFocus} required={required} spellCheck={false} autoComplete="off" aria-describedby={describedBy} aria-invalid={invalid} onChange={(event) => onChange(event.target.value)} />
      )}
    </Field>
  );
}

/** The search field of a list. It asks when the typing pauses. */
export function SearchField({ label, value, onChange }: { label: string; value: string; onChange: (text: string) => void }) {
  const [text, setText] = useState(value);
  const [timer, setTimer] = useState(0);
  return (
    <div className="search">
      <Icon name="search" />
      <input
        type="search"
        data-search
        aria-label={label}
        placeholder={label}
        value={text}
        onChange={(event) => {
          const next = event.target.value;
          setText(next);
          window.clearTimeout(timer);
          setTimer(window.setTimeout(() => onChange(next), 250));
        }}
      />
    </div>
  );
}

/** Names and values. */
export function Facts({ facts }: { facts: [string, ReactNode][] }) {
  return (
    <dl className="facts">
      {facts
        .filter(([, value]) => value !== null && value !== undefined && value !== "")
        .map(([name, value]) => (
          <div key={name} className="fact">
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}
