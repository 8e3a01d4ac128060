"""A sandbox service for trying out workspaces of the kind `sandbox`, with the standard library only.

It speaks the protocol of docs/sandboxes.md. Each sandbox is a directory of its own below ROOT, and commands run there.

THIS IS NO ISOLATION. Commands run as the user who started this program and can read and change all that this user can,
also outside of their directory, and use the network. The file operations alone refuse paths outside. Run it where that
does no harm, such as in a container or a virtual machine, and use it to try things out, or as a pattern for a service
of your own.

    SANDBOX_TOKEN=secret python3 sandbox_service.py --port 8700 --root sandboxes
"""

import argparse
import hashlib
import hmac
import json
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

MAX_BODY_BYTES = 16 * 1024 * 1024
MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_OUTPUT_BYTES = 16 * 1024 * 1024
MAX_TIMEOUT_S = 24 * 3600
MAX_ENTRIES = 10_000
MAX_LINE_CHARS = 2_000
MAX_SANDBOXES = 1_000
HEARTBEAT_S = 5.0
# Limits of a command: no core files, files of 1 GiB, 10 minutes of processor time for each process.
LIMITS = 'ulimit -c 0; ulimit -f 1048576; ulimit -t 600; exec /bin/sh -c "$0"'

UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PLACE = re.compile(rf"/sandboxes/({UUID})(?:/(commands|entries|files|search))?")


class Refusal(Exception):
    """An answer that says what went wrong: a status, a code of the protocol and a text for people."""

    def __init__(self, status, code, message=""):
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message


