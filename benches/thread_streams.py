#!/usr/bin/env python3
"""The cost of open thread streams, and the time until the replay of a long thread starts.

Usage: thread_streams.py BASE_URL PID DATABASE_FILE   (an otherwise idle server with SQLite, on Linux)

Opens 1,000 streams on 1,000 threads and measures the memory and CPU time of the idle server with the kernel's
counters. Then writes a thread of 100,000 events directly into the database and reads it as a client.
"""

import asyncio
import json
import sqlite3
import sys
import time
import urllib.parse
import urllib.request
import uuid

BASE, PID, DATABASE = sys.argv[1:4]
HOST, PORT = urllib.parse.urlsplit(BASE).hostname, urllib.parse.urlsplit(BASE).port
STREAMS, EVENTS, IDLE = 1000, 100_000, 30


def memory():
    """Returns the anonymous memory of the server, in KiB: without mapped pages of the database file."""
    with open(f"/proc/{PID}/status") as status:
        return int(next(line for line in status if line.startswith("RssAnon")).split()[1])


def cpu():
    """Returns the CPU time of the server, in seconds."""
    with open(f"/proc/{PID}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def switches():
    """Returns the number of voluntary context switches of the server's threads."""
    import glob
    total = 0
    for place in glob.glob(f"/proc/{PID}/task/*/status"):
        with open(place) as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return total


def post(path, body):
    request = urllib.request.Request(BASE + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def opens(thread, channels):
    body = json.dumps({"channels": channels}).encode()
    reader, writer = await asyncio.open_connection(HOST, PORT)
    head = f"POST /threads/{thread}/stream/events HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    await writer.drain()
    status = await reader.readline()
    assert b"200" in status, status
    return reader, writer


async def idle_streams():
    threads = [str(uuid.uuid4()) for _ in range(STREAMS)]
    # Half of the threads have had a run.
    for thread in threads[: STREAMS // 2]:
        message = {"role": "user", "content": "hello"}
        post(f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": {"messages": [message]}}})
    while post("/threads/count", {"status": "busy"}):
        await asyncio.sleep(0.5)
    # Memory that is allocated once, such as the caches of the database, shall not count for the streams.
    for thread in threads[:100]:
        (await opens(thread, ["values"]))[1].close()
    await asyncio.sleep(5)
    before = memory()
    lines = [await opens(thread, ["values", "messages", "lifecycle", "input", "tools"]) for thread in threads]
    drains = [asyncio.create_task(reader.read(-1)) for reader, _ in lines]
    # An idle stream frees its write buffer at the second heartbeat.
    await asyncio.sleep(12)
    each = (memory() - before) / STREAMS
    used, slept = cpu(), switches()
    await asyncio.sleep(IDLE)
    print(f"{STREAMS} open streams: {each:.1f} KiB each; idle: {(cpu() - used) / IDLE * 100:.2f} % of a core, "
          f"{(switches() - slept) / IDLE / STREAMS:.2f} wake-ups per stream and second (one heartbeat each 5 s is 0.2)")
    for drain, (_, writer) in zip(drains, lines):
        drain.cancel()
        writer.close()


async def long_replay():
    thread = str(uuid.uuid4())
    message = {"role": "user", "content": "hello"}
    post(f"/threads/{thread}/commands", {"id": 1, "method": "run.start", "params": {"assistant_id": "agent", "input": {"messages": [message]}}})
    await asyncio.sleep(2)
    database = sqlite3.connect(DATABASE)
    key = uuid.UUID(thread).bytes
    run, lane, last = database.execute(
        "select run_id, lane, seq + 1 from checkpoints where thread_id = ? order by seq desc limit 1", (key,)
    ).fetchone()
    fact = json.dumps({"fact": "custom", "value": {"progress": "x" * 100}})
    rows = ((key, last + n, run, lane, fact, time.time_ns() // 1000) for n in range(1, EVENTS + 1))
    database.executemany("insert into events (thread_id, seq, run_id, lane, body, created_at) values (?, ?, ?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    begins = []
    for _ in range(5):
        started = time.perf_counter()
        reader, writer = await opens(thread, ["values", "messages", "lifecycle", "custom"])
        await reader.readuntil(b"data: ")
        begins.append((time.perf_counter() - started) * 1000)
        writer.close()
    before, most, count = memory(), 0, 0
    started = time.perf_counter()
    reader, writer = await opens(thread, ["values", "messages", "lifecycle", "custom"])
    while count < EVENTS:
        count += (await reader.read(1 << 20)).count(b"event: custom")
        most = max(most, memory())
    took = time.perf_counter() - started
    writer.close()
    print(f"a thread of {EVENTS} events: the replay begins after {sorted(begins)[2]:.1f} ms, is over after {took:.1f} s, "
          f"and takes {(most - before) / 1024:.1f} MiB of the server's memory meanwhile")


asyncio.run(idle_streams())
asyncio.run(long_replay())
