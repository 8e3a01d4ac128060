"""A small MCP server for the tests, over its standard streams or, with an address, over HTTP.

    mcp_server.py TOOLS_URL            messages on lines of stdin and stdout
    mcp_server.py TOOLS_URL PORT       POST /mcp; every second answer is an event stream. With the older transport, GET
                                       /sse is the stream of all answers, and POST /messages takes the requests

Its tools are those of `call`. `dig` calls the tool server of the tests, so that a test sees the call and can hold it back.
`tell` sends notifications, and digs then.
"""

import json
import os
import queue
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

TOOLS_URL = sys.argv[1]
TEXT = {"type": "string"}


def schema(**properties):
    return {"type": "object", "properties": properties, "required": list(properties)}


TOOLS = [
    {"name": "echo", "description": "Says it again.", "inputSchema": schema(text=TEXT)},
    {"name": "read.file", "description": "Has a name that models cannot say.", "inputSchema": schema()},
    {"name": "picture", "description": "Draws.", "inputSchema": schema()},
    {"name": "count", "description": "Counts.", "inputSchema": schema(text=TEXT)},
    {"name": "fail", "description": "Fails.", "inputSchema": schema(why=TEXT)},
    {"name": "whoami", "description": "Tells who calls.", "inputSchema": schema()},
    {"name": "environment", "description": "Tells the variables.", "inputSchema": schema()},
    {"name": "trace", "description": "Tells the trace.", "inputSchema": schema()},
    {"name": "lists", "description": "Tells how often it was asked for its tools.", "inputSchema": schema()},
    {"name": "process", "description": "Tells the process.", "inputSchema": schema()},
    {"name": "dig", "description": "Digs.", "inputSchema": schema()},
    {
        "name": "tell",
        "description": "Sends these notifications, again and again with a pause.",
        "inputSchema": {
            "type": "object",
            "properties": {"notifications": {"type": "array"}, "times": {"type": "integer"}, "pause": {"type": "number"}},
            "required": ["notifications"],
        },
    },
    {"name": "spawn", "description": "Has a subagent do it.", "inputSchema": schema(work=TEXT, to=TEXT)},
    {"name": "grow", "description": "Brings another tool, and has `count` require nothing.", "inputSchema": schema()},
    {"name": "huge", "description": "Says too much.", "inputSchema": schema()},
    {"name": "long", "description": "Can only be called as a task.", "inputSchema": schema(), "execution": {"taskSupport": "required"}},
    {"name": "broken", "description": "Has no schema that fits.", "inputSchema": {"type": "string"}},
]
# One entry for each `tools/list` request.
LISTS = []
# The tokens of the progress of all calls of `tell`.
TOKENS = []


def text(said):
    return {"content": [{"type": "text", "text": said}]}


def tell(args, meta, notify):
    """Sends notifications. The token `own` is that of this call, and `before` that of the one before; `n` is the round."""
    TOKENS.append(meta.get("progressToken"))
    named = {"own": TOKENS[-1], "before": TOKENS[-2] if len(TOKENS) > 1 else None}
    for n in range(args.get("times", 1)):
        for each in args["notifications"]:
            params = dict(each["params"])
            if "progressToken" in params:
                params["progressToken"] = named.get(params["progressToken"], params["progressToken"])
            if params.get("message") == "huge":
                params["message"] = "x" * (9 * 1024 * 1024)
            if params.get("progress") == "n":
                params["progress"] = n + 1
            notify({"jsonrpc": "2.0", "method": each["method"], "params": params})
        time.sleep(args.get("pause", 0))


