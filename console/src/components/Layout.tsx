import { type ReactNode, useEffect, useRef, useState } from "react";

import { apiKey, signOut } from "../api/client";
import { usePendingInterrupts } from "../api/interrupts";
import type { Caller } from "../api/types";
import { useShortcuts } from "../lib/shortcuts";
import { href, match, useLocation } from "../lib/router";
import { setTheme, type Theme, useTheme } from "../lib/theme";
import { routes } from "../routes";
import { Icon } from "./Icon";
import { ShortcutList } from "./ShortcutList";
import { classes, IconButton } from "./ui";

const themes: Theme[] = ["system", "light", "dark"];
const themeIcons = { system: "system", light: "sun", dark: "moon" } as const;

function ThemeSwitch() {
  const theme = useTheme();
  const next = themes[(themes.indexOf(theme) + 1) % themes.length] ?? "system";
  return <IconButton icon={themeIcons[theme]} label={`Theme: ${theme}. Change to ${next}`} onClick={() => setTheme(next)} />;
}

function Navigation({ onNavigate }: { onNavigate: () => void }) {
  const { path } = useLocation();
  const waiting = usePendingInterrupts().data?.length ?? 0;
  const groups = [...new Set(routes.map((route) => route.group).filter(Boolean))];
  return (
    <nav aria-label="Console" className="nav">
      {groups.map((group) => (
        <div key={group} className="nav-group">
          <h2 className="nav-heading">{group}</h2>
          <ul>
            {routes
              .filter((route) => route.group === group)
              .map((route) => {
                const isHere = match(route.path, path) !== null || path.startsWith(route.path === "/" ? "/threads/" : `${route.path}/`);
                return (
                  <li key={route.path}>
                    <a href={href(route.path)} aria-current={isHere ? "page" : undefined} onClick={onNavigate}>
                      {route.icon && <Icon name={route.icon} />}
                      <span>{route.label}</span>
                      {route.path === "/approvals" && waiting > 0 && (
                        <span className="nav-badge">
                          {waiting}
                          <span className="visually-hidden"> waiting</span>
                        </span>
                      )}
                    </a>
                  </li>
                );
              })}
          </ul>
        </div>
      ))}
    </nav>
  );
}

/** The frame of all pages: the navigation at the side, above the page on narrow screens. */
export function Layout({ caller, children }: { caller: Caller | undefined; children: ReactNode }) {
  const [isMenuOpen, setIsMenuOpen] = useState(false);
  const [showsShortcuts, setShowsShortcuts] = useState(false);
  const { path } = useLocation();
  const main = useRef<HTMLElement>(null);
  const isFirst = useRef(true);
  useShortcuts({ "?": () => setShowsShortcuts(true) });
  // A new page begins at its top, also for those who hear it.
  useEffect(() => {
    if (isFirst.current) {
      isFirst.current = false;
      return;
    }
    main.current?.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }, [path]);
  return (
    <div className="shell">
      <a className="skip-link" href="#main" onClick={(event) => {
        event.preventDefault();
        main.current?.focus();
      }}>
        Skip to the content
      </a>
      <header className={classes("side", isMenuOpen && "side-open")}>
        <div className="side-top">
          <a className="brand" href={href("/")} aria-label="adjutant, threads">
            <span className="brand-mark" aria-hidden="true">
              <svg viewBox="0 0 32 32" width="22" height="22" focusable="false">
                <rect width="32" height="32" rx="8" />
                <path d="M9.5 22 16 9l6.5 13M12 17.5h8" />
              </svg>
            </span>
            adjutant
          </a>
          <IconButton className="menu-button" icon={isMenuOpen ? "close" : "menu"} label={isMenuOpen ? "Close the menu" : "Open the menu"} aria-expanded={isMenuOpen} onClick={() => setIsMenuOpen(!isMenuOpen)} />
        </div>
        <div className="side-rest">
          <Navigation onNavigate={() => setIsMenuOpen(false)} />
          <div className="side-foot">
            {caller && caller.credential !== "none" && (
              <div className="caller">
                <span className="caller-name">{caller.display_name ?? caller.identity}</span>
                <span className="muted">{[caller.tenant, ...caller.roles].join(" · ")}</span>
              </div>
            )}
            <div className="side-buttons">
              <ThemeSwitch />
              <IconButton icon="help" label="Keyboard shortcuts" onClick={() => setShowsShortcuts(true)} />
              <a className="button button-ghost icon-button" href="/docs" title="API document" aria-label="API document">
                <Icon name="external" />
              </a>
              {apiKey() && <IconButton icon="key" label="Sign out" onClick={signOut} />}
            </div>
          </div>
        </div>
      </header>
      <main id="main" className="main" ref={main} tabIndex={-1}>
        {children}
      </main>
      {showsShortcuts && <ShortcutList onClose={() => setShowsShortcuts(false)} />}
    </div>
  );
}
