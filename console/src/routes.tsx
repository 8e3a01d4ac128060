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
  { path: "/agents", label: "Agents", group: "Build", icon: "agents", component: page(() => import("./pages/Agents")) },
  { path: "/agents/:graphId", label: "Agent", component: page(() => import("./pages/Agent")) },
  { path: "/assistants", label: "Assistants", group: "Build", icon: "assistants", component: page(() => import("./pages/Assistants")) },
  { path: "/assistants/:assistantId", label: "Assistant", component: page(() => import("./pages/Assistant")) },
  { path: "/store", label: "Store", group: "Build", icon: "store", component: page(() => import("./pages/Store")) },
  { path: "/crons", label: "Crons", group: "Operate", icon: "crons", component: page(() => import("./pages/Crons")) },
  { path: "/webhooks", label: "Webhook deliveries", group: "Operate", icon: "webhooks", component: page(() => import("./pages/Webhooks")) },
  { path: "/webhooks/:deliveryId", label: "Webhook delivery", component: page(() => import("./pages/Webhook")) },
  { path: "/metrics", label: "Metrics", group: "Operate", icon: "metrics", component: page(() => import("./pages/Metrics")) },
  { path: "/audit", label: "Audit", group: "Operate", icon: "audit", component: page(() => import("./pages/Audit")) },
  { path: "/keys", label: "API keys", group: "Operate", icon: "key", component: page(() => import("./pages/Keys")) },
];
