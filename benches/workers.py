#!/usr/bin/env python3
"""The throughput of one, two and three worker processes with equal shares of the processors, on one Postgres.

Usage: workers.py --server PROGRAM [--share 0.15] [--seconds 15] [--clients 64]

Needs the rights to make control groups (root), and the programs of Postgres. One process has the role `api` and admits the runs;
each worker is in a control group of its own that may use `share` of one processor. A run is one answer of a scripted model.
Prints the finished runs per second and the ratio to one worker, and what Postgres and the process with the role `api` used.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
from parts import Part, cpu_seconds, free_port, postgres  # noqa: E402

PERIOD_US = 100_000

CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"

[storage]
url = "postgres://adjutant@127.0.0.1:{database}/postgres"

[cluster]
role = "{role}"

[log]
filter = "warn"

[providers.scripted]
kind = "scripted"

[agents.agent]
model = "scripted:lab"
"""


class Group:
    """A control group with a share of one processor, of version 1 or 2."""

    def __init__(self, name, share):
        quota = int(PERIOD_US * share)
        root = Path("/sys/fs/cgroup")
        is_second = (root / "cgroup.controllers").exists()
        self.folder = (root if is_second else root / "cpu") / name
        if is_second:
            (root / "cgroup.subtree_control").write_text("+cpu")
        self.folder.mkdir()
        if is_second:
            (self.folder / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.folder / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.folder / "cpu.cfs_quota_us").write_text(str(quota))

    def add(self, process):
        (self.folder / "cgroup.procs").write_text(str(process))

    def remove(self):
        self.folder.rmdir()


def server(folder, program, role, number, database):
    port = free_port()
    file = folder / f"{role}-{number}.toml"
    file.write_text(CONFIGURATION.format(port=port, database=database, role=role))
    return Part(f"{role} {number}", [program, "serve", "--config", file], port, folder / f"{role}-{number}.log")


async def waits(port):
    """Starts a run and waits for its end."""
    script = json.dumps({"script": [{"text": "hello"}]})
    body = json.dumps({"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": script}]}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /runs/wait HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\ncontent-type: application/json\r\n"
    writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    answer = await reader.read()
    writer.close()
    assert b" 200 " in answer[:20], answer[:300]


async def client(port, end, finished):
    while time.monotonic() < end:
        await waits(port)
        finished.append(time.monotonic())


async def measure(api, database, seconds, clients):
    """Returns the runs per second, and the processor time per run of Postgres and of the process that admits."""
    begin = time.monotonic() + 3
    finished = []
    end = begin + seconds
    clients = [asyncio.create_task(client(api.port, end, finished)) for _ in range(clients)]
    await asyncio.sleep(max(0, begin - time.monotonic()))
    before = cpu_seconds(database.process.pid), cpu_seconds(api.process.pid)
    await asyncio.sleep(max(0, end - time.monotonic()))
    after = cpu_seconds(database.process.pid), cpu_seconds(api.process.pid)
    count = sum(1 for at in finished if begin <= at <= end)
    await asyncio.gather(*clients)
    per_run = [(now - then) / max(count, 1) * 1000 for now, then in zip(after, before)]
    return count / seconds, *per_run


async def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", required=True, type=Path, metavar="PROGRAM", help="the program of the server")
    options.add_argument("--postgres", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="the folder of its programs")
    options.add_argument("--share", type=float, default=0.15, help="the part of a processor that each worker may use")
    options.add_argument("--seconds", type=float, default=15, help="the time of each measurement")
    options.add_argument("--clients", type=int, default=64)
    given = options.parse_args()
    given.server = given.server.resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        database = postgres(folder, given.postgres, free_port())
        parts, groups = [database], []
        try:
            await database.start()
            await database.is_ready()
            api = server(folder, given.server, "api", 0, database.port)
            parts.append(await api.start())
            await api.is_ready()
            first = None
            for count in (1, 2, 3):
                worker = server(folder, given.server, "worker", count, database.port)
                parts.append(await worker.start())
                await worker.is_ready()
                groups.append(Group(f"adjutant-worker-{os.getpid()}-{count}", given.share))
                groups[-1].add(worker.process.pid)
                rate, of_database, of_api = await measure(api, database, given.seconds, given.clients)
                first = first or rate
                print(
                    f"{count} x {given.share} of a processor: {rate:.1f} runs/s, {rate / first:.2f}x; "
                    f"Postgres {of_database:.2f} ms and `api` {of_api:.2f} ms of processor time per run",
                    flush=True,
                )
        finally:
            for part in reversed(parts):
                part.kill()
            for group in groups:
                group.remove()


asyncio.run(main())