def call(name, args, meta, notify):
    if name == "echo":
        return text(args["text"])
    if name == "read.file":
        return text("read")
    if name == "picture":
        return {"content": [{"type": "text", "text": "a dot"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]}
    if name == "count":
        return {"content": [], "structuredContent": {"words": len(args.get("text", "").split())}}
    if name == "fail":
        return {"isError": True, **text(args["why"])}
    if name == "whoami":
        return text(json.dumps(meta.get("adjutant/call"), sort_keys=True))
    if name == "trace":
        return text(meta.get("traceparent") or "none")
    if name == "environment":
        return text(" ".join(sorted(os.environ)) + " " + os.environ.get("DOCS_KEY", ""))
    if name == "lists":
        return text(str(len(LISTS)))
    if name == "process":
        return text(str(os.getpid()))
    if name == "tell":
        tell(args, meta, notify)
    if name in ("dig", "tell"):
        own = meta.get("adjutant/call") or {}
        body = json.dumps({"name": "dig", "args": {"read_access": own.get("read_access")}}).encode()
        request = urllib.request.Request(TOOLS_URL + "/dig", body, {"content-type": "application/json"})
        try:
            urllib.request.urlopen(request)
        except urllib.error.HTTPError:
            pass
        return text("dug" if name == "dig" else "told")
    if name == "spawn":
        done = (meta.get("adjutant/call") or {}).get("delegations")
        if done:
            return text("; ".join("%s has said: %s" % (each["subagent_type"], each["content"]) for each in done))
        delegate = {"description": args["work"], "subagent_type": args["to"], "system_prompt": args.get("prompt")}
        if args.get("again"):
            delegate["then"] = "call_again"
        return {"content": [], "structuredContent": {"delegate": delegate}}
    if name == "huge":
        return text("x" * (9 * 1024 * 1024))
    if name == "late":
        return text("better")
    raise KeyError(name)


def answer(message, notify=None):
    """Returns the answer to a message, if it needs one, and the messages sent besides it. `notify` sends one before."""
    method, params = message.get("method"), message.get("params") or {}
    beside = []
    if "id" not in message:
        if method == "notifications/cancelled":
            body = json.dumps({"name": "cancelled", "args": params}).encode()
            request = urllib.request.Request(TOOLS_URL + "/note", body, {"content-type": "application/json"})
            threading.Thread(target=lambda: urllib.request.urlopen(request)).start()
        return None, beside
    if method == "initialize":
        own = {"name": "tests", "version": "1"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {"listChanged": True}}, "serverInfo": own}
    elif method == "tools/list":
        LISTS.append(params)
        half = len(TOOLS) // 2
        first = {"tools": TOOLS[:half], "nextCursor": "rest"}
        result = first if "cursor" not in params else {"tools": TOOLS[half:]}
    elif method == "tools/call":
        if params["name"] == "grow":
            TOOLS.append({"name": "late", "description": "Came late.", "inputSchema": schema()})
            next(tool for tool in TOOLS if tool["name"] == "count")["inputSchema"] = {"type": "object"}
            beside.append({"jsonrpc": "2.0", "method": "notifications/tools/list_changed"})
            result = text("grown")
        else:
            try:
                result = call(params["name"], params.get("arguments") or {}, params.get("_meta") or {}, notify)
            except KeyError:
                error = {"code": -32602, "message": "no such tool"}
                return {"jsonrpc": "2.0", "id": message["id"], "error": error}, beside
    else:
        return {"jsonrpc": "2.0", "id": message["id"], "error": {"code": -32601, "message": "no such method"}}, beside
    return {"jsonrpc": "2.0", "id": message["id"], "result": result}, beside


def serve_lines():
    lock = threading.Lock()

    def put(message):
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def one(message):
        own, beside = answer(message, put)
        for message in beside + ([own] if own else []):
            put(message)

    print("this line is no message", flush=True)
    put({"jsonrpc": "2.0", "id": "mine", "method": "ping"})
    for line in sys.stdin:
        message = json.loads(line)
        if message.get("id") == "mine" and "result" in message:
            continue
        threading.Thread(target=one, args=(message,), daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sessions = set()
    streams = {}
    answers = 0

    def log_message(self, *_):
        pass

    def reply(self, status, kind="application/json", body=b"", **headers):
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def tells(self, message):
        """Answers with a stream whose events are sent at once."""
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()

        def notify(each):
            self.wfile.write(b"event: message\r\ndata: %s\r\n\r\n" % json.dumps(each).encode())
            self.wfile.flush()

        notify(answer(message, notify)[0])
        self.close_connection = True

    def do_DELETE(self):
        Handler.sessions.clear()
        self.reply(200)

    def do_GET(self):
        if self.headers.get("x-key") != "s3cret":
            return self.reply(401)
        events = Handler.streams[len(Handler.streams)] = queue.Queue()
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages?stream=%d\n\n" % (len(Handler.streams) - 1))
        while True:
            self.wfile.write(b"event: message\ndata: %s\n\n" % json.dumps(events.get()).encode())

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.headers.get("x-key") != "s3cret":
            return self.reply(401, body=b"who is there, with " + (self.headers.get("x-key") or "nothing").encode())
        if self.path.startswith("/messages"):
            self.reply(202)
            put = Handler.streams[int(self.path.split("=")[1])].put
            own, beside = answer(message, put)
            for each in beside + ([own] if own else []):
                put(each)
            return
        session = self.headers.get("mcp-session-id")
        headers = {}
        if message.get("method") == "initialize":
            session = "session-%d" % len(Handler.sessions)
            Handler.sessions.add(session)
            headers = {"Mcp_Session_Id": session}
        elif session not in Handler.sessions:
            return self.reply(404, body=b"no such session")
        if message.get("method") == "tools/call" and message["params"]["name"] == "tell":
            return self.tells(message)
        own, beside = answer(message)
        if own is None:
            return self.reply(202)
        Handler.answers += 1
        if beside or Handler.answers % 2:
            events = "".join("event: message\r\ndata: %s\r\n\r\n" % json.dumps(each) for each in beside + [own])
            return self.reply(200, "text/event-stream", events.encode(), **headers)
        self.reply(200, body=json.dumps(own).encode(), **headers)


if len(sys.argv) > 2:
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    print("listening on %d" % server.server_address[1], flush=True)
    server.serve_forever()
else:
    serve_lines()
