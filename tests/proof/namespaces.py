"""Network namespaces for the parts of the system, and a switch between them that the driver tells to lose and delay packets."""

import asyncio
import collections
import contextlib
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys

from parts import Host

# In the environment of the program when it has been started again.
INSIDE = "PROOF_IS_INSIDE"
FOLDER = "/run/netns"
# From <linux/if_tun.h>: a device whose packets a program reads and writes, without a head of its own.
TUNSETIFF = 0x400454CA
IFF_TUN_NO_PI = 0x1001
PACKET = 64 * 1024
# Packets that are read from one device before the others have their turn.
AT_ONCE = 64


def enter():
    """Starts the program again with a network and a folder of namespaces of its own.

    The network of the machine stays as it is, and the kernel removes the namespaces with the last process: also after an
    error, Ctrl-C or a kill.
    """
    if os.environ.pop(INSIDE, None):
        run("mount", "-t", "tmpfs", "tmpfs", FOLDER)
        return
    missing = [program for program in ("ip", "mount", "setpriv", "unshare") if not shutil.which(program)]
    if missing:
        sys.exit(f"--namespaces needs the programs of iproute2 and util-linux: {', '.join(missing)} cannot be found")
    apart = ["unshare", "--net", "--mount"]
    if os.geteuid() != 0 or subprocess.run([*apart, "true"], stderr=subprocess.DEVNULL).returncode:
        sys.exit("--namespaces needs root, and the right to make namespaces")
    if not os.path.exists("/dev/net/tun"):
        sys.exit("--namespaces needs /dev/net/tun")
    os.makedirs(FOLDER, exist_ok=True)
    os.execvpe(apart[0], [*apart, sys.executable, *sys.orig_argv[1:]], {**os.environ, INSIDE: "1"})


def run(*command):
    subprocess.run(command, check=True)


class Namespace(Host):
    """A network namespace with an address."""

    def __init__(self, name, address):
        super().__init__(address)
        self.name = name

    def run(self, command, user=None, **options):
        # Only root may enter it. Both programs are replaced by the next one, so the process is that of the command.
        inside = ["ip", "netns", "exec", self.name]
        if user:
            inside += ["setpriv", f"--reuid={user}"]
        return super().run([*inside, *command], **options)


class Pair:
    """The packets between two namespaces.

    What is silenced is lost without a word: connections stay open and their packets are sent again and again, new ones
    get no answer, and nothing is refused. `there` leads to the part that is connected to.
    """

    faults = ("silences_there", "silences_back", "silences", "delays")

    def __init__(self, name, address):
        self.name = name
        self.address = address
        self.heal()

    def heal(self):
        self.silent = set()
        self.delay_s = 0.0

    def cut(self):
        self.silence("there", "back")

    def silence(self, *directions):
        self.silent |= set(directions)

    def delay(self, seconds):
        self.delay_s = seconds


class Switch:
    """The network of a proof whose parts have namespaces. The program passes each packet on, and is in it itself."""

    def __init__(self):
        self.links = []
        self.counts = collections.Counter()
        # For each address, the device of its namespace.
        self.devices = {}
        # For each two addresses, the pair and the direction.
        self.pairs = {}
        run("ip", "link", "set", "lo", "up")
        self.driver = Host(self._plug("driver"))

    def host(self, name):
        """Makes a namespace."""
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "set", "lo", "up")
        return Namespace(name, self._plug(name, inside=("-n", name)))

    def link(self, name, here, there, port):
        """Returns the pair of two hosts, of which the first one connects to a port of the second one."""
        pair = Pair(name, f"{there.address}:{port}")
        ends = [socket.inet_aton(end.address) for end in (here, there)]
        self.pairs[ends[0], ends[1]] = (pair, "there")
        self.pairs[ends[1], ends[0]] = (pair, "back")
        self.links.append(pair)
        return pair

    async def open(self):
        loop = asyncio.get_running_loop()
        for device in self.devices.values():
            loop.add_reader(device, self._read, device)

    async def close(self):
        loop = asyncio.get_running_loop()
        for device in self.devices.values():
            loop.remove_reader(device)

    def _plug(self, name, inside=()):
        """Makes a device, in a namespace or for the program. Returns its address."""
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TUN_NO_PI))
        address = f"10.87.0.{len(self.devices) + 1}"
        self.devices[socket.inet_aton(address)] = device
        if inside:
            run("ip", "link", "set", "dev", name, "netns", name)
        run("ip", *inside, "address", "add", f"{address}/24", "dev", name)
        run("ip", *inside, "link", "set", "dev", name, "up")
        return address

    def _read(self, device):
        with contextlib.suppress(BlockingIOError):
            for _ in range(AT_ONCE):
                self._pass_on(os.read(device, PACKET))

    def _pass_on(self, packet):
        # The addresses of IPv4. What the kernel says in IPv6 has none that is known here.
        source = packet[12:16]
        target = packet[16:20]
        if target not in self.devices:
            return
        pair, direction = self.pairs.get((source, target), (None, None))
        if pair and direction in pair.silent:
            self.counts[f"packets lost, {pair.name}"] += 1
        elif pair and pair.delay_s:
            self.counts[f"packets delayed, {pair.name}"] += 1
            asyncio.get_running_loop().call_later(pair.delay_s, self._write, target, packet)
        else:
            self._write(target, packet)

    def _write(self, target, packet):
        with contextlib.suppress(OSError):
            os.write(self.devices[target], packet)
