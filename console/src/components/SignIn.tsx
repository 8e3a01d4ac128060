import { type FormEvent, useState } from "react";

import { ApiError, bearer, messageOf, request, signIn } from "../api/client";
import type { Caller } from "../api/types";
import { Button, Field } from "./ui";

/** Asks for an API key. It is tried before it is kept, and kept for this tab only. */
export function SignIn() {
  const [key, setKey] = useState("");
  const [error, setError] = useState<string>();
  const [isBusy, setIsBusy] = useState(false);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const given = key.trim();
    if (!given) {
      setError("Enter a key.");
      return;
    }
    setIsBusy(true);
    try {
      await request<Caller>("/auth/me", { headers: { authorization: bearer(given) } });
      signIn(given);
    } catch (failure) {
      setError(failure instanceof ApiError && failure.status === 401 ? "The server does not know this key." : messageOf(failure));
      setIsBusy(false);
    }
  };
  return (
    <main className="sign-in" id="main">
      <form className="card sign-in-card" onSubmit={(event) => void submit(event)} noValidate>
        <h1>Sign in to adjutant</h1>
        <p className="muted">This server asks for an API key or a token. It is kept in this tab and forgotten when the tab is closed.</p>
        <Field label="API key or token" error={error}>
          {({ id, describedBy, invalid }) => (
            <input id={id} type="password" autoComplete="off" spellCheck={false} autoFocus value={key} aria-describedby={describedBy} aria-invalid={invalid} onChange={(event) => setKey(event.target.value)} />
          )}
        </Field>
        <Button kind="primary" type="submit" busy={isBusy}>
          Sign in
        </Button>
      </form>
    </main>
  );
}
