import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Suspense, useEffect } from "react";

import { request, useIsRefused } from "./api/client";
import type { Caller } from "./api/types";
import { ErrorBoundary } from "./components/ErrorBoundary";
import { Layout } from "./components/Layout";
import { SignIn } from "./components/SignIn";
import { EmptyState, ErrorNotice, Loading } from "./components/ui";
import { match, navigate, useLocation } from "./lib/router";
import { useShortcuts } from "./lib/shortcuts";
import { routes } from "./routes";

function Page() {
  const { path } = useLocation();
  for (const route of routes) {
    const parameters = match(route.path, path);
    if (parameters) {
      const { component: Component } = route;
      return <Component {...parameters} />;
    }
  }
  return (
    <>
      <h1 className="visually-hidden">Not found</h1>
      <EmptyState icon="search" title="There is no such page" action={<a className="button button-secondary" href="#/">Go to the threads</a>}>
        The address {path} names nothing in this console.
      </EmptyState>
    </>
  );
}

export function App() {
  const isRefused = useIsRefused();
  const queries = useQueryClient();
  const { path } = useLocation();
  const caller = useQuery({ queryKey: ["me"], queryFn: () => request<Caller>("/auth/me"), enabled: !isRefused, staleTime: 60_000 });
  // What the last user has seen is nothing for the next one.
  useEffect(() => {
    if (isRefused) queries.clear();
  }, [isRefused, queries]);
  useEffect(() => {
    const label = routes.find((route) => match(route.path, path))?.label;
    document.title = label ? `${label} · adjutant` : "adjutant";
  }, [path]);
  useShortcuts({
    "g t": () => navigate("/"),
    "g c": () => navigate("/chat"),
    "g i": () => navigate("/approvals"),
    "g a": () => navigate("/agents"),
    "g m": () => navigate("/metrics"),
    n: () => navigate("/chat"),
    "/": () => document.querySelector<HTMLElement>("[data-search]")?.focus(),
  });
  if (isRefused) return <SignIn />;
  if (caller.isPending) return <div className="starting"><Loading lines={1} label="Connecting" /></div>;
  return (
    <Layout caller={caller.data}>
      {caller.isError && <ErrorNotice title="The server cannot be reached" error={caller.error} onRetry={() => void caller.refetch()} />}
      <ErrorBoundary key={path}>
        <Suspense fallback={<Loading lines={5} />}>
          <Page />
        </Suspense>
      </ErrorBoundary>
    </Layout>
  );
}
