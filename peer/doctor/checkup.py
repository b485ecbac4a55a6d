"""All stages in the order in which they are examined, and the choice of those that suit a question."""

from __future__ import annotations

from peer.doctor.coordinator import check_protocol, check_requirements, check_run_name, check_time, check_tls
from peer.doctor.line import check_bandwidth
from peer.doctor.machine import check_disk, check_memory, check_processor
from peer.doctor.network import check_names, check_proxy, check_route, check_tcp
from peer.doctor.reachability import check_reachability
from peer.doctor.stages import Stage
from peer.doctor.swarm import check_daemon, check_relay, check_swarm_quic, check_swarm_tcp
from peer.doctor.training import check_device, check_speed

MACHINE = (
    Stage("disk", check_disk),
    Stage("memory", check_memory),
    Stage("processor", check_processor),
)
CONTACT = (
    Stage("names", check_names),
    Stage("tcp", check_tcp, ("names",)),
    Stage("proxy", check_proxy),
    Stage("route", check_route, ("tcp",)),
    Stage("tls", check_tls, ("tcp",)),
    Stage("protocol", check_protocol, ("tls",)),
    Stage("run", check_run_name, ("protocol",)),
    Stage("clock", check_time, ("protocol",)),
)
LINE = (
    Stage("bandwidth", check_bandwidth, ("run",)),
    Stage("reachability", check_reachability, ("requirements",)),
)
REQUIREMENTS = Stage("requirements", check_requirements, ("run",))
DAEMON = Stage("daemon", check_daemon)
KEEPER = Stage("swarm-tcp", check_swarm_tcp, ("requirements", "daemon"))
BEYOND_TCP = (
    Stage("swarm-quic", check_swarm_quic, ("requirements", "daemon")),
    Stage("relay", check_relay, ("swarm-tcp",)),
)
TRAINING = (
    Stage("device", check_device),
    Stage("speed", check_speed, ("device",)),
)

WITHOUT_LINK = (*MACHINE, DAEMON, *TRAINING)
WITH_LINK = (*MACHINE, *CONTACT, REQUIREMENTS, *LINE, DAEMON, KEEPER, *BEYOND_TCP, *TRAINING)
WHY_UNREACHABLE = CONTACT
WHY_NO_SWARM = (*CONTACT, REQUIREMENTS, DAEMON, KEEPER)
