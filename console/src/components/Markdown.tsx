import { memo } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";

const components: Components = {
  a: ({ href, children }) => (
    <a href={href} target="_blank" rel="noreferrer noopener">
      {children}
    </a>
  ),
  // The page loads nothing from elsewhere, so a picture is a link to it.
  img: ({ src, alt }) => (
    <a href={typeof src === "string" ? src : undefined} target="_blank" rel="noreferrer noopener">
      {alt || "picture"}
    </a>
  ),
  pre: ({ children }) => (
    <pre className="pre pre-code" tabIndex={0}>
      {children}
    </pre>
  ),
  table: ({ children }) => (
    <div className="table-scroll" tabIndex={0} role="region" aria-label="Table">
      <table>{children}</table>
    </div>
  ),
  h1: ({ children }) => <h2>{children}</h2>,
  h2: ({ children }) => <h3>{children}</h3>,
  h3: ({ children }) => <h4>{children}</h4>,
};
const plugins = [remarkGfm];
const LIMIT = 40_000;

/** A finished text of a model. A very long one is shown as it is written, since marking it up would stop the page. */
export const Markdown = memo(function Markdown({ text }: { text: string }) {
  if (text.length > LIMIT) return <div className="plain-text">{text}</div>;
  return (
    <div className="markdown">
      <ReactMarkdown remarkPlugins={plugins} components={components}>
        {text}
      </ReactMarkdown>
    </div>
  );
});
