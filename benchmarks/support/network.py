"""Simulated hosts on this machine: network namespaces on a bridge, with link rates limited by `tc`.

Needs root, iproute2 and nftables. Used by averaging.py, chaos.py, home_lines.py, scale.py and the system tests.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

NETWORK_V6 = "2a05:f480:77:"  # public, like `NETWORK`
NETWORK = "45.77.0"  # public, because libp2p does not relay for private addresses; no packet leaves the namespaces
_CLONE_NEWNET = 0x40000000
BURST_S = 0.01  # maximum burst of a link, in seconds at the link's rate
LEAST_BURST_BYTES = 16_384
QUEUE_MS = 200  # maximum queueing time of a packet before it is dropped
ALLOWED_CONTROLS = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")  # `reno` is always allowed
_counter = itertools.count()


@dataclass(frozen=True)
class HostPlan:
    """A planned host: the rates of its link, and any router or firewall in front of it.

    `mbit_per_second` is the rate of both directions, or only of the uplink if a downlink rate is given.
    """

    name: str
    mbit_per_second: float
    place: Literal["open", "nat", "firewall", "no-tcp"] = "open"
    versions: tuple[Literal[4, 6], ...] = (4,)  # IP versions; a host behind a router has only the first version
    down_mbit_per_second: float | None = None  # None: equal to the uplink's rate


@dataclass(frozen=True)
class Host:
    """A running host."""

    namespace: str
    address: str  # the host's own address, hidden if it is behind a router; "" without IPv4
    address_v6: str = ""

    def command(self, *command: str) -> list[str]:
        """Return the command line that runs `command` on this host."""
        return ["ip", "netns", "exec", self.namespace, *command]

    def enter(self) -> None:
        """Move this process, and all its future child processes, to this host."""
        with (Path("/run/netns") / self.namespace).open() as file:
            _set_namespace(file.fileno(), self.namespace)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Run this thread, and the processes that it starts, on this host within the context."""
        with Path("/proc/thread-self/ns/net").open() as before:
            self.enter()
            try:
                yield
            finally:
                _set_namespace(before.fileno(), "the namespace of before")


def _set_namespace(descriptor: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {name}")


def why_impossible() -> str:
    """Return the reason that hosts cannot be created on this machine, or "" if there is none."""
    if missing := [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]:
        return f"{', '.join(missing)} not installed"
    name = f"mh{os.getpid()}try"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)  # noqa: S603, S607
    if made.returncode:
        return made.stderr.strip() or "network namespaces cannot be made"
    _ip("netns", "delete", name)
    return ""


