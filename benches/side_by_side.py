#!/usr/bin/env python3
"""The server and a bare one, measured side by side.

Usage: side_by_side.py --server PROGRAM --agentbench PROGRAM [options]

`agentbench` is a load client, a fake model and a bare server: an axum loop with one awaited SQLite commit per step and no product
around it. For each row of the table both servers are asked one after the other, `--rounds` times, each with a new database. The table
has the medians, and their ratios, which say more than the milliseconds: client, model and both servers share the processors.

With `--database URL` the server has another database than SQLite, which keeps what is stored from one measurement to the next; the
processor time of the processes `--also PID`, with their children, counts to that of the server.

With `--write` the table replaces the one in `docs/testing-and-performance.md`, or, with a database of Postgres, the second one there. A
short table of both replaces that in `README.md`. With `--short` nothing is measured: the short table is made of the figures that the page
has, and printed, and with `--write` written. With `--only WORD` there are only the rows whose names contain the word; they are printed and
not written. With `--further` there are further rows, and none is written: a long history, streams that were on time, the start and the
memory of an idle server. With `--keys` the server asks for an API key, which the client must send as `x-api-key` if the variable
`AGENTBENCH_KEY` has one: compare with a run without.
"""

import argparse
import contextlib
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "proof"))
from parts import free_port  # noqa: E402

# The page with all figures, and the document with a few of them, between two marks.
PAGE = ROOT / "docs" / "testing-and-performance.md"
README = ROOT / "README.md"
MARKS = ("<!-- figures -->\n", "<!-- end of figures -->\n")
HEADINGS = {
    "sqlite": "| What | adjutant | bare | ratio |",
    "postgres": "| What | adjutant | bare, on SQLite | ratio |",
}
SHORT_HEADING = "| What | bare | SQLite | Postgres | ratios |"
KEY = "adj_0123456789abcdef0123456789abcdef"
TOKENS = 500
STREAMS = 1000
# The runs of a long thread, each with two messages.
RUNS = 200

CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"

[storage]
url = "{database}"

[log]
filter = "warn"

[providers.lab]
kind = "openai"
base_url = "{model}/v1"
api_key = "lab"

[tools.lookup]
kind = "http"
description = "Look a fact up."
url = "{model}/tools/lookup"
parameters = {{ type = "object", properties = {{ query = {{ type = "string" }} }}, required = ["query"] }}
after_crash = "repeat"

[tools.send_email]
kind = "http"
description = "Send an email."
url = "{model}/tools/send_email"
parameters = {{ type = "object", properties = {{ to = {{ type = "string" }}, body = {{ type = "string" }} }}, required = ["to", "body"] }}
after_crash = "ask"

[agents.plain]
model = "lab:mock"
system_prompt = "You are plain."
tools = ["lookup"]

[[agents.plain.subagents]]
name = "researcher"
description = "Researches one question in depth."
system_prompt = "You are the researcher."
tools = ["lookup"]

