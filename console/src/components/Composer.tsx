import { type FormEvent, useEffect, useRef, useState } from "react";

import { Button, classes } from "./ui";

interface Properties {
  isBusy: boolean;
  isDisabled?: boolean;
  queued?: number;
  placeholder?: string;
  note?: string;
  autoFocus?: boolean;
  onSend: (text: string) => void;
  onStop?: () => void;
}

/** Where messages are written. Enter sends, Shift and Enter make a new line. */
export function Composer({ isBusy, isDisabled, queued = 0, placeholder = "Message", note, autoFocus, onSend, onStop }: Properties) {
  const [text, setText] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  // The field is as high as its text, up to a third of the page.
  useEffect(() => {
    const element = field.current;
    if (!element) return;
    element.style.height = "auto";
    element.style.height = `${Math.min(element.scrollHeight + 2, window.innerHeight / 3)}px`;
  }, [text]);
  const send = (event?: FormEvent) => {
    event?.preventDefault();
    const written = text.trim();
    if (!written || isDisabled) return;
    onSend(written);
    setText("");
  };
  return (
    <form className="composer" onSubmit={send}>
      {(note || queued > 0) && <p className="composer-note muted">{queued > 0 ? `${queued} queued. ` : ""}{note}</p>}
      <div className={classes("composer-box", isDisabled && "composer-disabled")}>
        <textarea
          ref={field}
          rows={1}
          aria-label={placeholder}
          placeholder={placeholder}
          value={text}
          disabled={isDisabled}
          autoFocus={autoFocus}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) send(event);
          }}
        />
        {isBusy && onStop && (
          <Button small icon="stop" onClick={onStop}>
            Stop
          </Button>
        )}
        <Button small kind="primary" type="submit" icon="send" disabled={isDisabled || text.trim() === ""}>
          {isBusy ? "Queue" : "Send"}
        </Button>
      </div>
    </form>
  );
}
