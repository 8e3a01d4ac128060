import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";

import { deleteItem, type Item, listNamespaces, putItem, searchItems } from "../api/admin";
import { Confirm, Facts, FormDialog, JsonField, Loaded, SearchField, Table, TextField } from "../components/admin";
import { Icon } from "../components/Icon";
import { JsonView } from "../components/JsonView";
import { Button, Card, Dialog, EmptyState, Field, PageHeader, Pager, Time } from "../components/ui";
import { plural } from "../lib/format";
import { pretty, problemOf, readObject } from "../lib/json";
import { useOffset } from "../lib/paging";
import { setQuery, useLocation } from "../lib/router";
import "../styles/admin.css";

const LIMIT = 25;

/** Labels have no slashes by convention, but may have them: they are kept in the address as JSON. */
function readNamespace(text: string | null): string[] {
  if (!text) return [];
  try {
    const value: unknown = JSON.parse(text);
    return Array.isArray(value) && value.every((label) => typeof label === "string") ? value : [];
  } catch {
    return [];
  }
}

function Edit({ item, namespace, onClose }: { item?: Item; namespace: string[]; onClose: () => void }) {
  const queries = useQueryClient();
  const [labels, setLabels] = useState(namespace.join("\n"));
  const [key, setKey] = useState(item?.key ?? "");
  const [value, setValue] = useState(item ? pretty(item.value) : "{\n  \n}");
  const [ttl, setTtl] = useState("");
  const path = labels.split("\n").filter((label) => label !== "");
  const minutes = ttl.trim() === "" ? undefined : Number(ttl);
  const isTtlValid = minutes === undefined || (Number.isFinite(minutes) && minutes > 0);
  return (
    <FormDialog
      title={item ? "Change the item" : "New item"}
      action="Save"
      wide
      isValid={path.length > 0 && key !== "" && !problemOf(value, true) && isTtlValid}
      onClose={onClose}
      onSubmit={async () => {
        await putItem({ namespace: path, key, value: readObject(value) ?? {}, ttl: minutes });
        await queries.invalidateQueries({ queryKey: ["store"] });
        setQuery({ namespace: JSON.stringify(path) });
      }}
    >
      {item ? (
        <Facts facts={[["Namespace", item.namespace.join(" › ")], ["Key", <code key="key">{item.key}</code>]]} />
      ) : (
        <>
          <Field label="Namespace" hint="One label a line, the outermost first. Labels have no periods.">
            {({ id, describedBy }) => <textarea id={id} rows={3} value={labels} aria-describedby={describedBy} onChange={(event) => setLabels(event.target.value)} />}
          </Field>
          <TextField label="Key" value={key} onChange={setKey} required />
        </>
      )}
      <JsonField label="Value" rows={10} required value={value} onChange={setValue} />
      <TextField label="Time to live" hint="In minutes. Without one, as the server is configured." error={isTtlValid ? undefined : "A number above 0 is needed."} value={ttl} onChange={setTtl} />
    </FormDialog>
  );
}

function Namespaces({ chosen, onChoose }: { chosen: string[]; onChoose: (namespace: string[]) => void }) {
  const namespaces = useQuery({ queryKey: ["store", "namespaces"], queryFn: ({ signal }) => listNamespaces([], signal), refetchInterval: 30_000 });
  // Namespaces between the outermost and those that have items can be chosen as well.
  const all = useMemo(() => {
    const paths = new Map<string, string[]>();
    for (const namespace of namespaces.data ?? []) {
      for (let depth = 1; depth <= namespace.length; depth += 1) {
        const path = namespace.slice(0, depth);
        paths.set(path.join("\u0000"), path);
      }
    }
    return [...paths.entries()].sort(([one], [other]) => (one < other ? -1 : 1)).map(([, path]) => path);
  }, [namespaces.data]);
  const isChosen = (path: string[]) => JSON.stringify(path) === JSON.stringify(chosen);
  return (
    <Card>
      <nav className="store-tree" aria-label="Namespaces">
        <ul>
          <li>
            <button type="button" aria-current={chosen.length === 0 ? "true" : undefined} onClick={() => onChoose([])}>
              <Icon name="store" /> All namespaces
            </button>
          </li>
          <Loaded query={namespaces} lines={4}>
            {() =>
              all.map((path) => (
                <li key={path.join("\u0000")} style={{ paddingLeft: `${Math.min(path.length - 1, 6) * 14}px` }}>
                  <button type="button" aria-current={isChosen(path) ? "true" : undefined} aria-label={path.join(" › ")} onClick={() => onChoose(path)}>
                    <Icon name="chevron" size={12} /> {path.at(-1)}
                  </button>
                </li>
              ))
            }
          </Loaded>
        </ul>
      </nav>
    </Card>
  );
}

