#!/usr/bin/env python3
"""The work of Postgres for a run, for a step and for idle servers: the constants of "How far one database goes" in docs/scaling.md.

Usage: database_work.py --server PROGRAM [--runs 300] [--steps 10] [--idle 120] [--servers 1] [--write FILE]

Starts a Postgres of its own, which logs each message with statements, and servers on it. First nothing happens for `--idle` seconds, whose messages
are also subtracted from those of the runs. Then there are `--runs` runs of one answer of a scripted model, each on a new thread, as
many with `--steps` calls of a built-in tool before it, and as many with calls of a tool behind HTTP; the differences are those of the steps.
As many have a breakpoint that is never met, so that their input is stored in a transaction of its own.
Their processor time is measured at the end, when nothing is logged and 16 clients start runs. Prints a table, and with `--write` a file for
simulate.py, whose steps are those with the tool behind HTTP.

A message has one statement or several. `begin` and what sets the tenant of the transaction are one statement here, and statements that are prepared
are counted when they are executed.
"""

import argparse
import asyncio
import json
import re
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
from parts import Part, ask, cpu_seconds, free_port, postgres, psql  # noqa: E402

CLIENTS = 16
# After its start a server looks for what others have left.
CALM_S = 15
LINE = "adjutant LOG:  "
# The values of a message with several statements.
LITERAL = re.compile(r"e'(?:[^'\\]|\\.|'')*'")
# What is not counted: the settings of a transaction, and statements that a message only prepares.
UNCOUNTED = ("set local ", "prepare adjutant_", "deallocate adjutant_")

CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"

[storage]
url = "postgres://adjutant@127.0.0.1:{database}/postgres"

[log]
filter = "warn"

[providers.scripted]
kind = "scripted"

[tools.lookup]
kind = "builtin"
builtin = "lookup"

[tools.record]
kind = "http"
description = "Writes an entry."
url = "http://127.0.0.1:{tool}/record"
parameters = {{ type = "object", properties = {{ query = {{ type = "string" }} }}, required = ["query"] }}

[agents.agent]
model = "scripted:lab"
system_prompt = "You answer."
tools = ["lookup", "record"]
"""


def statements_in(text):
    """Returns the number of statements of a message."""
    parts = (part.strip() for part in LITERAL.sub("", text).split(";"))
    return sum(1 for part in parts if part and not part.startswith(UNCOUNTED))


class Database:
    """A Postgres that logs the messages of its sessions, with the names of their programs."""

    def __init__(self, folder, programs):
        self.programs = programs
        self.part = postgres(folder, programs, free_port())
        for setting in ("log_statement=all", "log_line_prefix=%a ", "max_wal_size=16GB", "checkpoint_timeout=1h"):
            self.part.command += ["-c", setting]

    def ask(self, sql):
        return psql(self.programs, self.part.port, sql)

    def messages(self):
        """Returns the messages of the servers so far, their statements, and how many messages end with a commit."""
        messages = statements = commits = 0
        with open(self.part.log, errors="replace") as log:
            for line in log:
                kind, _, text = line.removeprefix(LINE).partition(": ")
                if line.startswith(LINE) and (kind == "statement" or kind.startswith("execute ")):
                    messages += 1
                    statements += statements_in(text)
                    commits += text.strip().rstrip(";").lower().endswith("commit")
        return messages, statements, commits

    def count(self):
        """Returns what has been done so far."""
        each = "select string_agg(format('select count(*) as n from %I', tablename), ' union all ') from pg_tables where schemaname = 'public'"
        rows = self.ask(f"select sum(n) from ({self.ask(each)}) as found")
        space = self.ask(
            "select sum(pg_total_relation_size(oid)) from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r'"
        )
        log = self.ask("select pg_current_wal_lsn() - '0/0'")
        messages, statements, commits = self.messages()
        counted = {"messages": messages, "statements": statements, "commits": commits}
        return {"rows": float(rows), "space": float(space), "log": float(log), **counted}

    def logs_nothing(self):
        # The option of the command line precedes any file, but not the role.
        self.ask("alter role adjutant set log_statement = 'none'")


class Tool(BaseHTTPRequestHandler):
    """A tool that does nothing."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", "4")
        self.end_headers()
        self.wfile.write(b'"ok"')

    def log_message(self, *_):
        pass


def starts_tool():
    """Returns the port of a service with the tool."""
    service = ThreadingHTTPServer(("127.0.0.1", 0), Tool)
    threading.Thread(target=service.serve_forever, daemon=True).start()
    return service.server_address[1]


def server(folder, program, number, database, tool):
    port = free_port()
    file = folder / f"server-{number}.toml"
    file.write_text(CONFIGURATION.format(port=port, database=database, tool=tool))
    return Part(f"server {number}", [program, "serve", "--config", file], port, folder / f"server-{number}.log")


