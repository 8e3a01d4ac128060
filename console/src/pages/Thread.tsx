import { PageHeader } from "../components/ui";

export default function Thread() {
  return <PageHeader title="Thread" />;
}
