"""A tool behind HTTP, in plain Python: opens tickets in the file tickets.jsonl.

Start it with `python3 tools/desk.py`. The server posts one request for each call; the answer is the result.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

FILE = "tickets.jsonl"


class Desk(BaseHTTPRequestHandler):
    def do_POST(self):
        length = int(self.headers.get("content-length", 0))
        call = json.loads(self.rfile.read(length))
        # The key is the same when a call is repeated after a crash, so a ticket is opened once.
        key = self.headers.get("idempotency-key", "")
        ticket = {"key": key, **call["args"]}
        if key not in {entry["key"] for entry in tickets()}:
            with open(FILE, "a", encoding="utf-8") as file:
                file.write(json.dumps(ticket) + "\n")
        body = json.dumps(f"The ticket “{ticket['title']}” is open.").encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def tickets():
    try:
        with open(FILE, encoding="utf-8") as file:
            return [json.loads(line) for line in file]
    except FileNotFoundError:
        return []


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", 9300), Desk).serve_forever()