class Network:
    """A context in which the planned hosts exist; all namespaces are deleted on exit."""

    def __init__(self, plans: Sequence[HostPlan]) -> None:
        self._plans = plans
        self._stack = ExitStack()
        self._id = f"mh{os.getpid() % 100_000}n{next(_counter)}"
        self._ports: dict[str, tuple[str, str]] = {}  # host -> (namespace, device) of its bridge port

    def __enter__(self) -> dict[str, Host]:
        with ExitStack() as stack:
            hub = self._namespace(stack, "-switch")
            _ip("-n", hub, "link", "add", "name", "br0", "type", "bridge")
            _ip("-n", hub, "link", "set", "br0", "up")
            hosts = {
                plan.name: self._host(stack, hub, plan, f"{NETWORK}.{number}")
                for number, plan in enumerate(self._plans, 1)
            }
            self._stack = stack.pop_all()
        return hosts

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def cut(self, name: str) -> None:
        """Take this host's link down."""
        self._set_link(name, "down")

    def mend(self, name: str) -> None:
        """Bring this host's link up again."""
        self._set_link(name, "up")

    def _set_link(self, name: str, state: Literal["up", "down"]) -> None:
        hub, device = self._ports[name]
        _ip("-n", hub, "link", "set", device, state)

    def _namespace(self, stack: ExitStack, name: str) -> str:
        namespace = f"{self._id}-{name}"
        _ip("netns", "add", namespace)
        stack.callback(_ip, "netns", "delete", namespace)
        _ip("-n", namespace, "link", "set", "lo", "up")
        # Most machines use CUBIC. This machine may use BBR, which does not slow down on packet loss.
        control = "cubic" if "cubic" in ALLOWED_CONTROLS.read_text().split() else "reno"
        _run("ip", "netns", "exec", namespace, "sysctl", "-qw", f"net.ipv4.tcp_congestion_control={control}")
        return namespace

    def _host(self, stack: ExitStack, hub: str, plan: HostPlan, address: str) -> Host:
        namespace = self._namespace(stack, plan.name)
        outside = namespace if plan.place != "nat" else self._namespace(stack, f"{plan.name}r")
        number = address.rpartition(".")[2]
        _join(outside, "wan", address if 4 in plan.versions else "", hub, f"p{number}")
        address_v6 = f"{NETWORK_V6}:{number}" if 6 in plan.versions else ""
        if address_v6:
            _ip("-n", outside, "address", "add", f"{address_v6}/64", "dev", "wan", "nodad")
        _ip("-n", hub, "link", "set", f"p{number}", "master", "br0")
        down = plan.down_mbit_per_second or plan.mbit_per_second
        self._ports[plan.name] = hub, f"p{number}"
        _shape(outside, "wan", plan.mbit_per_second)
        _shape(hub, f"p{number}", down)
        if plan.place == "nat":
            _join(namespace, "lan", "192.168.7.2", outside, "lan", "192.168.7.1")
            _ip("-n", namespace, "route", "add", "default", "via", "192.168.7.1")
            _run("ip", "netns", "exec", outside, "sysctl", "-qw", "net.ipv4.ip_forward=1")
            _filter(outside, "add chain inet f nat { type nat hook postrouting priority 100; }")
            _filter(outside, 'add rule inet f nat oifname "wan" masquerade')
            _refuse_new(outside, "forward")
            return Host(namespace, "192.168.7.2")
        if 4 in plan.versions:
            _ip("-n", namespace, "route", "add", "default", "dev", "wan")
        if plan.place == "firewall":
            _refuse_new(namespace, "input")
        if plan.place == "no-tcp":
            _filter(namespace, "add chain inet f input { type filter hook input priority 0; }")
            _filter(namespace, 'add rule inet f input iifname "wan" meta l4proto tcp drop')
        return Host(namespace, address if 4 in plan.versions else "", address_v6)


def _join(
    left: str, left_device: str, left_address: str, right: str, right_device: str, right_address: str = ""
) -> None:
    """Connect two namespaces by a pair of virtual devices."""
    cable = ["name", left_device, "netns", left, "type", "veth", "peer", "name", right_device, "netns", right]
    _ip("link", "add", *cable)
    for namespace, device, address in (left, left_device, left_address), (right, right_device, right_address):
        if address:
            _ip("-n", namespace, "address", "add", f"{address}/24", "dev", device)
        _ip("-n", namespace, "link", "set", device, "up")


def _shape(namespace: str, device: str, mbit_per_second: float) -> None:
    """Limit the rate of outgoing packets on the device."""
    burst = max(LEAST_BURST_BYTES, int(mbit_per_second * 1e6 / 8 * BURST_S))
    options = ["rate", f"{mbit_per_second}mbit", "burst", str(burst), "latency", f"{QUEUE_MS}ms"]
    _run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *options)


def _refuse_new(namespace: str, hook: str) -> None:
    """Drop inbound connections; accept replies to the host's own connections."""
    _filter(namespace, f"add chain inet f {hook} {{ type filter hook {hook} priority 0; }}")
    _filter(namespace, f"add rule inet f {hook} ct state established,related accept")
    _filter(namespace, f'add rule inet f {hook} iifname "wan" drop')


def _filter(namespace: str, command: str) -> None:
    _run("ip", "netns", "exec", namespace, "nft", "add", "table", "inet", "f")
    _run("ip", "netns", "exec", namespace, "nft", command)


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)  # noqa: S603
