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


async def listens(address, port):
    """Returns whether something listens on a port."""
    try:
        _, writer = await asyncio.open_connection(address, port)
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


class Host:
    """The machine of a part: this one, if nothing else is said."""

    def __init__(self, address="127.0.0.1"):
        self.address = address

    def run(self, command, user=None, **options):
        """Starts a process there."""
        return subprocess.Popen(command, user=user, **options)


HERE = Host()


class Part:
    """A process that the driver starts, kills and stops."""

    def __init__(self, name, command, port, log, user=None, env=None, stop_signal=signal.SIGTERM, host=HERE):
        self.name = name
        self.command = [str(word) for word in command]
        self.port = port
        self.log = log
        self.user = user
        self.env = env
        # Asks the process to end in good order.
        self.stop_signal = stop_signal
        self.host = host
        self.process = None

    @property
    def address(self):
        return f"{self.host.address}:{self.port}"

    async def start(self):
        with open(self.log, "ab") as log:
            self.process = self.host.run(
                self.command,
                self.user,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(self.env or {})},
                start_new_session=True,
            )
        return self

    async def is_ready(self, seconds=120):
        """Waits until the process listens. One that ends before is started again, as a service manager does: a server
        does not start while its database is out of reach.
        """
        for _ in range(seconds * 10):
            if await listens(self.host.address, self.port):
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


def postgres(folder, programs, port, host=HERE):
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
    # The other parts have addresses in the same network.
    with open(data / "pg_hba.conf", "a") as access:
        access.write("host all all samenet trust\n")
    command = [programs / "postgres", "-D", data, "-k", data, "-p", port, "-c", f"listen_addresses={host.address}"]
    # The processes are killed, not the machine: what was written reaches the files without a flush.
    command += ["-c", "fsync=off", "-c", "max_connections=200"]
    # The sessions of a server that is silent for long end, and with them its locks: else an upgrade could not be finished.
    command += ["-c", "tcp_keepalives_idle=10", "-c", "tcp_keepalives_interval=2", "-c", "tcp_keepalives_count=3"]
    command += ["-c", "tcp_user_timeout=15000"]
    log = folder / "postgres.log"
    log.touch()
    # With SIGTERM it would wait until the last client has left.
    return Part("postgres", command, port, log, user=user, stop_signal=signal.SIGINT, host=host)


def psql(programs, port, sql):
    """Returns what a statement prints in the database of `postgres`."""
    command = [programs / "psql", "-h", "127.0.0.1", "-p", str(port), "-U", "adjutant", "-d", "postgres", "-Atqc", sql]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


CONFIGURATION = """\
[server]
listen = "{address}:{port}"
hosts = ["*"]
drain_s = 1.0
shutdown_s = 5.0
keep_alive_s = 2.0

[storage]
url = "postgres://adjutant@{database}/postgres"

{cluster}
[runtime]
max_concurrent_runs = 64

[providers.scripted]
kind = "scripted"

[tools.record]
kind = "http"
description = "Writes an entry once, however often it is asked."
url = "http://{tools}/tools/record"
parameters = {{ type = "object", properties = {{ entry = {{ type = "string" }} }}, required = ["entry"] }}
after_crash = "repeat"
timeout_s = 90
max_retries = 9

[tools.charge]
kind = "http"
description = "Takes money, each time it is asked."
url = "http://{tools}/tools/charge"
parameters = {{ type = "object", properties = {{ entry = {{ type = "string" }} }}, required = ["entry"] }}
after_crash = "ask"
timeout_s = 90
max_retries = 9

[agents.clerk]
model = "scripted:clerk"
tools = ["record", "charge"]

[[agents.clerk.subagents]]
name = "assistant"
description = "Writes entries."
system_prompt = "You write entries."
tools = ["record"]
"""

# The agents and tools of agentbench.
LOAD_CONFIGURATION = """
[providers.lab]
kind = "openai"
base_url = "http://{model}/v1"
api_key = "lab"

[tools.lookup]
kind = "http"
description = "Looks a fact up."
url = "http://{load_tools}/tools/lookup"
parameters = {{ type = "object", properties = {{ query = {{ type = "string" }} }}, required = ["query"] }}
after_crash = "repeat"
timeout_s = 90
max_retries = 9

[tools.send_email]
kind = "http"
description = "Sends an email, each time it is asked."
url = "http://{load_tools}/tools/send_email"
parameters = {{ type = "object", properties = {{ to = {{ type = "string" }}, body = {{ type = "string" }} }}, required = ["to", "body"] }}
after_crash = "ask"
timeout_s = 90
max_retries = 9

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


def server(folder, program, number, port, used, host=HERE):
    """Returns a server, which is not started yet. `used` has the addresses of what it uses, with their ports."""
    cluster = f'[cluster]\nnats = "nats://{used["nats"]}"\n' if "nats" in used else ""
    text = CONFIGURATION + LOAD_CONFIGURATION if "model" in used else CONFIGURATION
    file = folder / f"server-{number}.toml"
    file.write_text(text.format(address=host.address, port=port, cluster=cluster, **used))
    log = folder / f"server-{number}.log"
    command = [program, "serve", "--config", file]
    env = {"NO_COLOR": "1", "ADJUTANT_INSECURE_NO_AUTH": "1"}
    return Part(f"server {number}", command, port, log, env=env, host=host)


def nats(folder, program, port, host=HERE):
    """Returns the server of NATS, which is not started yet."""
    store = folder / "nats"
    command = [program, "-a", host.address, "-p", port, "-js", "-sd", store]
    return Part("nats", command, port, folder / "nats.log", host=host)


def haproxy(folder, program, shipped, port, backends, host=HERE):
    """Returns HAProxy with the configuration that is shipped, before the servers at the addresses `backends`."""
    text = Path(shipped).read_text()
    head, found, _ = text.partition("    server one ")
    if not found:
        raise RuntimeError(f"{shipped} has no server `one`")
    servers = "".join(f"    server s{number} {backend}\n" for number, backend in enumerate(backends))
    text = head.replace("bind :8123", f"bind {host.address}:{port}") + servers
    file = folder / "haproxy.cfg"
    file.write_text(text)
    return Part("haproxy", [program, "-db", "-f", file], port, folder / "haproxy.log", host=host)
