import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";

import type { ApiKey, IssuedKey } from "../api/admin";
import { request, requestPage } from "../api/client";
import type { Caller } from "../api/types";
import { Confirm, FormDialog, Loaded, Table, TextField } from "../components/admin";
import { Badge, Button, CopyId, Dialog, EmptyState, PageHeader, Pager, Time } from "../components/ui";
import { useOffset } from "../lib/paging";
import "../styles/admin.css";

const LIMIT = 25;
const roles = ["user", "approver", "developer", "operator", "admin"];

function Create({ onMade, onClose }: { onMade: (key: IssuedKey) => void; onClose: () => void }) {
  const [name, setName] = useState("");
  const [user, setUser] = useState("");
  const [chosen, setChosen] = useState(["user"]);
  const [scopes, setScopes] = useState("");
  const [expires, setExpires] = useState("");
  const toggle = (role: string) => setChosen(chosen.includes(role) ? chosen.filter((each) => each !== role) : [...chosen, role]);
  return (
    <FormDialog
      title="New API key"
      action="Create"
      isValid={name.trim() !== "" && chosen.length > 0}
      onClose={onClose}
      onSubmit={async () => {
        const list = scopes.split(/[\s,]+/).filter(Boolean);
        const body = { name: name.trim(), user: user.trim() || undefined, roles: chosen, scopes: list.length > 0 ? list : undefined, expires_at: expires ? new Date(expires).toISOString() : undefined };
        onMade(await request<IssuedKey>("/auth/keys", { body }));
      }}
    >
      <TextField label="Name" hint="For people: what the key is used for." value={name} onChange={setName} autoFocus required />
      <TextField label="User" hint="For whom the key acts. Without one, for you." value={user} onChange={setUser} />
      <fieldset>
        <legend className="label">Roles</legend>
        <div className="row">
          {roles.map((role) => (
            <label key={role} className="checkbox">
              <input type="checkbox" checked={chosen.includes(role)} onChange={() => toggle(role)} />
              {role}
            </label>
          ))}
        </div>
      </fieldset>
      <TextField label="Scopes" hint="Permissions that limit the roles, such as threads:read. Without any, no limit." value={scopes} onChange={setScopes} />
      <TextField label="Expires" type="datetime-local" value={expires} onChange={setExpires} />
    </FormDialog>
  );
}

function Secret({ issued, onClose }: { issued: IssuedKey; onClose: () => void }) {
  const [isCopied, setIsCopied] = useState(false);
  return (
    <Dialog title={`The key ${issued.name}`} onClose={onClose}>
      <div className="stack">
        <p>Copy it now: it is not stored and cannot be shown again.</p>
        <p className="secret-once" data-secret>{issued.api_key}</p>
        <div className="dialog-actions">
          <Button icon={isCopied ? "check" : "copy"} onClick={() => void navigator.clipboard?.writeText(issued.api_key).then(() => setIsCopied(true))}>
            {isCopied ? "Copied" : "Copy"}
          </Button>
          <Button kind="primary" onClick={onClose}>Done</Button>
        </div>
      </div>
    </Dialog>
  );
}

function stateOf(key: ApiKey) {
  if (key.revoked_at) return <Badge tone="danger">revoked</Badge>;
  if (key.expires_at && new Date(key.expires_at) < new Date()) return <Badge tone="warning">expired</Badge>;
  return <Badge tone="success">valid</Badge>;
}