[agents.agent]
model = "lab:mock"
system_prompt = "You ask before you send."
tools = ["lookup", "send_email"]
interrupt_on = {{ send_email = {{ allowed_decisions = ["approve", "edit", "reject"] }} }}
"""

AUTHENTICATION = """
[auth]
[[auth.keys]]
name = "bench"
user = "ada"
tenant = "acme"
roles = ["user"]
key_file = "{file}"
"""


@dataclass
class Metric:
    """A figure of a measurement: how it is read from the result of the client, and how it is written."""

    read: callable
    text: str
    more_is_better: bool = False


def p50(name):
    """Returns the metric of a median time in milliseconds."""
    return Metric(lambda result: result["lat"][name]["p50"], "{} ms")


RATE = Metric(lambda result: result["per_s"], "{}/s", more_is_better=True)
CPU = Metric(lambda result: result["server"]["cpu_ms_per_ok"], "{} ms CPU")
ON_TIME = Metric(lambda result: result["params"]["on_time"], "{}", more_is_better=True)
START = Metric(lambda result: result["cold_start_ms"], "{} ms")
IDLE_MEMORY = Metric(lambda result: result["idle_rss_mb"], "{} MB")
CPU_OF_TOKEN = Metric(lambda result: result["server"]["cpu_ms_per_ok"] * 1000 / TOKENS, "{} µs CPU")


@dataclass
class Row:
    """A row of the table."""

    what: str
    arguments: str
    metrics: list
    assistant: str = field(default="plain")
    # What makes the thread that is measured; none if each run has a thread of its own.
    before: str = field(default="")
    # The names of its first metrics in the short table; none if it is not there.
    short: list = field(default_factory=list)


ROWS = [
    Row(
        "one-step run with its thread, `runs/wait`, 1 client: p50",
        "--scenario wait --clients 1",
        [p50("run_ms")],
        short=["run of one step, with its thread"],
    ),
    Row(
        "the same, 16 clients: runs; CPU of a run",
        "--scenario wait --clients 16",
        [RATE, CPU],
        short=["such runs of 16 clients"],
    ),
    Row(
        "ten model/tool steps (a tool behind HTTP), 1 client: p50",
        "--scenario loop --clients 1",
        [p50("run_ms")],
        short=["run of ten model/tool steps"],
    ),
    Row("the same, 8 clients: CPU of a run", "--scenario loop --clients 8", [CPU]),
    Row("one delegation: p50", "--scenario delegate --n 1 --clients 1", [p50("run_ms")]),
    Row(
        "four delegations side by side: p50",
        "--scenario delegate --n 4 --clients 1",
        [p50("run_ms")],
        short=["run with four delegations side by side"],
    ),
    Row("the same, 8 clients: CPU of a run", "--scenario delegate --n 4 --clients 8", [CPU]),
    Row(
        f"stream of {TOKENS} tokens: first event; CPU of a token",
        f"--scenario stream --chunks {TOKENS} --clients 1",
        [p50("first_event_ms"), CPU_OF_TOKEN],
        short=["first event of a streamed answer"],
    ),
    Row(
        "run to an approval; its resume: p50",
        "--scenario resume --clients 1",
        [p50("to_interrupt_ms"), p50("resume_ms")],
        "agent",
        short=["run up to an approval", "the run that the approval continues"],
    ),
    Row("the same, 8 clients: CPU for both", "--scenario resume --clients 8", [CPU], "agent"),
    Row(
        f"{STREAMS:,} streams opened at once: first token, p50",
        f"--scenario streams-open --n {STREAMS} --timeout 90",
        [p50("first_token_ms")],
    ),
    Row("create and get a thread, 16 clients", "--scenario threads --clients 16", [RATE]),
]

# The start of the server is measured without the load client.
COLD = Row("start to the first 200; memory 3 s later", "", [START, IDLE_MEMORY])

FURTHER = [
    Row(
        f"history of a thread with {2 * RUNS} messages, limit 10: p50",
        f"--scenario history --limit 10 --messages {2 * RUNS} --clients 1",
        [p50("history_ms")],
        before=f"--scenario long-thread --k {RUNS}",
    ),
    Row(
        f"{STREAMS:,} streams opened at once: at most a tenth late",
        f"--scenario streams-open --n {STREAMS} --timeout 90",
        [ON_TIME],
    ),
    COLD,
]


@contextlib.contextmanager
def running(command, cwd, ready, seconds=30, **more):
    """Runs a program while it is needed. It is ready when the URL answers, after this many seconds at most."""
    with open(Path(cwd) / "log.txt", "ab") as log:
        process = subprocess.Popen(command, cwd=cwd, stdout=log, stderr=log, **more)
    try:
        wait_until_ready(process, ready, Path(cwd) / "log.txt", seconds)
        yield process
    finally:
        process.terminate()
        process.wait()


def wait_until_ready(process, url, log, seconds):
    """Waits until a server answers."""
    deadline = time.monotonic() + seconds
    while process.poll() is None and time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url, timeout=1)
        except urllib.error.HTTPError:
            return
        except OSError:
            time.sleep(0.05)
            continue
        return
    sys.exit(f"it does not start: {log.read_text()}")


class Comparison:
    """The programs, and the fake model that both servers ask."""

    def __init__(self, options, model):
        self.options = options
        self.model = model

    def measure(self, row, folder, server):
        """Returns what the client says about one server."""
        if row is COLD:
            return self.start(folder, server)
        with running_server(self, server, folder) as (base, process):
            counted = [process.pid, *self.options.also] if server != "bare" else [process.pid]

            def load(arguments):
                command = [self.options.agentbench, "load", "--base", base, "--pid", ",".join(map(str, counted))]
                command += arguments + ["--secs", str(self.options.secs), "--assistant", row.assistant]
                return self.ask(f"{row.what}, the {server} server", command)

            arguments = row.arguments.split()
            if row.before:
                arguments += ["--thread", load(row.before.split())["params"]["thread"]]
            return load(arguments)

    def start(self, folder, server):
        """Returns how long one server takes to start, and its memory then."""
        base, command = server_command(self, server, folder)
        cold = [self.options.agentbench, "cold", "--cmd", shlex.join(map(str, command)), "--url", f"{base}/ok"]
        return self.ask(f"{COLD.what}, the {server} server", cold, cwd=folder)

    def ask(self, what, command, **more):
        """Returns the result that a command of the client prints."""
        client = subprocess.run(command, capture_output=True, text=True, **more)
        if client.returncode:
            sys.exit(f"{what}: {client.stderr}")
        result = json.loads(client.stdout)
        if result.get("errors"):
            sys.exit(f"{what}: {result['errors']} errors: {client.stderr}")
        return result

    def values(self, row):
        """Returns the medians of each metric of both servers."""
        results = {"adjutant": [], "bare": []}
        for _ in range(self.options.rounds):
            for server, all_of in results.items():
                with tempfile.TemporaryDirectory() as folder:
                    all_of.append(self.measure(row, folder, server))
        return {
            server: [statistics.median(map(metric.read, all_of)) for metric in row.metrics]
            for server, all_of in results.items()
        }


def server_command(comparison, server, folder):
    """Returns the address of one of the two servers, and the command that starts it with a new database."""
    options = comparison.options
    port = free_port()
    base = f"http://127.0.0.1:{port}"
    if server == "bare":
        command = [options.agentbench, "bare", "--port", str(port), "--sync", "full", "--db", f"{folder}/bare.db"]
        return base, [*command, "--llm", f"{comparison.model}/v1", "--threads", "2"]
    text = CONFIGURATION.format(port=port, model=comparison.model, database=options.database)
    if options.keys:
        file = Path(folder) / "key"
        file.write_text(KEY)
        text += AUTHENTICATION.format(file=file)
    configuration = Path(folder) / "adjutant.toml"
    configuration.write_text(text)
    return base, [options.server, "serve", "--config", str(configuration)]


@contextlib.contextmanager
def running_server(comparison, server, folder):
    """Runs one of the two servers with a new database."""
    base, command = server_command(comparison, server, folder)
    with running(command, folder, f"{base}/ok") as process:
        yield base, process


def number(value):
    """Returns a figure with three digits at most, as in the documents."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}".rstrip("0").rstrip(".")


