import { Dialog } from "./ui";

const shortcuts: [string, string][] = [
  ["?", "Show this list"],
  ["g t", "Go to the threads"],
  ["g c", "Go to the chat"],
  ["g i", "Go to the approvals"],
  ["g a", "Go to the agents"],
  ["g m", "Go to the metrics"],
  ["n", "New chat"],
  ["/", "Search on this page"],
  ["j, k", "Next or previous row of a list"],
  ["Enter", "Open the row, or send the message"],
  ["Shift Enter", "New line in a message"],
  ["Escape", "Close a dialog"],
];

export function ShortcutList({ onClose }: { onClose: () => void }) {
  return (
    <Dialog title="Keyboard shortcuts" onClose={onClose}>
      <dl className="shortcuts">
        {shortcuts.map(([keys, what]) => (
          <div key={keys}>
            <dt>
              {keys.split(" ").map((key) => (
                <kbd key={key}>{key}</kbd>
              ))}
            </dt>
            <dd>{what}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