export default function Keys() {
  const queries = useQueryClient();
  const [offset, setOffset] = useOffset();
  const [creates, setCreates] = useState(false);
  const [issued, setIssued] = useState<IssuedKey>();
  const [toRotate, setToRotate] = useState<ApiKey>();
  const [toRevoke, setToRevoke] = useState<ApiKey>();
  const caller = useQuery({ queryKey: ["me"], queryFn: () => request<Caller>("/auth/me"), staleTime: 60_000 });
  const isOff = caller.data?.credential === "none";
  const keys = useQuery({
    queryKey: ["keys", offset],
    enabled: caller.data !== undefined && !isOff,
    // One more than is shown, so that it is known whether there are more.
    queryFn: async ({ signal }) => (await requestPage<ApiKey>("/auth/keys", { query: { limit: LIMIT + 1, offset }, signal })).items,
    placeholderData: (before) => before,
  });
  const reload = () => queries.invalidateQueries({ queryKey: ["keys"] });
  return (
    <>
      <PageHeader title="API keys" lead="Credentials of this tenant that are kept in the database.">
        {keys.data && <Button kind="primary" icon="plus" onClick={() => setCreates(true)}>New API key</Button>}
      </PageHeader>
      {isOff ? (
        <EmptyState icon="key" title="This server has no authentication">
          Without the section [auth] everybody who reaches the server may do everything, so keys would mean nothing.
        </EmptyState>
      ) : (
        <Loaded query={keys}>
          {(items) =>
            items.length === 0 ? (
              <EmptyState icon="key" title="There are no API keys" action={<Button onClick={() => setCreates(true)}>New API key</Button>}>
                Keys in the configuration file are not listed here.
              </EmptyState>
            ) : (
              <>
                <Table
                  label="API keys"
                  head={
                    <>
                      <th scope="col">Name</th>
                      <th scope="col">User</th>
                      <th scope="col">Roles</th>
                      <th scope="col">State</th>
                      <th scope="col">Last used</th>
                      <th scope="col">Expires</th>
                      <th scope="col"><span className="visually-hidden">Actions</span></th>
                    </>
                  }
                >
                  {items.slice(0, LIMIT).map((key) => (
                    <tr key={key.key_id}>
                      <td>
                        <span className="cell-main">{key.name}</span>
                        <CopyId id={key.key_id} label="key id" />
                      </td>
                      <td>{key.user}</td>
                      <td>
                        <span className="row">{key.roles.map((role) => <Badge key={role}>{role}</Badge>)}</span>
                        {key.scopes && <span className="cell-sub">{key.scopes.join(", ")}</span>}
                      </td>
                      <td>{stateOf(key)}</td>
                      <td><Time value={key.last_used_at} /></td>
                      <td><Time value={key.expires_at} /></td>
                      <td>
                        {!key.revoked_at && (
                          <span className="row-tight">
                            <Button small onClick={() => setToRotate(key)} aria-label={`Rotate ${key.name}`}>Rotate</Button>
                            <Button small kind="danger" onClick={() => setToRevoke(key)} aria-label={`Revoke ${key.name}`}>Revoke</Button>
                          </span>
                        )}
                      </td>
                    </tr>
                  ))}
                </Table>
                <Pager offset={offset} limit={LIMIT} shown={Math.min(items.length, LIMIT)} total={items.length > LIMIT ? undefined : offset + items.length} onChange={setOffset} />
              </>
            )
          }
        </Loaded>
      )}
      {creates && (
        <Create
          onClose={() => setCreates(false)}
          onMade={(key) => {
            setIssued(key);
            void reload();
          }}
        />
      )}
      {issued && <Secret issued={issued} onClose={() => setIssued(undefined)} />}
      {toRotate && (
        <Confirm
          title="Give this key a new secret?"
          action="Rotate"
          onClose={() => setToRotate(undefined)}
          onConfirm={async () => {
            setIssued(await request<IssuedKey>(`/auth/keys/${toRotate.key_id}/rotate`, { body: {} }));
            await reload();
          }}
        >
          The old secret of {toRotate.name} is accepted for one more day.
        </Confirm>
      )}
      {toRevoke && (
        <Confirm
          title="Revoke this key?"
          action="Revoke"
          onClose={() => setToRevoke(undefined)}
          onConfirm={async () => {
            await request(`/auth/keys/${toRevoke.key_id}`, { method: "DELETE" });
            await reload();
          }}
        >
          Requests with {toRevoke.name} are refused from now on, and its open streams end.
        </Confirm>
      )}
    </>
  );
}