def line(row, values):
    """Returns the row as a line of the table."""

    def cell(server):
        texts = [metric.text.format(number(value)) for metric, value in zip(row.metrics, values[server])]
        return "; ".join(texts)

    def ratio(metric, own, bare):
        of, to = (bare, own) if metric.more_is_better else (own, bare)
        return f"{of / to:.1f}" if to else ""

    ratios = map(ratio, row.metrics, values["adjutant"], values["bare"])
    return f"| {row.what} | {cell('adjutant')} | {cell('bare')} | {'; '.join(ratios)} |"


def replaced(text, heading, lines):
    """Returns a document with other rows in a table."""
    before, _, rest = text.partition(heading + "\n")
    rule, _, rest = rest.partition("\n")
    after = rest.split("\n")
    while after and after[0].startswith("|"):
        after.pop(0)
    return before + "\n".join([heading, rule, *lines, *after])


def figures(text, heading):
    """Returns the cells of a table behind the first one, by that, with the texts of several metrics apart."""
    _, _, rest = text.partition(heading + "\n")
    rows = itertools.takewhile(lambda line: line.startswith("|"), rest.splitlines()[1:])
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]
    return {what: [cell.split("; ") for cell in others] for what, *others in cells}


def short_table(text):
    """Returns the short table of a page with both tables."""
    sqlite = figures(text, HEADINGS["sqlite"])
    postgres = figures(text, HEADINGS["postgres"])
    lines = [SHORT_HEADING, "|---|---|---|---|---|"]
    for row in ROWS:
        for at, name in enumerate(row.short):
            own, bare, ratio = (cell[at] for cell in sqlite[row.what])
            own_of_postgres, _, ratio_of_postgres = (cell[at] for cell in postgres[row.what])
            lines.append(f"| {name} | {bare} | {own} | {own_of_postgres} | {ratio}; {ratio_of_postgres} |")
    return lines


