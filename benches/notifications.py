#!/usr/bin/env python3
"""The rate of notifications at which the commits of a Postgres become slow.

Usage: notifications.py [--rates 0,20,200,1000,4000] [--listeners 3] [--seconds 10]

Starts a Postgres of its own. Sessions notify all listeners at a fixed rate, with texts as long as those with pieces of answers (docs/scaling.md,
"Pieces of answers"), while others commit rows. Prints for each rate how many notifications there were, how late they arrived, and how
long a commit took. A server sends `1 / live_interval_s` notifications a second to each server with readers, and more if pieces do not fit into one:
`live_bytes_per_s / 8000` is the most.
"""

import argparse
import asyncio
import contextlib
import struct
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "proof"))
from parts import free_port, postgres, psql  # noqa: E402

CHANNEL = "pieces"
TEXT_BYTES = 7_900
SENDERS = 4
COMMITTERS = 8


def message(kind, body):
    return kind + struct.pack("!i", len(body) + 4) + body


class Session:
    """A session of Postgres that a role enters without a password."""

    @classmethod
    async def open(cls, port):
        session = cls()
        session.reader, session.writer = await asyncio.open_connection("127.0.0.1", port)
        session.writer.write(message(b"", struct.pack("!i", 196_608) + b"user\0adjutant\0database\0postgres\0\0"))
        await session.until_ready()
        return session

    async def read(self):
        kind = await self.reader.readexactly(1)
        (length,) = struct.unpack("!i", await self.reader.readexactly(4))
        return kind, await self.reader.readexactly(length - 4)

    async def until_ready(self):
        while True:
            kind, body = await self.read()
            if kind == b"E":
                raise RuntimeError(body.decode(errors="replace"))
            if kind == b"Z":
                return

    async def execute(self, sql):
        self.writer.write(message(b"Q", sql.encode() + b"\0"))
        await self.until_ready()

    def close(self):
        self.writer.close()


async def hears(port, lags):
    """Listens, and notes how late each notification is."""
    session = await Session.open(port)
    await session.execute(f"listen {CHANNEL}")
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            kind, body = await session.read()
            if kind == b"A":
                # The id of the process, the channel, and the text, which begins with the time at which it was sent.
                text = body[4:].split(b"\0")[1]
                lags.append(time.monotonic() - float(text.split(b" ")[0]))


async def sends(port, rate, first, until):
    """Notifies at a fixed rate. One that is late is sent as soon as the one before is committed."""
    session = await Session.open(port)
    due = first
    while (now := time.monotonic()) < until:
        if due > now:
            await asyncio.sleep(due - now)
        text = f"{time.monotonic():.6f} ".ljust(TEXT_BYTES, "x")
        await session.execute(f"select pg_notify('{CHANNEL}', '{text}')")
        due += 1 / rate
    session.close()


async def commits(port, times, until):
    """Commits one row after the other."""
    session = await Session.open(port)
    while (begun := time.monotonic()) < until:
        await session.execute("insert into lines (text) values ('a row of a hundred bytes or so')")
        times.append(time.monotonic() - begun)
    session.close()


def at(values, part):
    """Returns the milliseconds that this part of the values does not exceed."""
    return f"{sorted(values)[min(len(values) - 1, int(len(values) * part))] * 1000:.1f} ms" if values else ""


async def measure(port, rate, given):
    lags, times = [], []
    listeners = [asyncio.create_task(hears(port, lags)) for _ in range(given.listeners)]
    await asyncio.sleep(1)
    begun = time.monotonic()
    until = begun + given.seconds
    work = [commits(port, times, until) for _ in range(COMMITTERS)]
    if rate:
        # Each sender has its share of the rate, and they begin one after the other.
        work += [sends(port, rate / SENDERS, begun + number / rate, until) for number in range(SENDERS)]
    await asyncio.gather(*work)
    await asyncio.sleep(1)
    for listener in listeners:
        listener.cancel()
    await asyncio.gather(*listeners, return_exceptions=True)
    sent = len(lags) / given.listeners / given.seconds
    print(
        f"| {rate} | {sent:.0f} | {at(lags, 0.5)} | {at(lags, 0.99)} | {len(times) / given.seconds:.0f} | {at(times, 0.5)} | {at(times, 0.99)} |",
        flush=True,
    )


async def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--postgres", type=Path, default=Path("/usr/lib/postgresql/15/bin"), help="the folder of its programs")
    options.add_argument("--rates", default="0,20,200,1000,4000", help="notifications a second, with commas between them")
    options.add_argument("--listeners", type=int, default=3)
    options.add_argument("--seconds", type=float, default=10.0)
    given = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        database = postgres(folder, given.postgres, free_port())
        # The disk is a part of what a commit waits for.
        database.command += ["-c", "fsync=on"]
        try:
            await database.start()
            await database.is_ready()
            psql(given.postgres, database.port, "create table lines (text text)")
            print("| Notifications a second, asked | had | Lag p50 | p99 | Commits a second | p50 | p99 |")
            print("|---|---|---|---|---|---|---|")
            for rate in (int(rate) for rate in given.rates.split(",")):
                await measure(database.port, rate, given)
        finally:
            database.kill()


if __name__ == "__main__":
    asyncio.run(main())
