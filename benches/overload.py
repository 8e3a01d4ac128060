#!/usr/bin/env python3
"""The server under ten times the load that it can serve.

Usage: overload.py BASE_URL   (an otherwise idle server with an agent `agent` whose model is `scripted:lab`)

Measures how many runs a second the server completes. Then offers ten times as many for ten seconds, while streams are
under way and `/ok` is asked all the time. Prints the slowdown of the streams (goal: at most 1.2), the answers of `/ok`
(goal: all of them), and what became of the runs that were accepted (goal: all succeed). Start it with `nice -n 19`, so
that the load does not take the processors from the server.
"""

import asyncio
import collections
import json
import sys
import time
import urllib.parse

BASE = urllib.parse.urlsplit(sys.argv[1])
STREAMS, PIECES, PAUSE_MS = 20, 150, 20
CONNECTIONS, SECONDS = 200, 10
SHORT = json.dumps({"script": [{"text": "hi"}]})
LONG = json.dumps({"script": [{"text": "word " * PIECES}], "chunk": 5, "delay_ms": PAUSE_MS})


class Connection:
    """One connection that is kept open, with one request after the other."""

    def __init__(self):
        self.reader = self.writer = None

    async def request(self, method, path, body=None, stream=None):
        """Returns the status and the body; with `stream`, calls it for each line as it arrives."""
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection(BASE.hostname, BASE.port)
        data = b"" if body is None else json.dumps(body).encode()
        head = (f"{method} {path} HTTP/1.1\r\nhost: {BASE.netloc}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(data)}\r\n\r\n")
        self.writer.write(head.encode() + data)
        status = int((await self.reader.readline()).split()[1])
        headers = {}
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, value = line.decode().split(":", 1)
            headers[name.lower()] = value.strip()
        if "content-length" in headers:
            text = await self.reader.readexactly(int(headers["content-length"]))
        else:
            text = b""
            while size := int((await self.reader.readline()).strip() or b"0", 16):
                piece = await self.reader.readexactly(size + 2)
                if stream:
                    stream(piece)
                else:
                    text += piece[:-2]
            await self.reader.readline()
        if headers.get("connection") == "close":
            self.writer.close()
            self.writer = None
        return status, text


def run_with(script, **more):
    return {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": script}]}, **more}


async def new_thread(connection):
    status, text = await connection.request("POST", "/threads", {})
    assert status == 200, text
    return json.loads(text)["thread_id"]


async def stream_once():
    """Returns the seconds from the first to the last piece of a stream."""
    connection = Connection()
    thread = await new_thread(connection)
    times = []
    body = run_with(LONG, stream_mode=["messages-tuple"])
    status, _ = await connection.request("POST", f"/threads/{thread}/runs/stream", body,
                                         lambda _: times.append(time.monotonic()))
    assert status == 200, status
    return times[-1] - times[0]


async def all_streams():
    return sorted(await asyncio.gather(*(stream_once() for _ in range(STREAMS))))


async def capacity(seconds=5):
    """Returns the number of runs that the server completes in a second."""
    done = 0
    end = time.monotonic() + seconds

    async def client():
        nonlocal done
        connection = Connection()
        while time.monotonic() < end:
            status, text = await connection.request("POST", "/runs/wait", run_with(SHORT))
            assert status == 200, text
            done += 1

    await asyncio.gather(*(client() for _ in range(16)))
    return done / seconds


async def overload(rate):
    """Offers `rate` runs a second; returns the statuses, the accepted runs and the answer times of `/ok`."""
    statuses = collections.Counter()
    accepted, oks = [], []
    begun = time.monotonic()
    end = begun + SECONDS
    offered = 0

    async def client():
        nonlocal offered
        connection = Connection()
        thread = await new_thread(connection)
        while (now := time.monotonic()) < end:
            if offered >= rate * (now - begun):
                await asyncio.sleep(0.002)
                continue
            offered += 1
            body = run_with(SHORT, multitask_strategy="enqueue")
            status, text = await connection.request("POST", f"/threads/{thread}/runs", body)
            statuses[status] += 1
            if status == 200:
                accepted.append((thread, json.loads(text)["run_id"]))

    async def asks_ok():
        connection = Connection()
        while time.monotonic() < end:
            asked = time.monotonic()
            status, _ = await connection.request("GET", "/ok")
            assert status == 200, status
            oks.append(time.monotonic() - asked)
            await asyncio.sleep(0.05)

    await asyncio.gather(asks_ok(), *(client() for _ in range(CONNECTIONS)))
    return statuses, accepted, sorted(oks)


async def outcomes(accepted):
    """Waits for the last run of each thread, and counts the accepted runs by their status."""
    connection = Connection()
    counts = collections.Counter()
    for thread, run in {thread: run for thread, run in accepted}.items():
        await connection.request("GET", f"/threads/{thread}/runs/{run}/join")
    for thread, run in accepted:
        status, text = await connection.request("GET", f"/threads/{thread}/runs/{run}")
        counts[json.loads(text)["status"] if status == 200 else status] += 1
    return dict(counts)


async def main():
    alone = await all_streams()
    completed = await capacity()
    print(f"capacity: {completed:.0f} runs/s; offered: {10 * completed:.0f}/s")
    load = asyncio.create_task(overload(10 * completed))
    await asyncio.sleep(1)
    loaded = await all_streams()
    statuses, accepted, oks = await load
    middle = STREAMS // 2
    print(f"streams: {alone[middle]:.2f} s alone, {loaded[middle]:.2f} s under load: {loaded[middle] / alone[middle]:.2f}x, "
          f"slowest {loaded[-1] / alone[-1]:.2f}x")
    print(f"/ok: {len(oks)} answers, median {oks[len(oks) // 2] * 1000:.1f} ms, longest {oks[-1] * 1000:.1f} ms")
    print(f"answers: {dict(statuses)}")
    begun = time.monotonic()
    print(f"accepted runs: {await outcomes(accepted)}, after {time.monotonic() - begun:.0f} s")


asyncio.run(main())
