"""The agent as a configuration of adjutant, and its conversation through the API of a server."""

import json
import os
import queue
import re
import subprocess
import threading
import urllib.request
from pathlib import Path

import scenario

START_S = 120
"""How long the server may take to listen. A debug build on a busy machine is slow."""
RUN_S = 300
"""How long a run may take."""


def converse(provider: str, folder: Path, program: str, storage: str) -> None:
    """Has the whole conversation with a server of its own, whose configuration is in this directory."""
    text = (Path(__file__).parent / "adjutant.toml").read_text()
    (folder / "adjutant.toml").write_text(text.replace("PROVIDER", provider).replace("STORAGE", storage))
    with _Server(program, folder) as base:
        thread = _post(f"{base}/threads", {})["thread_id"]
        for text in scenario.TURNS:
            given = {"messages": [{"role": "user", "content": text}]}
            values = _post(f"{base}/threads/{thread}/runs/wait", {"assistant_id": "main", "input": given})
            if "__error__" in values:
                raise RuntimeError(f"the run of {text!r} failed: {values['__error__']}")


class _Server:
    """A server in a process of its own."""

    def __init__(self, program: str, folder: Path) -> None:
        environment = os.environ | {"ADJUTANT_LOG": "info", "NO_COLOR": "1"}
        self._process = subprocess.Popen(
            [program, "--listen", "127.0.0.1:0"],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: list[str] = []
        self._found: queue.Queue[str | None] = queue.Queue()

    def __enter__(self) -> str:
        threading.Thread(target=self._read, daemon=True).start()
        base = self._found.get(timeout=START_S)
        if base is None:
            raise RuntimeError("the server does not listen:\n" + "".join(self._lines))
        return base

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._lines.append(line)
            address = re.search(r"listening.*?127\.0\.0\.1:(\d+)", line)
            if address:
                self._found.put(f"http://127.0.0.1:{address[1]}")
        self._found.put(None)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()


def _post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=RUN_S) as answer:
        return json.loads(answer.read())
