// Icons as strokes on a grid of 20, drawn for this console.
const paths = {
  threads: "M4 5h12M4 10h12M4 15h7",
  chat: "M3.5 5.5A1.5 1.5 0 0 1 5 4h10a1.5 1.5 0 0 1 1.5 1.5v7A1.5 1.5 0 0 1 15 14H9l-4 3v-3a1.5 1.5 0 0 1-1.5-1.5z",
  inbox: "M3.5 11h3.7l1.2 2h3.2l1.2-2h3.7M3.5 11l2-6.2h9l2 6.2v4.2h-13z",
  agents: "M10 3.2v2.6M6 6h8a2 2 0 0 1 2 2v6a2 2 0 0 1-2 2H6a2 2 0 0 1-2-2V8a2 2 0 0 1 2-2zM7.6 10.2v1.2M12.4 10.2v1.2",
  assistants: "M10 9.6a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6zM4.4 16.4c.6-3 2.8-4.6 5.6-4.6s5 1.6 5.6 4.6",
  crons: "M10 3.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM10 6.4V10l2.4 1.8",
  webhooks: "M4 10h8.5M9.5 6.5 13 10l-3.5 3.5M16.2 4.5v11",
  store: "M4 6c0-1.4 2.7-2.5 6-2.5s6 1.1 6 2.5-2.7 2.5-6 2.5S4 7.4 4 6zM4 6v8c0 1.4 2.7 2.5 6 2.5s6-1.1 6-2.5V6M4 10c0 1.4 2.7 2.5 6 2.5s6-1.1 6-2.5",
  metrics: "M4 16V9.5M8 16V4.5M12 16v-4.5M16 16V7",
  audit: "M5.5 3.5h6l3 3v10h-9zM8 9.5h4.5M8 12.5h4.5",
  sun: "M10 6.6a3.4 3.4 0 1 0 0 6.8 3.4 3.4 0 0 0 0-6.8zM10 2.5v1.2M10 16.3v1.2M2.5 10h1.2M16.3 10h1.2M4.7 4.7l.9.9M14.4 14.4l.9.9M4.7 15.3l.9-.9M14.4 5.6l.9-.9",
  moon: "M16 11.4A6.4 6.4 0 0 1 8.6 4a6.4 6.4 0 1 0 7.4 7.4z",
  system: "M3.5 4.5h13v9h-13zM8 16.5h4M10 13.5v3",
  search: "M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM12.7 12.7 16.5 16.5",
  close: "M5.5 5.5l9 9M14.5 5.5l-9 9",
  check: "M4.5 10.5 8.5 14.5 15.5 6",
  copy: "M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3",
  chevron: "M7.5 5.5 12 10l-4.5 4.5",
  down: "M5.5 7.5 10 12l4.5-4.5",
  plus: "M10 4.5v11M4.5 10h11",
  minus: "M4.5 10h11",
  fit: "M4 7.5V4h3.5M16 7.5V4h-3.5M4 12.5V16h3.5M16 12.5V16h-3.5",
  play: "M6.5 4.5v11l9-5.5z",
  pause: "M7 5v10M13 5v10",
  stop: "M6 6h8v8H6z",
  send: "M10 16V4.5M5.5 9 10 4.5 14.5 9",
  tool: "M12.5 3.8a3.8 3.8 0 0 0-3.6 5l-5.2 5.2 2.3 2.3 5.2-5.2a3.8 3.8 0 0 0 4.8-4.6l-2.3 2.3-2-.5-.5-2 2.3-2.3a4 4 0 0 0-1-.2z",
  fork: "M6 3.5v13M6 9.5h5.5a2.5 2.5 0 0 0 2.5-2.5V3.5M11.7 5.5 14 3.2l2.3 2.3",
  replay: "M4.5 10a5.5 5.5 0 1 0 1.8-4.1M4.5 3.5v3.3h3.3",
  clock: "M10 4a6 6 0 1 0 0 12 6 6 0 0 0 0-12zM10 7v3.2l2 1.3",
  file: "M5.5 3.5h6l3 3v10h-9zM11.5 3.5v3h3",
  trash: "M4.5 6h11M8 6V4.2h4V6M6 6l.6 10h6.8L14 6M8.5 9v4.5M11.5 9v4.5",
  menu: "M3.5 6h13M3.5 10h13M3.5 14h13",
  key: "M12.5 4a3.5 3.5 0 1 0 .001 7 3.5 3.5 0 0 0 0-7zM10 10l-6 6M5.5 14.5l1.8 1.8",
  external: "M8 5H5v10h10v-3M11 4.5h4.5V9M15.5 4.5 9.5 10.5",
  todo: "M4 6.2l1.2 1.2L7.5 5M4 13.2l1.2 1.2 2.3-2.4M10 6.5h6M10 13.5h6",
  tree: "M6 3.5v13M6 7h5M6 13h5M11 5h5v4h-5zM11 11h5v4h-5z",
  help: "M10 3.5a6.5 6.5 0 1 0 0 13 6.5 6.5 0 0 0 0-13zM8.2 8.2A1.9 1.9 0 1 1 10 10.5v.9M10 13.6v.1",
  warning: "M10 3.5 17 16H3zM10 8.5v3.2M10 13.8v.1",
  refresh: "M15.5 10a5.5 5.5 0 1 1-1.8-4.1M15.5 3.5v3.3h-3.3",
} as const;

export type IconName = keyof typeof paths;

export function Icon({ name, size = 16 }: { name: IconName; size?: number }) {
  return (
    <svg className="icon" viewBox="0 0 20 20" width={size} height={size} aria-hidden="true" focusable="false">
      <path d={paths[name]} fill="none" stroke="currentColor" strokeWidth="1.5" strokeLinecap="round" strokeLinejoin="round" />
    </svg>
  );
}