def write_short_table(lines):
    """Replaces what is between the marks."""
    before, begin, rest = README.read_text().partition(MARKS[0])
    _, end, after = rest.partition(MARKS[1])
    if not end:
        sys.exit(f"{README} has no marks")
    README.write_text(before + begin + "\n".join(lines) + "\n" + end + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", type=Path, help="the program of the server")
    parser.add_argument("--agentbench", type=Path, help="the load client, with the fake model and the bare server")
    parser.add_argument("--database", default="sqlite://adjutant.db", help="the URL of the server's database")
    parser.add_argument(
        "--also", type=int, nargs="*", default=[], help="a further process that counts to the server, such as that of its database"
    )
    parser.add_argument("--keys", action="store_true", help="the server asks for an API key")
    parser.add_argument("--secs", type=float, default=8, help="the duration of one measurement")
    parser.add_argument("--rounds", type=int, default=3, help="the measurements of each server for a row")
    parser.add_argument("--only", default="", help="a word in the names of the rows to measure")
    parser.add_argument("--further", action="store_true", help="measure further rows, and write none")
    parser.add_argument("--write", action="store_true", help="replace the tables in the documents")
    parser.add_argument("--short", action="store_true", help="print the short table of the figures in the page and end")
    parser.add_argument("--rows", action="store_true", help="print the names of the rows and end")
    options = parser.parse_args()
    if options.rows:
        print("\n".join(row.what for row in ROWS))
        return
    if options.short:
        lines = short_table(PAGE.read_text())
        print("\n".join(lines))
        if options.write:
            write_short_table(lines)
        return
    if not options.server or not options.agentbench:
        parser.error("--server and --agentbench must be given")
    options.server = options.server.resolve()
    options.agentbench = options.agentbench.resolve()
    if options.keys:
        os.environ.setdefault("AGENTBENCH_KEY", KEY)
    heading = HEADINGS["postgres" if options.database.startswith("postgres") else "sqlite"]
    rows = [row for row in (ROWS + FURTHER if options.further else ROWS) if options.only in row.what]
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        model = f"http://127.0.0.1:{free_port()}"
        command = [options.agentbench, "llm", "--port", model.rsplit(":", 1)[1], "--threads", "2"]
        with running(command, folder, model):
            comparison = Comparison(options, model)
            print(heading)
            for row in rows:
                lines.append(line(row, comparison.values(row)))
                print(lines[-1], flush=True)
    if options.write and not options.only and not options.further:
        PAGE.write_text(replaced(PAGE.read_text(), heading, lines))
        write_short_table(short_table(PAGE.read_text()))


if __name__ == "__main__":
    main()
