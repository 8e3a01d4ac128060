// The small parts that all pages are made of. They have no knowledge of the server.
import { type ComponentProps, type ReactNode, useEffect, useId, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";

import { ApiError, messageOf } from "../api/client";
import { absoluteTime, relativeTime, shortId } from "../lib/format";
import { Icon, type IconName } from "./Icon";

export function classes(...names: (string | false | null | undefined)[]): string {
  return names.filter(Boolean).join(" ");
}

type ButtonKind = "primary" | "secondary" | "ghost" | "danger";

export function Button({
  kind = "secondary",
  icon,
  small,
  busy,
  children,
  className,
  ...rest
}: ComponentProps<"button"> & { kind?: ButtonKind; icon?: IconName; small?: boolean; busy?: boolean }) {
  return (
    <button
      type="button"
      {...rest}
      disabled={rest.disabled || busy}
      aria-busy={busy || undefined}
      className={classes("button", `button-${kind}`, small && "button-small", className)}
    >
      {busy ? <Spinner /> : icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** A button that shows only an icon. The label is what it is called. */
export function IconButton({ icon, label, className, ...rest }: ComponentProps<"button"> & { icon: IconName; label: string }) {
  return (
    <button type="button" title={label} aria-label={label} {...rest} className={classes("button button-ghost icon-button", className)}>
      <Icon name={icon} />
    </button>
  );
}

export function Spinner() {
  return <span className="spinner" aria-hidden="true" />;
}

export type Tone = "neutral" | "accent" | "success" | "warning" | "danger" | "info";

export function Badge({ tone = "neutral", children, title }: { tone?: Tone; children: ReactNode; title?: string }) {
  return (
    <span className={`badge badge-${tone}`} title={title}>
      {children}
    </span>
  );
}

const tones: Record<string, Tone> = {
  idle: "neutral",
  busy: "accent",
  running: "accent",
  pending: "info",
  interrupted: "warning",
  waiting: "warning",
  error: "danger",
  timeout: "danger",
  failed: "danger",
  dead: "danger",
  success: "success",
  delivered: "success",
  resolved: "success",
  completed: "success",
  complete: "success",
  dropped: "neutral",
  expired: "neutral",
  cancelled: "neutral",
};

/** The status of a thread, a run, an interrupt or a delivery, with a dot that also differs by its shape. */
export function StatusBadge({ status, label }: { status: string; label?: string }) {
  const tone = tones[status] ?? "neutral";
  return (
    <span className={`status status-${tone}`} data-status={status}>
      <span className="status-dot" aria-hidden="true" />
      {label ?? status.replaceAll("_", " ")}
    </span>
  );
}

/** The page's heading with its actions. */
export function PageHeader({ title, children, lead }: { title: ReactNode; lead?: ReactNode; children?: ReactNode }) {
  return (
    <header className="page-header">
      <div className="page-heading">
        <h1>{title}</h1>
        {lead && <p className="page-lead">{lead}</p>}
      </div>
      {children && <div className="page-actions">{children}</div>}
    </header>
  );
}

export function Card({ title, actions, children, className }: { title?: ReactNode; actions?: ReactNode; children: ReactNode; className?: string }) {
  return (
    <section className={classes("card", className)}>
      {(title || actions) && (
        <header className="card-header">
          {title && <h2>{title}</h2>}
          {actions && <div className="card-actions">{actions}</div>}
        </header>
      )}
      {children}
    </section>
  );
}

/** What to see where there is nothing yet, and what to do next. */
export function EmptyState({ icon = "inbox", title, children, action }: { icon?: IconName; title: string; children?: ReactNode; action?: ReactNode }) {
  return (
    <div className="empty">
      <Icon name={icon} size={28} />
      <h2>{title}</h2>
      {children && <p>{children}</p>}
      {action}
    </div>
  );
}

/** A failure in the server's words. */
export function ErrorNotice({ error, onRetry, title }: { error: unknown; onRetry?: () => void; title?: string }) {
  if (!error) return null;
  const isApi = error instanceof ApiError;
  return (
    <div className="notice notice-danger" role="alert">
      <Icon name="warning" />
      <div className="notice-text">
        {title && <strong>{title}</strong>}
        <span>{messageOf(error)}</span>
        {isApi && (
          <span className="notice-code">
            {error.status}
            {error.code ? ` · ${error.code}` : ""}
          </span>
        )}
      </div>
      {onRetry && (
        <Button small onClick={onRetry}>
          Try again
        </Button>
      )}
    </div>
  );
}

/** Grey bars in the place of what is being loaded, so that the layout does not jump. */
export function Loading({ lines = 3, label = "Loading" }: { lines?: number; label?: string }) {
  return (
    <div className="loading" role="status">
      <span className="visually-hidden">{label}</span>
      {Array.from({ length: lines }, (_, index) => (
        <span key={index} className="skeleton" aria-hidden="true" />
      ))}
    </div>
  );
}

const clock = { now: Date.now(), listeners: new Set<() => void>(), timer: 0 };

function subscribeClock(listener: () => void): () => void {
  clock.listeners.add(listener);
  if (!clock.timer) {
    clock.timer = window.setInterval(() => {
      clock.now = Date.now();
      clock.listeners.forEach((each) => each());
    }, 10_000);
  }
  return () => {
    clock.listeners.delete(listener);
    if (clock.listeners.size === 0) {
      window.clearInterval(clock.timer);
      clock.timer = 0;
    }
  };
}

/** `3m ago`, with the whole time as its title. One timer serves all of them. */
export function Time({ value }: { value: string | null | undefined }) {
  useSyncExternalStore(subscribeClock, () => clock.now);
  if (!value) return <span className="muted">–</span>;
  const date = new Date(value);
  if (Number.isNaN(date.getTime())) return <span>{value}</span>;
  return (
    <time dateTime={value} title={absoluteTime(date)}>
      {relativeTime(date)}
    </time>
  );
}

/** An id, cut, that is copied by a click. */
export function CopyId({ id, label = "id", full }: { id: string; label?: string; full?: boolean }) {
  const [copied, setCopied] = useState(false);
  useEffect(() => {
    if (!copied) return;
    const timer = window.setTimeout(() => setCopied(false), 1_500);
    return () => window.clearTimeout(timer);
  }, [copied]);
  return (
    <button
      type="button"
      className="copy-id"
      title={`${id}, copy`}
      aria-label={copied ? `The ${label} is copied` : `Copy the ${label} ${id}`}
      onClick={() => {
        void navigator.clipboard?.writeText(id).then(() => setCopied(true));
      }}
    >
      <code>{full ? id : shortId(id)}</code>
      <Icon name={copied ? "check" : "copy"} size={13} />
    </button>
  );
}

/** A labelled control. `error` is what the server or the form says about its value. */
export function Field({ label, hint, error, children }: { label: ReactNode; hint?: ReactNode; error?: string; children: (ids: { id: string; describedBy?: string; invalid?: boolean }) => ReactNode }) {
  const id = useId();
  const described = [hint && `${id}-hint`, error && `${id}-error`].filter(Boolean).join(" ") || undefined;
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {children({ id, describedBy: described, invalid: Boolean(error) })}
      {hint && (
        <p className="field-hint" id={`${id}-hint`}>
          {hint}
        </p>
      )}
      {error && (
        <p className="field-error" id={`${id}-error`}>
          {error}
        </p>
      )}
    </div>
  );
}

/** Tabs by the pattern of WAI-ARIA: arrow keys move, only the chosen tab is in the order of the tab key. */
export function Tabs<T extends string>({ label, tabs, value, onChange, prefix = "" }: { /** Of the ids of the tabs, where one page has two lists of the same ones. */ prefix?: string; label: string; tabs: { id: T; label: ReactNode; badge?: ReactNode }[]; value: T; onChange: (id: T) => void }) {
  const list = useRef<HTMLDivElement>(null);
  const move = (step: number) => {
    const index = tabs.findIndex((tab) => tab.id === value);
    const next = tabs[(index + step + tabs.length) % tabs.length];
    if (!next) return;
    onChange(next.id);
    list.current?.querySelector<HTMLElement>(`[data-tab="${next.id}"]`)?.focus();
  };
  return (
    <div
      ref={list}
      className="tabs"
      role="tablist"
      aria-label={label}
      onKeyDown={(event) => {
        if (event.key === "ArrowRight") move(1);
        else if (event.key === "ArrowLeft") move(-1);
        else return;
        event.preventDefault();
      }}
    >
      {tabs.map((tab) => (
        <button
          key={tab.id}
          type="button"
          role="tab"
          id={`${prefix}tab-${tab.id}`}
          data-tab={tab.id}
          aria-selected={tab.id === value}
          aria-controls={tab.id === value ? `panel-${tab.id}` : undefined}
          tabIndex={tab.id === value ? 0 : -1}
          onClick={() => onChange(tab.id)}
        >
          {tab.label}
          {tab.badge !== undefined && <span className="tab-badge">{tab.badge}</span>}
        </button>
      ))}
    </div>
  );
}

export function TabPanel({ id, children, className }: { id: string; children: ReactNode; className?: string }) {
  return (
    <div role="tabpanel" id={`panel-${id}`} aria-labelledby={`tab-${id}`} className={classes("tab-panel", className)}>
      {children}
    </div>
  );
}

/** A modal dialog of the browser: it keeps the focus inside, and Escape closes it. */
export function Dialog({ title, onClose, children, wide }: { title: string; onClose: () => void; children: ReactNode; wide?: boolean }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  // Closed while it is still in the page, the dialog gives the focus back to where it was.
  useLayoutEffect(() => {
    const element = dialog.current;
    if (element && !element.open) element.showModal();
    return () => element?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      className={classes("dialog", wide && "dialog-wide")}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        onClose();
      }}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div className="dialog-body">
        <header className="dialog-header">
          <h2 id={id}>{title}</h2>
          <IconButton icon="close" label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}

/** The pages of a list. */
export function Pager({ offset, limit, shown, total, onChange }: { offset: number; limit: number; shown: number; total?: number; onChange: (offset: number) => void }) {
  if (offset === 0 && shown < limit) return null;
  const first = shown === 0 ? offset : offset + 1;
  return (
    <nav className="pager" aria-label="Pages">
      <span className="muted">
        {first}–{offset + shown}
        {total !== undefined ? ` of ${total >= 100_000 ? "100,000 or more" : total.toLocaleString("en")}` : ""}
      </span>
      <Button small disabled={offset === 0} onClick={() => onChange(Math.max(0, offset - limit))}>
        Previous
      </Button>
      <Button small disabled={shown < limit || (total !== undefined && offset + shown >= total)} onClick={() => onChange(offset + limit)}>
        Next
      </Button>
    </nav>
  );
}
