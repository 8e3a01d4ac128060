#!/usr/bin/env python3
"""The lag of pieces of answers between two servers on one Postgres, over NOTIFY, or over NATS if their configuration names one.

Usage: other_servers.py BASE_URL OTHER_BASE_URL [STREAMS [PAUSE_MS]]
(otherwise idle servers whose agent `agent` has the model `scripted:lab`; the second one with the role `api`, so that the first one
works on all runs)

Runs start at the first server, which works on them; each stream is read there and at the other server. The lag of a piece is
the time between its arrivals at the two readers, which are in this process. Prints the lag, and how many pieces came
only with the whole answer.
"""

import asyncio
import json
import re
import sys
import time
import urllib.parse

HERE, THERE = (urllib.parse.urlsplit(base) for base in sys.argv[1:3])
STREAMS = int(sys.argv[3]) if len(sys.argv) > 3 else 100
PIECES = 100
PAUSE_MS = int(sys.argv[4]) if len(sys.argv) > 4 else 50
WORD = re.compile(rb"w(\d{4})")


async def request(base, method, path, body=None):
    reader, writer = await asyncio.open_connection(base.hostname, base.port)
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: {base.netloc}\r\ncontent-type: application/json\r\n"
    head += f"last-event-id: -1\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    status = await reader.readline()
    assert b" 200 " in status, status
    return reader, writer


async def post(base, path, body):
    reader, writer = await request(base, "POST", path, body)
    length = 0
    while (line := await reader.readline()) not in (b"\r\n", b""):
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    answer = json.loads(await reader.readexactly(length))
    writer.close()
    return answer


async def listen(base, path, arrivals):
    """Stores the time at which each piece of a stream arrives first."""
    reader, writer = await request(base, "GET", path)
    while chunk := await reader.readline():
        now = time.perf_counter()
        # A frame with many words is the whole answer, or what was missed.
        words = WORD.findall(chunk)
        for word in words:
            arrivals.setdefault(int(word), (now, len(words)))
        if chunk.startswith(b"event: end") or chunk.strip() == b"0":
            break
    writer.close()


async def one(number):
    thread = (await post(HERE, "/threads", {}))["thread_id"]
    text = "".join(f"w{at:04} " for at in range(PIECES))
    script = json.dumps({"script": [{"text": text}], "chunk": 6, "delay_ms": PAUSE_MS})
    body = {"assistant_id": "agent", "stream_mode": ["messages-tuple"], "stream_resumable": True,
            "input": {"messages": [{"role": "user", "content": script}]}}
    await asyncio.sleep(number % 50 / 50)
    run = (await post(HERE, f"/threads/{thread}/runs", body))["run_id"]
    path = f"/threads/{thread}/runs/{run}/stream?stream_mode=messages-tuple"
    here, there = {}, {}
    await asyncio.gather(listen(HERE, path, here), listen(THERE, path, there))
    return here, there


def at(values, part):
    return values[min(len(values) - 1, int(len(values) * part))] * 1000


async def main():
    began = time.perf_counter()
    results = await asyncio.gather(*(one(number) for number in range(STREAMS)))
    lags, late, missing = [], 0, 0
    for here, there in results:
        for word, (arrived, _) in here.items():
            if word not in there:
                missing += 1
            elif there[word][1] > 10:
                late += 1
            else:
                lags.append(there[word][0] - arrived)
    lags.sort()
    took = time.perf_counter() - began
    ideal = (PIECES * PAUSE_MS + 1000) / 1000
    print(f"{STREAMS} streams with {1000 / PAUSE_MS:.0f} pieces a second: lag p50 {at(lags, 0.5):.1f} ms, p99 {at(lags, 0.99):.1f} ms, "
          f"most {at(lags, 1):.1f} ms; {late} of {STREAMS * PIECES} pieces late, {missing} missing; took {took:.1f} s (ideal {ideal:.1f} s)")


asyncio.run(main())