export default function Store() {
  const queries = useQueryClient();
  const { query } = useLocation();
  const given = query.get("namespace");
  const namespace = useMemo(() => readNamespace(given), [given]);
  const text = query.get("query") ?? "";
  const [offset, setOffset] = useOffset();
  const [shown, setShown] = useState<Item>();
  const [edited, setEdited] = useState<Item>();
  const [creates, setCreates] = useState(false);
  const [toDelete, setToDelete] = useState<Item>();
  const items = useQuery({
    queryKey: ["store", "items", namespace, text, offset],
    // One more than is shown, so that it is known whether there are more.
    queryFn: ({ signal }) => searchItems({ prefix: namespace, query: text, limit: LIMIT + 1, offset }, signal),
    placeholderData: (before) => before,
  });
  return (
    <>
      <PageHeader title="Store" lead="What agents and clients keep beyond a thread.">
        <Button kind="primary" icon="plus" onClick={() => setCreates(true)}>New item</Button>
      </PageHeader>
      <div className="store">
        <Namespaces chosen={namespace} onChoose={(path) => setQuery({ namespace: path.length > 0 ? JSON.stringify(path) : null, offset: null }, { replace: false })} />
        <div>
          <div className="toolbar">
            <SearchField label="Search the items" value={text} onChange={(next) => setQuery({ query: next, offset: null })} />
          </div>
          <Loaded query={items}>
            {(all) => {
              // A server without an index answers a search with everything; then at least the texts are searched here.
              const hasIndex = all.some((item) => typeof item.score === "number");
              const words = text.toLowerCase();
              const found = text === "" || hasIndex ? all : all.filter((item) => `${item.key} ${JSON.stringify(item.value)}`.toLowerCase().includes(words));
              return found.length === 0 ? (
                <EmptyState icon="store" title="There are no items here" action={<Button onClick={() => setCreates(true)}>New item</Button>}>
                  {text !== "" ? "No item of this page contains this text." : namespace.length > 0 ? `Nothing is stored below ${namespace.join(" › ")}.` : "The Store of this server is empty, or nothing in it is yours to see."}
                </EmptyState>
              ) : (
                <>
                  <Table
                    label="Items"
                    head={
                      <>
                        <th scope="col">Key</th>
                        <th scope="col">Namespace</th>
                        <th scope="col">Value</th>
                        <th scope="col">Changed</th>
                        <th scope="col"><span className="visually-hidden">Actions</span></th>
                      </>
                    }
                  >
                    {found.slice(0, LIMIT).map((item) => (
                      <tr key={`${item.namespace.join("\u0000")}\u0000${item.key}`}>
                        <td className="cell-main wrap-anywhere">{item.key}</td>
                        <td className="wrap-anywhere">{item.namespace.join(" › ")}</td>
                        <td><code className="cell-sub wrap-anywhere">{JSON.stringify(item.value).slice(0, 120)}</code></td>
                        <td><Time value={item.updated_at} /></td>
                        <td>
                          <span className="row-tight">
                            <Button small onClick={() => setShown(item)} aria-label={`View ${item.key}`}>View</Button>
                            <Button small onClick={() => setEdited(item)} aria-label={`Edit ${item.key}`}>Edit</Button>
                            <Button small kind="danger" onClick={() => setToDelete(item)} aria-label={`Delete ${item.key}`}>Delete</Button>
                          </span>
                        </td>
                      </tr>
                    ))}
                  </Table>
                  <Pager offset={offset} limit={LIMIT} shown={Math.min(all.length, LIMIT)} total={all.length > LIMIT ? undefined : offset + all.length} onChange={setOffset} />
                </>
              );
            }}
          </Loaded>
        </div>
      </div>
      {shown && (
        <Dialog title={shown.key} onClose={() => setShown(undefined)} wide>
          <div className="stack">
            <Facts
              facts={[
                ["Namespace", shown.namespace.join(" › ")],
                ["Created", <Time key="created" value={shown.created_at} />],
                ["Changed", <Time key="changed" value={shown.updated_at} />],
                ["Similarity", shown.score?.toFixed(3)],
                ["Fields", plural(Object.keys(shown.value).length, "field")],
              ]}
            />
            <JsonView value={shown.value} label="Value" />
          </div>
        </Dialog>
      )}
      {edited && <Edit item={edited} namespace={edited.namespace} onClose={() => setEdited(undefined)} />}
      {creates && <Edit namespace={namespace} onClose={() => setCreates(false)} />}
      {toDelete && (
        <Confirm
          title="Delete this item?"
          action="Delete"
          onClose={() => setToDelete(undefined)}
          onConfirm={async () => {
            await deleteItem(toDelete.namespace, toDelete.key);
            await queries.invalidateQueries({ queryKey: ["store"] });
          }}
        >
          {toDelete.key} in {toDelete.namespace.join(" › ")} is gone for all agents.
        </Confirm>
      )}
    </>
  );
}
