"""The processes of the system: Postgres, NATS, the servers and HAProxy."""

import asyncio
import contextlib
import json
import os
import pwd
import random
import shutil
import signal
import socket
import subprocess
import urllib.request
from pathlib import Path


def free_port():
    """Returns a free port below those that the system gives to outgoing connections, which could take it before its use."""
    while True:
        port = random.SystemRandom().randrange(10_240, 32_768)
        with socket.socket() as probe:
            with contextlib.suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port


async def listens(port):
    """Returns whether something listens on a port."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return False
    writer.close()
    return True


def ask(port, path, body=None):
    """Returns the answer of a server to a request: a POST, if there is a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        return json.load(answer)


def cpu_seconds(process):
    """Returns the processor time of a process and its living children."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(folder.name) == process or int(fields[1]) == process:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Part:
    """A process that the driver starts, kills and stops."""

    def __init__(self, name, command, port, log, user=None, env=None, stop_signal=signal.SIGTERM):
        self.name = name
        self.command = [str(word) for word in command]
        self.port = port
        self.log = log
        self.user = user
        self.env = env
        # Asks the process to end in good order.
        self.stop_signal = stop_signal
        self.process = None

    async def start(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=self.user,
                env={**os.environ, **(self.env or {})},
                start_new_session=True,
            )
        return self

    async def is_ready(self, seconds=120):
        """Waits until the process listens. One that ends before is started again, as a service manager does: a server
        does not start while its database is out of reach.
        """
        for _ in range(seconds * 10):
            if await listens(self.port):
                return
            if self.process.poll() is not None:
                await asyncio.sleep(0.5)
                await self.start()
            await asyncio.sleep(0.1)
        raise RuntimeError(f"{self.name} does not listen after {seconds} s")

    def send(self, number):
        if self.process and self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        """Ends the process at once, with all processes that it has started."""
        if self.process and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    async def is_over(self, seconds):
        """Waits for the end of the process. Returns its exit status; None if it goes on."""
        for _ in range(int(seconds * 20)):
            if self.process.poll() is not None:
                return self.process.returncode
            await asyncio.sleep(0.05)
        return None


def ordinary_user():
    """Returns the user for Postgres, which refuses to run as root; None for the user of this program."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres").pw_name
    except KeyError:
        return "nobody"


def postgres(folder, programs, port):
    """Creates a database cluster. Returns its server, which is not started yet."""
    user = ordinary_user()
    data = folder / "postgres"
    data.mkdir()
    if user:
        shutil.chown(data, user)
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", "adjutant", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"],
        user=user,
        cwd="/",
        capture_output=True,
        text=True,
    )
    if made.returncode:
        raise RuntimeError(f"initdb failed: {made.stderr}")
    command = [programs / "postgres", "-D", data, "-k", data, "-p", port, "-c", "listen_addresses=127.0.0.1"]
    # The processes are killed, not the machine: what was written reaches the files without a flush.
    command += ["-c", "fsync=off", "-c", "max_connections=200"]
    log = folder / "postgres.log"
    log.touch()
    # With SIGTERM it would wait until the last client has left.
    return Part("postgres", command, port, log, user=user, stop_signal=signal.SIGINT)


def psql(programs, port, sql):
    """Returns what a statement prints in the database of `postgres`."""
    command = [programs / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "adjutant", "-d", "postgres", "-Atqc", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


CONFIGURATION = """\
[server]
listen = "127.0.0.1:{port}"
drain_s = 1.0
shutdown_s = 5.0
keep_alive_s = 2.0

[storage]
url = "postgres://adjutant@127.0.0.1:{database}/postgres"

{cluster}
[runtime]
max_concurrent_runs = 64

[providers.scripted]
kind = "scripted"

[tools.record]
kind = "http"
description = "Writes an entry once, however often it is asked."
url = "http://127.0.0.1:{tools}/tools/record"
parameters = {{ type = "object", properties = {{ entry = {{ type = "string" }} }}, required = ["entry"] }}
after_crash = "repeat"

[tools.charge]
kind = "http"
description = "Takes money, each time it is asked."
url = "http://127.0.0.1:{tools}/tools/charge"
parameters = {{ type = "object", properties = {{ entry = {{ type = "string" }} }}, required = ["entry"] }}
after_crash = "ask"

[agents.clerk]
model = "scripted:clerk"
tools = ["record", "charge"]

[[agents.clerk.subagents]]
name = "assistant"
description = "Writes entries."
system_prompt = "You write entries."
tools = ["record"]
"""


def server(folder, program, number, ports):
    """Returns a server, which is not started yet. `ports` has the ports of the server and of its links."""
    cluster = f'[cluster]\nnats = "nats://127.0.0.1:{ports["nats"]}"\n' if "nats" in ports else ""
    file = folder / f"server-{number}.toml"
    file.write_text(
        CONFIGURATION.format(port=ports["server"], database=ports["database"], tools=ports["tools"], cluster=cluster)
    )
    log = folder / f"server-{number}.log"
    command = [program, "serve", "--config", file]
    return Part(f"server {number}", command, ports["server"], log, env={"NO_COLOR": "1"})


def nats(folder, program, port):
    """Returns the server of NATS, which is not started yet."""
    store = folder / "nats"
    command = [program, "-a", "127.0.0.1", "-p", port, "-js", "-sd", store]
    return Part("nats", command, port, folder / "nats.log")


def haproxy(folder, program, shipped, port, backends):
    """Returns HAProxy with the configuration that is shipped, before the servers at the ports `backends`."""
    text = Path(shipped).read_text()
    head, found, _ = text.partition("    server one ")
    if not found:
        raise RuntimeError(f"{shipped} has no server `one`")
    servers = "".join(f"    server s{number} 127.0.0.1:{backend}\n" for number, backend in enumerate(backends))
    text = head.replace("bind :8123", f"bind 127.0.0.1:{port}") + servers
    file = folder / "haproxy.cfg"
    file.write_text(text)
    return Part("haproxy", [program, "-db", "-f", file], port, folder / "haproxy.log")
