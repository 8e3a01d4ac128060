// A form from a JSON Schema. What it cannot draw is written as JSON.
import { type ReactNode, useId, useState } from "react";

import type { Json, JsonObject } from "../api/types";
import { choicesOf, initialOf, isRequired, kindOf, propertiesOf, resolve, type Schema, typeOf } from "../lib/schema";
import { Button, Field, IconButton } from "./ui";

/** Failures by the path of the value: `args.items.0`. */
export type FormErrors = Record<string, string>;

interface NodeProperties {
  schema: Json | undefined;
  root: Schema;
  value: Json | undefined;
  onChange: (value: Json | undefined) => void;
  path: string;
  label: string;
  required: boolean;
  errors: FormErrors;
  depth: number;
}

function JsonField({ value, onChange, label, hint, error }: { value: Json | undefined; onChange: (value: Json | undefined) => void; label: ReactNode; hint?: ReactNode; error?: string }) {
  const [text, setText] = useState(() => (value === undefined ? "" : JSON.stringify(value, null, 2)));
  const [fault, setFault] = useState<string>();
  return (
    <Field label={label} hint={hint} error={fault ?? error}>
      {({ id, describedBy, invalid }) => (
        <textarea
          id={id}
          className="code"
          rows={Math.min(12, Math.max(3, text.split("\n").length))}
          spellCheck={false}
          aria-describedby={describedBy}
          aria-invalid={invalid}
          value={text}
          onChange={(event) => {
            const written = event.target.value;
            setText(written);
            if (written.trim() === "") {
              setFault(undefined);
              onChange(undefined);
              return;
            }
            try {
              onChange(JSON.parse(written) as Json);
              setFault(undefined);
            } catch {
              setFault("This is not JSON yet.");
            }
          }}
        />
      )}
    </Field>
  );
}

function titleOf(schema: Schema, label: string): string {
  return typeof schema["title"] === "string" ? schema["title"] : label;
}

function rows(text: string): number {
  return Math.min(14, Math.max(text.length > 70 ? 3 : 1, text.split("\n").length));
}

function Node({ schema, root, value, onChange, path, label, required, errors, depth }: NodeProperties) {
  const resolved = resolve(schema, root);
  const kind = depth > 6 ? "json" : kindOf(resolved);
  const hint = typeof resolved["description"] === "string" ? resolved["description"] : undefined;
  const error = errors[path];
  const legend = useId();
  const name = (
    <>
      {titleOf(resolved, label)}
      {!required && <span className="optional"> optional</span>}
    </>
  );
  if (kind === "object") {
    const given: JsonObject = value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
    const known = propertiesOf(resolved);
    const rest = Object.fromEntries(Object.entries(given).filter(([key]) => !known.some(([each]) => each === key)));
    const body = (
      <>
        {known.map(([key, property]) => (
          <Node
            key={key}
            schema={property}
            root={root}
            value={given[key]}
            path={path ? `${path}.${key}` : key}
            label={key}
            required={isRequired(resolved, key)}
            errors={errors}
            depth={depth + 1}
            onChange={(changed) => {
              const next = { ...given };
              if (changed === undefined) delete next[key];
              else next[key] = changed;
              onChange(next);
            }}
          />
        ))}
        {Object.keys(rest).length > 0 && (
          <JsonField
            label="Other fields"
            value={rest}
            onChange={(changed) => {
              const next: JsonObject = {};
              for (const [key] of known) if (given[key] !== undefined) next[key] = given[key];
              onChange({ ...next, ...(typeof changed === "object" && changed !== null && !Array.isArray(changed) ? changed : {}) });
            }}
          />
        )}
        {error && <p className="field-error">{error}</p>}
      </>
    );
    if (depth === 0) return <div className="form">{body}</div>;
    return (
      <fieldset className="form-group" aria-labelledby={legend}>
        <div className="label" id={legend}>
          {name}
        </div>
        {hint && <p className="field-hint">{hint}</p>}
        {body}
      </fieldset>
    );
  }
  if (kind === "array") {
    const given = Array.isArray(value) ? value : [];
    return (
      <fieldset className="form-group" aria-labelledby={legend}>
        <div className="label" id={legend}>
          {name}
        </div>
        {hint && <p className="field-hint">{hint}</p>}
        {given.map((item, index) => (
          <div key={index} className="form-item">
            <div className="form-item-value">
              <Node
                schema={resolved["items"]}
                root={root}
                value={item}
                path={path ? `${path}.${index}` : String(index)}
                label={`${label} ${index + 1}`}
                required
                errors={errors}
                depth={depth + 1}
                onChange={(changed) => onChange(given.map((each, at) => (at === index ? (changed ?? null) : each)))}
              />
            </div>
            <IconButton icon="trash" label={`Remove ${label} ${index + 1}`} onClick={() => onChange(given.filter((_, at) => at !== index))} />
          </div>
        ))}
        <div>
          <Button small icon="plus" onClick={() => onChange([...given, initialOf(resolved["items"], root) ?? (typeOf(resolve(resolved["items"], root)) === "string" ? "" : null)])}>
            Add
          </Button>
        </div>
        {error && <p className="field-error">{error}</p>}
      </fieldset>
    );
  }
  if (kind === "boolean") {
    return (
      <div className="field">
        <label className="checkbox">
          <input type="checkbox" checked={value === true} onChange={(event) => onChange(event.target.checked)} />
          {titleOf(resolved, label)}
        </label>
        {hint && <p className="field-hint">{hint}</p>}
        {error && <p className="field-error">{error}</p>}
      </div>
    );
  }
  if (kind === "json") return <JsonField label={name} hint={hint ?? "As JSON."} value={value} onChange={onChange} error={error} />;
  return (
    <Field label={name} hint={hint} error={error}>
      {({ id, describedBy, invalid }) => {
        const common = { id, "aria-describedby": describedBy, "aria-invalid": invalid, "aria-required": required };
        if (kind === "choice") {
          const choices = choicesOf(resolved);
          const index = choices.findIndex((choice) => JSON.stringify(choice) === JSON.stringify(value));
          return (
            <select {...common} value={index} onChange={(event) => onChange(choices[Number(event.target.value)])}>
              {(index < 0 || !required) && <option value={-1}>–</option>}
              {choices.map((choice, at) => (
                <option key={at} value={at}>
                  {typeof choice === "string" ? choice : JSON.stringify(choice)}
                </option>
              ))}
            </select>
          );
        }
        if (kind === "number") {
          return (
            <input
              {...common}
              type="number"
              step={typeOf(resolved) === "integer" ? 1 : "any"}
              value={typeof value === "number" ? value : ""}
              onChange={(event) => onChange(event.target.value === "" ? undefined : Number(event.target.value))}
            />
          );
        }
        const text = typeof value === "string" ? value : "";
        return <textarea {...common} rows={rows(text)} value={text} onChange={(event) => onChange(event.target.value === "" && !required ? undefined : event.target.value)} />;
      }}
    </Field>
  );
}

export function SchemaForm({ schema, root, value, onChange, errors = {} }: { schema: Schema; root?: Schema; value: Json | undefined; onChange: (value: Json | undefined) => void; errors?: FormErrors }) {
  return <Node schema={schema} root={root ?? schema} value={value} onChange={onChange} path="" label="Value" required errors={errors} depth={0} />;
}
