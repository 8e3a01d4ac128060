import { PageHeader } from "../components/ui";

export default function Threads() {
  return <PageHeader title="Threads" />;
}