class Sandboxes:
    """The sandboxes: directories below a root, with the commands that run in them."""

    def __init__(self, root):
        self.root = os.path.realpath(root)
        self.lock = threading.Lock()
        self.commands = {}
        os.makedirs(self.root, exist_ok=True)

    def create(self, sandbox):
        with self.lock:
            place = os.path.join(self.root, sandbox)
            if os.path.isdir(place):
                return False
            if len(os.listdir(self.root)) >= MAX_SANDBOXES:
                raise Refusal(429, "too_many_sandboxes", "there are too many sandboxes")
            os.mkdir(place)
            return True

    def place(self, sandbox):
        place = os.path.join(self.root, sandbox)
        if not os.path.isdir(place):
            raise Refusal(404, "sandbox_not_found", "there is no such sandbox")
        return place

    def end(self, sandbox):
        place = self.place(sandbox)
        with self.lock:
            running = list(self.commands.get(sandbox, ()))
        for process in running:
            kill(process)
        shutil.rmtree(place, ignore_errors=True)

    def resolve(self, sandbox, path):
        """Returns the real path of a file, which must be in the sandbox."""
        place = self.place(sandbox)
        parts = path.split("/")
        if not path.startswith("/") or ".." in parts or "\0" in path or len(path) > 4096:
            raise Refusal(400, "path_not_allowed", "a path must begin with / and have no ..")
        real = os.path.realpath(os.path.join(place, path.lstrip("/")))
        if real != place and not real.startswith(place + os.sep):
            raise Refusal(400, "path_not_allowed", "the path leads out of the sandbox")
        return real

    def read(self, sandbox, path):
        real = self.resolve(sandbox, path)
        try:
            found = os.stat(real)
        except OSError:
            raise Refusal(404, "file_not_found", "there is no such file") from None
        if stat.S_ISDIR(found.st_mode):
            raise Refusal(400, "is_directory", "this is a directory, not a file")
        if not stat.S_ISREG(found.st_mode):
            raise Refusal(400, "not_a_file", "this is a pipe, a socket or a device")
        if found.st_size > MAX_FILE_BYTES:
            raise Refusal(413, "too_large", f"files of more than {MAX_FILE_BYTES} bytes are not read")
        with open(real, "rb") as file:
            return file.read(MAX_FILE_BYTES + 1), found.st_mtime

    def write(self, sandbox, path, content, if_match, if_none_match):
        """Replaces a file at once, if it is still the one that the caller knows."""
        if len(content) > MAX_FILE_BYTES:
            raise Refusal(413, "too_large", f"files of more than {MAX_FILE_BYTES} bytes are not written")
        real = self.resolve(sandbox, path)
        if os.path.isdir(real):
            raise Refusal(400, "is_directory", "this is a directory, not a file")
        with self.lock:
            try:
                known = etag(self.read(sandbox, path)[0])
            except Refusal as refusal:
                if refusal.code != "file_not_found":
                    raise
                known = None
            if (if_match is not None and if_match != known) or (if_none_match == "*" and known is not None):
                raise Refusal(412, "changed", "the file is another one by now")
            try:
                os.makedirs(os.path.dirname(real), exist_ok=True)
                handle, temporary = tempfile.mkstemp(dir=os.path.dirname(real), prefix=".new-")
                with os.fdopen(handle, "wb") as file:
                    file.write(content)
                if known is not None:
                    shutil.copymode(real, temporary)
                else:
                    os.chmod(temporary, 0o644)
                os.replace(temporary, real)
            except OSError as error:
                raise Refusal(400, "not_written", f"the file cannot be written: {error.strerror}") from None

    def delete(self, sandbox, path, if_match):
        """Deletes what is at a path, if a file there is still the one that the caller knows."""
        if if_match is None:
            # A directory may have many files, and nobody has to wait until they are gone.
            return self.remove(sandbox, path)
        with self.lock:
            if if_match != etag(self.read(sandbox, path)[0]):
                raise Refusal(412, "changed", "the file is another one by now")
            self.remove(sandbox, path)

    def remove(self, sandbox, path):
        real = self.resolve(sandbox, path)
        # A link itself is deleted, not what it leads to.
        named = os.path.join(self.place(sandbox), path.strip("/"))
        if os.path.islink(named):
            os.unlink(named)
        elif real == self.place(sandbox):
            raise Refusal(400, "path_not_allowed", "the whole sandbox cannot be deleted in this way")
        elif os.path.isdir(real):
            shutil.rmtree(real, ignore_errors=True)
        elif os.path.lexists(real):
            os.unlink(real)
        else:
            raise Refusal(404, "file_not_found", "there is no such file")

    def entries(self, sandbox, path, recursive, complete, most):
        place = self.place(sandbox)
        real = self.resolve(sandbox, path)
        if not os.path.lexists(real):
            raise Refusal(404, "file_not_found", "there is no such file or directory")
        found = []
        base = "" if path == "/" else path.rstrip("/")
        if not os.path.isdir(real):
            found.append(file_entry(base, real))
            return found, False
        waiting = [(real, base)]
        while waiting:
            directory, shown = waiting.pop()
            try:
                names = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in names:
                if recursive and not complete and entry.name == ".git":
                    continue
                inside = os.path.realpath(entry.path)
                if inside != place and not inside.startswith(place + os.sep):
                    continue
                if len(found) >= most:
                    return found, True
                name = f"{shown}/{entry.name}"
                if not name.isprintable() or not is_text(name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append({"path": name, "type": "directory"})
                    if recursive:
                        waiting.append((entry.path, name))
                elif entry.is_file():
                    found.append(file_entry(name, entry.path))
        return found, False

    def search(self, sandbox, text, paths, most):
        matches = []
        for path in paths:
            try:
                content, _ = self.read(sandbox, path)
                lines = content.decode().splitlines()
            except (Refusal, UnicodeDecodeError):
                continue
            for number, line in enumerate(lines, 1):
                if text in line:
                    if len(matches) >= most:
                        return matches, True
                    matches.append({"path": path, "line": number, "text": line[:MAX_LINE_CHARS]})
        return matches, False

    def start(self, sandbox, command):
        place = self.place(sandbox)
        environment = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": place, "LANG": "C.UTF-8", "WORKSPACE": place}
        process = subprocess.Popen(
            ["/bin/sh", "-c", LIMITS, command],
            cwd=place,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        with self.lock:
            self.commands.setdefault(sandbox, set()).add(process)
        return process

    def ended(self, sandbox, process):
        with self.lock:
            self.commands.get(sandbox, set()).discard(process)


def kill(process):
    """Kills a command with all processes of its group."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def etag(content):
    return '"' + hashlib.sha256(content).hexdigest() + '"'


def file_entry(path, real):
    """Describes a file, with its size unless it has gone meanwhile."""
    entry = {"path": path, "type": "file"}
    try:
        entry["size"] = os.stat(real).st_size
    except OSError:
        pass
    return entry


def is_text(name):
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return "\\" not in name


def number(text, least, most):
    if not isinstance(text, int) and not (isinstance(text, str) and re.fullmatch(r"[0-9]{1,9}", text)):
        raise Refusal(400, "invalid", "a whole number was expected")
    return max(least, min(int(text), most))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    sandboxes = None
    token = ""

    def log_message(self, *_):
        """The commands of others do not belong into a log."""

    def answer(self, status, body=b"", kind="application/json", headers=()):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def serve(self):
        try:
            body = self.body()
            given = self.headers.get("Authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {self.token}".encode()):
                raise Refusal(401, "unauthorized", "the token is missing or wrong")
            self.dispatch(body)
        except Refusal as refusal:
            body = json.dumps({"code": refusal.code, "message": refusal.message}).encode()
            self.answer(refusal.status, body)

    do_GET = do_PUT = do_POST = do_DELETE = serve

    def body(self):
        length = self.headers.get("Content-Length", "0")
        if "Transfer-Encoding" in self.headers or not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True
            raise Refusal(413, "too_large", f"a request has at most {MAX_BODY_BYTES} bytes")
        return self.rfile.read(int(length))

    def dispatch(self, body):
        url = urlsplit(self.path)
        place = PLACE.fullmatch(url.path)
        if place is None:
            raise Refusal(404, "not_found", "there is nothing at this address")
        sandbox, part = place.groups()
        query = {name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        path = query.get("path", "/")
        match (self.command, part):
            case ("PUT", None):
                created = self.sandboxes.create(sandbox)
                self.answer(201 if created else 200, json.dumps({"id": sandbox}).encode())
            case ("DELETE", None):
                self.sandboxes.end(sandbox)
                self.answer(204)
            case ("GET", "files"):
                content, modified = self.sandboxes.read(sandbox, path)
                headers = [("ETag", etag(content)), ("Last-Modified", formatdate(modified, usegmt=True))]
                self.answer(200, content, "application/octet-stream", headers)
            case ("PUT", "files"):
                known = self.headers.get("If-Match"), self.headers.get("If-None-Match")
                self.sandboxes.write(sandbox, path, body, *known)
                self.answer(204)
            case ("DELETE", "files"):
                self.sandboxes.delete(sandbox, path, self.headers.get("If-Match"))
                self.answer(204)
            case ("GET", "entries"):
                most = number(query.get("max", str(MAX_ENTRIES)), 1, MAX_ENTRIES)
                flags = query.get("recursive") == "true", query.get("all") == "true"
                entries, truncated = self.sandboxes.entries(sandbox, path, *flags, most)
                self.answer(200, json.dumps({"entries": entries, "truncated": truncated}).encode())
            case ("POST", "search"):
                asked = document(body)
                text, paths = asked.get("text"), asked.get("paths")
                if not isinstance(text, str) or not text or not isinstance(paths, list):
                    raise Refusal(400, "invalid", "`text` and `paths` must be given")
                paths = [path for path in paths if isinstance(path, str)]
                matches, truncated = self.sandboxes.search(sandbox, text, paths, number(asked.get("max"), 1, MAX_ENTRIES))
                self.answer(200, json.dumps({"matches": matches, "truncated": truncated}).encode())
            case ("POST", "commands"):
                asked = document(body)
                command = asked.get("command")
                if not isinstance(command, str) or "\0" in command:
                    raise Refusal(400, "invalid", "`command` must be a text without zero characters")
                self.run(sandbox, command, number(asked.get("timeout_s"), 1, MAX_TIMEOUT_S))
            case _:
                raise Refusal(405, "not_allowed", "this method is not for this address")

    def run(self, sandbox, command, timeout):
        process = self.sandboxes.start(sandbox, command)
        try:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            self.event("end", self.follow(process, time.monotonic() + timeout))
        except OSError:
            # The caller has gone, which ends the command.
            pass
        finally:
            self.close_connection = True
            kill(process)
            process.wait()
            process.stdout.close()
            self.sandboxes.ended(sandbox, process)

    def follow(self, process, deadline):
        """Passes the output of a command on until it ends. Returns the data of the last event."""
        pipe = process.stdout.fileno()
        os.set_blocking(pipe, False)
        rest = b""
        total = 0
        spoken = time.monotonic()
        has_output = True
        while True:
            ended = process.poll() is not None
            watched = [self.connection] + ([pipe] if has_output else [])
            ready, _, _ = select.select(watched, [], [], 0 if ended else 0.05)
            if self.connection in ready and not self.connection.recv(1):
                raise ConnectionError("the caller has gone")
            piece = None
            if pipe in ready:
                piece = os.read(pipe, 16 * 1024)
                has_output = bool(piece)
            if piece:
                total += len(piece)
                text, rest = decoded(rest + piece)
                self.event("output", {"text": text})
                spoken = time.monotonic()
                if total > MAX_OUTPUT_BYTES:
                    kill(process)
                    return {"killed": f"it wrote more than {MAX_OUTPUT_BYTES} bytes"}
                if not ended:
                    if time.monotonic() < deadline:
                        continue
                elif has_output:
                    continue
            if ended:
                if rest:
                    self.event("output", {"text": rest.decode(errors="replace")})
                code = process.returncode
                return {"exit_code": code} if code >= 0 else {"signal": -code}
            if time.monotonic() >= deadline:
                kill(process)
                return {"timed_out": True}
            if time.monotonic() - spoken >= HEARTBEAT_S:
                self.wfile.write(b": still running\n\n")
                self.wfile.flush()
                spoken = time.monotonic()

    def event(self, name, data):
        self.wfile.write(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())
        self.wfile.flush()


def document(body):
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError):
        asked = None
    if not isinstance(asked, dict):
        raise Refusal(400, "invalid", "the body must be a JSON object")
    return asked


def decoded(data):
    """Returns the text in `data`, and the bytes at its end that wait for the rest of their character."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            length = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if length > back:
                return data[:-back].decode(errors="replace"), data[-back:]
            break
        if byte < 0x80:
            break
    return data.decode(errors="replace"), b""


def main():
    parser = argparse.ArgumentParser(description="A sandbox service for trying out. It isolates nothing.")
    parser.add_argument("--port", type=int, default=8700, help="the port on 127.0.0.1; 0 for any free one")
    parser.add_argument("--root", default="sandboxes", help="the directory with the sandboxes")
    arguments = parser.parse_args()
    Handler.token = os.environ.get("SANDBOX_TOKEN", "")
    if not Handler.token:
        raise SystemExit("set SANDBOX_TOKEN to a secret that callers must send as `Authorization: Bearer ...`")
    Handler.sandboxes = Sandboxes(arguments.root)
    server = ThreadingHTTPServer(("127.0.0.1", arguments.port), Handler)
    server.daemon_threads = True
    print(f"listens on http://127.0.0.1:{server.server_port}; for trying out: commands are not isolated", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
