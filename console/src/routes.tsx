import { type ComponentType, lazy } from "react";

import type { IconName } from "./components/Icon";

export interface Route {
  /** The place in the fragment of the address. `:name` is a parameter, which the component gets as a property. */
  path: string;
  label: string;
  /** Routes with a group are in the navigation, under this heading. */
  group?: "Work" | "Build" | "Operate";
  icon?: IconName;
  // The router gives each page the parameters of its own path.
  component: ComponentType<any>;
}

const page = (load: () => Promise<{ default: ComponentType<any> }>) => lazy(load);

/** All pages, in the order of the navigation. A page is one line. */
export const routes: Route[] = [
  { path: "/", label: "Threads", group: "Work", icon: "threads", component: page(() => import("./pages/Threads")) },
  { path: "/threads/:threadId", label: "Thread", component: page(() => import("./pages/Thread")) },
  { path: "/chat", label: "Chat", group: "Work", icon: "chat", component: page(() => import("./pages/Chat")) },
  { path: "/approvals", label: "Approvals", group: "Work", icon: "inbox", component: page(() => import("./pages/Approvals")) },
];
