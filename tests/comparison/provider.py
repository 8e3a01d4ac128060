"""A provider with OpenAI's protocol that plays the scenario and records what it is asked, and the tools behind HTTP."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

import scenario


class Provider:
    """A provider for one side of the comparison."""

    def __init__(self) -> None:
        self.requests: dict[str, list[dict]] = {lane: [] for lane in scenario.ANSWERS}
        self.complaints: list[str] = []
        self._lock = threading.Lock()
        provider = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if self.path == "/v1/chat/completions":
                    provider._answer(self, body)
                elif self.path.startswith("/tools/"):
                    provider._call(self, body)
                else:
                    _send(self, 404, "application/json", b"{}")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, handler: BaseHTTPRequestHandler, body: dict) -> None:
        lane = lane_of(body)
        with self._lock:
            turn = len(self.requests[lane])
            self.requests[lane].append(body)
        script = scenario.ANSWERS[lane]
        if turn >= len(script):
            with self._lock:
                self.complaints.append(f"{lane} asks {turn + 1} times; {len(script)} answers are scripted")
            _send(handler, 400, "application/json", b'{"error": {"message": "the script is over", "type": "script"}}')
            return
        answer = script[turn]
        if body.get("stream"):
            frames = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in _frames(body, answer))
            _send(handler, 200, "text/event-stream", frames + b"data: [DONE]\n\n")
        else:
            _send(handler, 200, "application/json", json.dumps(_whole(body, answer)).encode())

    def _call(self, handler: BaseHTTPRequestHandler, body: dict) -> None:
        try:
            answer: object = getattr(scenario, body["name"])(**body["args"])
        except ValueError as error:
            answer = {"error": {"type": "ValueError", "message": str(error)}}
        _send(handler, 200, "application/json", json.dumps(answer).encode())


def lane_of(body: dict) -> str:
    """Returns the agent that asks."""
    system = "\n".join(text_of(message) for message in body["messages"] if message["role"] in ("system", "developer"))
    otherwise = "general-purpose" if body.get("tools") else "summary"
    return next((lane for lane, mark in scenario.MARKS.items() if mark in system), otherwise)


def text_of(message: dict) -> str:
    """Returns the text of a message."""
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(block.get("text", "") for block in content)
    return content or ""


USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def _calls(answer: dict) -> list[dict]:
    def wire(at: int, call: dict) -> dict:
        arguments = call["text"] if "text" in call else json.dumps(call["args"])
        function = {"name": call["name"], "arguments": arguments}
        return {"index": at, "id": call["id"], "type": "function", "function": function}

    return [wire(at, call) for at, call in enumerate(answer["calls"])]


def _frames(body: dict, answer: dict) -> list[dict]:
    head = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": body["model"]}
    deltas: list[dict] = [{"role": "assistant", "content": answer["text"]}]
    deltas += [{"tool_calls": [call]} for call in _calls(answer)]
    frames = [head | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    reason = "tool_calls" if answer["calls"] else "stop"
    frames.append(head | {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
    frames.append(head | {"choices": [], "usage": USAGE})
    return frames


def _whole(body: dict, answer: dict) -> dict:
    message: dict = {"role": "assistant", "content": answer["text"]}
    if answer["calls"]:
        message["tool_calls"] = [{key: call[key] for key in ("id", "type", "function")} for call in _calls(answer)]
    reason = "tool_calls" if answer["calls"] else "stop"
    choice = {"index": 0, "message": message, "finish_reason": reason}
    head = {"id": "c", "object": "chat.completion", "created": 1, "model": body["model"], "usage": USAGE}
    return head | {"choices": [choice]}


def _send(handler: BaseHTTPRequestHandler, status: int, kind: str, body: bytes) -> None:
    handler.send_response(status)
    handler.send_header("content-type", kind)
    handler.send_header("content-length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)
