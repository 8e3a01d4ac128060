#!/usr/bin/env python3
"""The time until another server goes on with the run of one that is gone.

Usage: takeover.py --server PROGRAM [--rounds 5] [--postgres FOLDER]

Starts a Postgres and two servers, and a run at the first one, which calls a tool that does not answer. Then the first server is killed,
terminated, suspended or cut off from the database, and what is measured is the time until the second one calls the tool again. At last
the second server is stopped, and the first one is killed and started again. Ends with an error if a tool is called once more than that, or if
it took longer than is promised.
"""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
import parts  # noqa: E402
from links import Link  # noqa: E402

PATIENCE_S = 60
# The promises: after the end of a process, and after it was suspended or cut off.
MOST_AFTER_END_S = 2
MOST_AFTER_SILENCE_S = 8
# A server that comes back has a lease again after this time.
CALM_S = 5


class HeldTool:
    """A service whose tool answers when it is let go."""

    async def open(self):
        self.calls = asyncio.Queue()
        self.may_answer = asyncio.Event()
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def _serve(self, reader, writer):
        # A connection that is still open at the end is cancelled.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                lines = head.decode().lower().split("\r\n")
                length = next(int(line.split(":")[1]) for line in lines if line.startswith("content-length:"))
                await reader.readexactly(length)
                self.calls.put_nowait(time.monotonic())
                await self.may_answer.wait()
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 6\r\n\r\n\"done\"")
                await writer.drain()
        writer.close()

    async def is_called(self):
        """Returns when the tool is called next."""
        return await asyncio.wait_for(self.calls.get(), PATIENCE_S)


class Pair:
    """Two servers on one Postgres. The first one reaches it over a link."""

    def __init__(self, folder, given, tool):
        self.tool = tool
        self.postgres = parts.postgres(folder, given.postgres, parts.free_port())
        self.link = Link("the first server and postgres", parts.free_port(), self.postgres.port)
        databases = (self.link.address, f"127.0.0.1:{self.postgres.port}")
        program = given.server.resolve()
        self.first, self.second = (
            parts.server(folder, program, number, parts.free_port(), {"database": database, "tools": f"127.0.0.1:{tool.port}"})
            for number, database in enumerate(databases, 1)
        )

    async def start(self):
        await self.link.open()
        for part in (self.postgres, self.first, self.second):
            await part.start()
            await part.is_ready()

    async def is_ready(self, server):
        """Waits until a server is at work again, with its lease."""
        for _ in range(PATIENCE_S * 10):
            with contextlib.suppress(OSError):
                if (await asyncio.to_thread(parts.ask, server.port, "/ready"))["ready"]:
                    return
            await asyncio.sleep(0.1)
        sys.exit(f"{server.name} is not ready")

    async def is_lost(self, fails, heals, heir):
        """Has the first server lose a run. Returns the seconds until the heir calls its tool."""
        await self.is_ready(self.first)
        self.tool.may_answer.clear()
        script = {"script": [{"tool_calls": [{"name": "record", "args": {"entry": "one"}}]}, {"text": "done"}]}
        thread = (await asyncio.to_thread(parts.ask, self.first.port, "/threads", {}))["thread_id"]
        body = {"assistant_id": "clerk", "input": {"messages": [{"role": "user", "content": json.dumps(script)}]}}
        run = (await asyncio.to_thread(parts.ask, self.first.port, f"/threads/{thread}/runs", body))["run_id"]
        await self.tool.is_called()
        begun = time.monotonic()
        await fails()
        taken_over = await self.tool.is_called() - begun
        self.tool.may_answer.set()
        # One that has just started works before it listens.
        await self.is_ready(heir)
        await asyncio.to_thread(parts.ask, heir.port, f"/threads/{thread}/runs/{run}/join")
        await heals()
        await self.is_ready(self.first)
        # A server that comes back must not go on with it.
        await asyncio.sleep(CALM_S)
        if not self.tool.calls.empty():
            sys.exit("the tool was called once more")
        return taken_over

    async def starts(self):
        await self.first.start()
        await self.first.is_ready()

    async def is_killed(self):
        self.first.kill()

    async def is_terminated(self):
        self.first.send(signal.SIGTERM)

    async def is_suspended(self):
        self.first.send(signal.SIGSTOP)

    async def goes_on(self):
        self.first.send(signal.SIGCONT)

    async def is_cut_off(self):
        self.link.silence("there", "back")

    async def is_connected(self):
        self.link.heal()

    async def is_killed_and_started(self):
        self.first.kill()
        await self.first.start()

    async def does_nothing(self):
        pass

    async def ends_and_starts(self):
        await self.first.is_over(PATIENCE_S)
        await self.starts()


def report(what, times, most):
    """Prints the times. Returns whether the promise was kept."""
    times = sorted(times)
    print(f"| {what} | {times[len(times) // 2]:.2f} s | {times[-1]:.2f} s |", flush=True)
    return times[-1] <= most


async def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--server", required=True, type=Path, metavar="PROGRAM", help="the program of the server")
    options.add_argument("--postgres", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="the folder of its programs")
    options.add_argument("--rounds", type=int, default=5)
    given = options.parse_args()
    tool = await HeldTool().open()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        pair = Pair(folder, given, tool)
        try:
            await pair.start()
            print("| The first server | p50 | longest |\n|---|---|---|")
            are_kept = []
            for what, fails, heals, most in (
                ("is killed", pair.is_killed, pair.starts, MOST_AFTER_END_S),
                ("is terminated", pair.is_terminated, pair.ends_and_starts, MOST_AFTER_END_S),
                ("is suspended", pair.is_suspended, pair.goes_on, MOST_AFTER_SILENCE_S),
                ("is cut off from the database", pair.is_cut_off, pair.is_connected, MOST_AFTER_SILENCE_S),
            ):
                times = [await pair.is_lost(fails, heals, pair.second) for _ in range(given.rounds)]
                are_kept.append(report(what, times, most))
            pair.second.send(signal.SIGTERM)
            await pair.second.is_over(PATIENCE_S)
            fails, heals = pair.is_killed_and_started, pair.does_nothing
            times = [await pair.is_lost(fails, heals, pair.first) for _ in range(given.rounds)]
            are_kept.append(report("is alone, killed and started again", times, MOST_AFTER_END_S))
        finally:
            await pair.link.close()
            for part in (pair.second, pair.first, pair.postgres):
                part.send(signal.SIGCONT)
                part.kill()
    if not all(are_kept):
        sys.exit("it took longer than is promised")


if __name__ == "__main__":
    asyncio.run(main())
