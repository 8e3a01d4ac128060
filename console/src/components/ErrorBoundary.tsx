import { Component, type ReactNode } from "react";

import { ErrorNotice } from "./ui";

/** Shows a fault of one page in its place, so that the rest of the console stays usable. */
export class ErrorBoundary extends Component<{ children: ReactNode }, { error: unknown }> {
  override state: { error: unknown } = { error: undefined };

  static getDerivedStateFromError(error: unknown): { error: unknown } {
    return { error };
  }

  override render(): ReactNode {
    if (this.state.error === undefined) return this.props.children;
    return <ErrorNotice title="This page has a fault" error={this.state.error} onRetry={() => this.setState({ error: undefined })} />;
  }
}
