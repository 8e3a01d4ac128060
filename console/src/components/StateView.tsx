import { useState } from "react";

import type { Json, JsonObject } from "../api/types";
import { bytes, plural } from "../lib/format";
import { Icon } from "./Icon";
import { JsonView, LongText } from "./JsonView";
import { Dialog, EmptyState } from "./ui";

const words: Record<string, string> = { completed: "done", in_progress: "in progress", pending: "open" };

export function TodoList({ todos }: { todos: Json[] }) {
  return (
    <ul className="todos">
      {todos.map((todo, index) => {
        const { content, status } = (typeof todo === "object" && todo !== null && !Array.isArray(todo) ? todo : { content: String(todo), status: "pending" }) as { content?: Json; status?: Json };
        const word = typeof status === "string" ? status : "pending";
        return (
          <li key={index} className={`todo todo-${word}`}>
            <span className="todo-mark" aria-hidden="true">
              {word === "completed" && <Icon name="check" size={12} />}
            </span>
            <span>{typeof content === "string" ? content : JSON.stringify(content)}</span>
            <span className="visually-hidden">, {words[word] ?? word}</span>
          </li>
        );
      })}
    </ul>
  );
}

/** The text of a file of a state, in the forms that files have. */
export function fileText(file: Json | undefined): string {
  if (typeof file === "string") return file;
  if (file && typeof file === "object" && !Array.isArray(file)) {
    const content = file["content"];
    if (Array.isArray(content)) return content.map(String).join("\n");
    if (typeof content === "string") return content;
  }
  return JSON.stringify(file ?? null, null, 2);
}

export function FileList({ files }: { files: JsonObject }) {
  const [shown, setShown] = useState<string>();
  const names = Object.keys(files).sort();
  return (
    <>
      <ul className="files">
        {names.map((name) => (
          <li key={name}>
            <button type="button" className="file" onClick={() => setShown(name)}>
              <Icon name="file" size={15} />
              <span className="truncate mono">{name}</span>
              <span className="muted numeric">{bytes(fileText(files[name]).length)}</span>
            </button>
          </li>
        ))}
      </ul>
      {shown !== undefined && (
        <Dialog title={shown} wide onClose={() => setShown(undefined)}>
          <LongText text={fileText(files[shown])} limit={20_000} code label={shown} />
        </Dialog>
      )}
    </>
  );
}

/** The state of an agent: todos, files and all other fields. */
export function StateView({ values }: { values: JsonObject | undefined }) {
  if (!values || Object.keys(values).length === 0) {
    return (
      <EmptyState icon="store" title="No state yet">
        Todos, files and the other fields of the state are here as soon as the agent has made a step.
      </EmptyState>
    );
  }
  const { messages, todos, files, ...rest } = values;
  const fields = Object.entries(rest).filter(([name]) => !name.startsWith("__"));
  const hasFiles = files !== null && typeof files === "object" && !Array.isArray(files) && Object.keys(files).length > 0;
  return (
    <div className="stack">
      <section aria-label="Todos">
        <h2 className="panel-heading">Todos</h2>
        {Array.isArray(todos) && todos.length > 0 ? <TodoList todos={todos} /> : <p className="muted">The agent has no plan.</p>}
      </section>
      <section aria-label="Files">
        <h2 className="panel-heading">Files</h2>
        {hasFiles ? <FileList files={files as JsonObject} /> : <p className="muted">The agent has no files.</p>}
      </section>
      {fields.map(([name, value]) => (
        <section key={name} aria-label={name}>
          <h2 className="panel-heading mono">{name}</h2>
          <JsonView value={value} label={name} />
        </section>
      ))}
      <p className="muted">{plural(Array.isArray(messages) ? messages.length : 0, "message")} in the state.</p>
    </div>
  );
}
