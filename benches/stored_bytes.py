#!/usr/bin/env python3
"""The bytes that a run takes in the database, by table and index.

Usage: stored_bytes.py --server PROGRAM [options]

Starts a server of its own, has `--runs` runs of one thread one after the other, and compares the database after a tenth of them with
the database at the end. A run has one answer of the model or, with `--steps`, as many calls of a tool before it. SQLite is read by its
program `sqlite3`, whose table `dbstat` counts pages. With `--database URL` it is a Postgres without tables, read by `psql`; its tables
are rewritten before they are counted (`vacuum full`), so that rows that were changed count once.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
from parts import ask, free_port  # noqa: E402

CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"

[storage]
url = "{database}"

[log]
filter = "warn"

[providers.scripted]
kind = "scripted"

[tools.lookup]
kind = "builtin"
builtin = "lookup"

[agents.plain]
model = "scripted:lab"
system_prompt = "You answer."
tools = ["lookup"]
"""

SQLITE = "select name, sum(payload), sum(pgsize) from dbstat group by name"
POSTGRES = """\
select relname, pg_relation_size(c.oid), pg_relation_size(c.oid) from pg_class c \
where relnamespace = 'public'::regnamespace and relkind in ('r', 'i')"""


def wait_until_ready(port):
    """Waits for the server."""
    for _ in range(100):
        try:
            ask(port, "/ok")
            return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.1)
    sys.exit("the server does not start")


def sizes(database, file):
    """Returns the payload and the bytes of pages of each table and index, by name."""
    if file is not None:
        command = ["sqlite3", str(file), SQLITE]
    else:
        subprocess.run(["psql", database, "-qc", "vacuum full"], check=True)
        command = ["psql", database, "-Atc", POSTGRES]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    rows = (line.split("|") for line in lines)
    return {name: (int(payload), int(pages)) for name, payload, pages in rows}


def script(number, steps):
    """Returns the message of a run: what the model says to it."""
    calls = [{"tool_calls": [{"name": "lookup", "args": {"query": f"question {number} {step}"}}]} for step in range(steps)]
    text = f"answer number {number}, of a length that one sentence of an assistant has, more or less."
    return text, json.dumps({"script": [*calls, {"text": text}]}, separators=(",", ":"))


def play(port, thread, numbers, steps):
    """Has a run for each number."""
    for number in numbers:
        text, message = script(number, steps)
        body = {"assistant_id": "plain", "input": {"messages": [{"role": "user", "content": message}]}}
        values = ask(port, f"/threads/{thread}/runs/wait", body)
        said = values["messages"][-1]["content"]
        if said != text:
            sys.exit(f"run {number} has answered {said!r}")


def report(before, after, runs):
    """Prints what a run has added to each table and index."""
    print(f"{'bytes of a run':34} {'payload':>9} {'pages':>9}")
    total = [0.0, 0.0]
    for name, size in sorted(after.items(), key=lambda entry: -entry[1][1]):
        grown = [(new - old) / runs for new, old in zip(size, before.get(name, (0, 0)))]
        if any(grown):
            print(f"{name:34} {grown[0]:9.1f} {grown[1]:9.1f}")
            total = [sum(pair) for pair in zip(total, grown)]
    print(f"{'together':34} {total[0]:9.1f} {total[1]:9.1f}")


def main():
    """Measures, and prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", required=True, type=Path, metavar="PROGRAM", help="the program of the server")
    parser.add_argument("--database", metavar="URL", help="a Postgres instead of SQLite")
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--steps", type=int, default=0, help="calls of a tool in each run")
    options = parser.parse_args()
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        file = None if options.database else Path(folder, "adjutant.db")
        database = options.database or f"sqlite://{file}"
        configuration = Path(folder, "adjutant.toml")
        configuration.write_text(CONFIGURATION.format(port=port, database=database))
        server = subprocess.Popen([options.server.resolve(), "serve", "--config", str(configuration)], cwd=folder)
        try:
            wait_until_ready(port)
            thread = ask(port, "/threads", {})["thread_id"]
            first = options.runs // 10
            play(port, thread, range(first), options.steps)
            before = sizes(database, file)
            play(port, thread, range(first, options.runs), options.steps)
            after = sizes(database, file)
        finally:
            server.terminate()
            server.wait()
    report(before, after, options.runs - first)


if __name__ == "__main__":
    main()