def run(port, steps, tool, settings=()):
    """Has a run on a new thread, with so many calls of a tool, and with these settings."""
    calls = [{"tool_calls": [{"name": tool, "args": {"query": f"question {step}"}}]} for step in range(steps)]
    text = "This answer has forty characters or so.."
    script = json.dumps({"script": [*calls, {"text": text}]}, separators=(",", ":"))
    thread = ask(port, "/threads", {})["thread_id"]
    body = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": script}]}, **dict(settings)}
    values = ask(port, f"/threads/{thread}/runs/wait", body)
    if values["messages"][-1]["content"] != text:
        sys.exit(f"a run has answered {values['messages'][-1]['content']!r}")


def difference(after, before, divisor):
    return {name: (after[name] - before[name]) / divisor for name in after}


async def idle(database, seconds):
    """Returns what happens in a second without any work."""
    await asyncio.sleep(CALM_S)
    before = database.count()
    begun = time.monotonic()
    await asyncio.sleep(seconds)
    return difference(database.count(), before, time.monotonic() - begun)


def play(database, port, runs, work, without):
    """Returns what a run with this work does, less what happens without any."""
    before = database.count()
    begun = time.monotonic()
    for _ in range(runs):
        run(port, *work)
    lasted = time.monotonic() - begun
    done = difference(database.count(), before, runs)
    return {name: value - without[name] * lasted / runs for name, value in done.items()}


def processor_time(database, served, runs, work):
    """Returns the processor seconds of a run, of the server and of Postgres."""
    processes = {"server_cpu": served.process.pid, "database_cpu": database.part.process.pid}
    before = {name: cpu_seconds(process) for name, process in processes.items()}
    with ThreadPoolExecutor(CLIENTS) as clients:
        for done in [clients.submit(run, served.port, *work) for _ in range(runs)]:
            done.result()
    return difference({name: cpu_seconds(process) for name, process in processes.items()}, before, runs)


def report(of_run, of_step, of_effect, of_input, of_idle):
    kinds = [("rows", 1, ""), ("space", 1000, " kB"), ("log", 1000, " kB"), ("messages", 1, ""), ("statements", 1, "")]
    kinds += [("commits", 1, ""), ("server_cpu", 0.001, " ms"), ("database_cpu", 0.001, " ms")]
    print("| What | For each run, with its thread | For each step | With a tool behind HTTP |\n|---|---|---|---|")
    for name, unit, word in kinds:
        print(f"| {name} | " + " | ".join(f"{done[name] / unit:.2f}{word}" for done in (of_run, of_step, of_effect)) + " |")
    print(
        f"\na run whose input has a transaction of its own: {of_input['messages']:.2f} messages more, "
        f"{of_input['commits']:.2f} commits more\n"
        f"without any work: {of_idle['messages']:.2f} messages a second, {of_idle['statements']:.2f} statements, "
        f"{of_idle['commits']:.2f} commits, {of_idle['log'] / 1000:.2f} kB of the write-ahead log"
    )


async def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", required=True, type=Path, metavar="PROGRAM", help="the program of the server")
    options.add_argument("--postgres", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="the folder of its programs")
    options.add_argument("--runs", type=int, default=300)
    options.add_argument("--steps", type=int, default=10)
    options.add_argument("--idle", type=float, default=120.0, metavar="SECONDS")
    options.add_argument("--servers", type=int, default=1, help="how many are idle; with more than one there are no runs")
    options.add_argument("--write", type=Path, metavar="FILE", help="the constants as JSON")
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        database = Database(folder, given.postgres)
        tool = starts_tool()
        parts = [database.part]
        try:
            await database.part.start()
            await database.part.is_ready()
            for number in range(given.servers):
                parts.append(await server(folder, given.server.resolve(), number, database.part.port, tool).start())
                await parts[-1].is_ready()
            served = parts[1]
            of_idle = await idle(database, given.idle)
            if given.servers > 1:
                print(
                    f"{of_idle['messages']:.2f} messages, {of_idle['statements']:.2f} statements and {of_idle['commits']:.2f} commits a second "
                    f"of {given.servers} servers"
                )
                return
            works = {"run": (0, "lookup"), "step": (given.steps, "lookup"), "effect": (given.steps, "record")}
            # The first runs fill caches.
            play(database, served.port, given.runs // 10, works["effect"], of_idle)
            done = {name: play(database, served.port, given.runs, work, of_idle) for name, work in works.items()}
            # No tool is called, so the breakpoint behind the tools is never met.
            apart = play(database, served.port, given.runs, (0, "lookup", {"interrupt_after": ["tools"]}), of_idle)
            of_input = {name: apart[name] - done["run"][name] for name in apart}
            # Sessions take the setting of their role when they begin.
            served.kill()
            database.logs_nothing()
            await served.start()
            await served.is_ready()
            await asyncio.sleep(CALM_S)
            for name, work in works.items():
                done[name] |= processor_time(database, served, given.runs, work)
        finally:
            for part in reversed(parts):
                part.kill()
    of_run = done["run"]
    of_step, of_effect = (difference(done[name], of_run, given.steps) for name in ("step", "effect"))
    report(of_run, of_step, of_effect, of_input, of_idle)
    if given.write:
        given.write.write_text(json.dumps({"run": of_run, "step": of_effect, "idle": of_idle}, indent=2) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
