"""Options of the agent, and the worker plan derived from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from auth.join_link import JoinLink
from peer.config.trust import Allowed
from peer.limits.cloud import Cloud
from peer.limits.limits import NO_LIMITS, Limits
from peer.limits.usage import DATA_FOLDER
from peer.network.placement import Placement
from peer.protocol import control_pb2
from peer.reporting.messages import WorkerPlan
from peer.runtime.devices import CompileMode, Wanted


@dataclass(frozen=True)
class AgentOptions:
    """The options chosen by the volunteer on the command line or in the notebook."""

    link: JoinLink
    state_dir: Path
    role: Literal["trainer", "auxiliary"] = "trainer"
    invite: str = ""
    login: str = ""  # name of the identity provider; "" if the run has only one
    device: str = "auto"
    precision: Wanted = "auto"
    threads: int | None = None
    microbatch_size: int | None = None
    compile: CompileMode = "auto"
    limits: Limits = NO_LIMITS
    cloud: Cloud = field(default=Cloud())
    client_mode: bool = False
    listen: tuple[str, ...] = ()  # libp2p addresses to listen on; empty for TCP on every IP version
    allowed: Allowed = field(default=Allowed())

    @property
    def tokenizer_dir(self) -> Path:
        """The folder with the run's tokenizer and other files."""
        return self.state_dir / "tokenizer"

    @property
    def data_dir(self) -> Path:
        """The device's folder for stream positions and caches."""
        return self.state_dir / DATA_FOLDER

    def plan(
        self,
        reply: control_pb2.JoinReply,
        *,
        device: str,
        place: Placement,
        initial_peers: tuple[str, ...],
        relays: tuple[str, ...],
    ) -> WorkerPlan:
        """Return the plan for this device's workers, from the coordinator's reply to the join request."""
        return WorkerPlan(
            run_config_json=reply.run_config_json,
            credentials_dir=str(self.state_dir),
            tokenizer_dir=str(self.tokenizer_dir),
            data_dir=str(self.data_dir),
            initial_peers=initial_peers,
            relays=relays,
            device_number=reply.device_number,
            device=device,
            precision=self.precision,
            threads=self.threads,
            microbatch_size=self.microbatch_size,
            compile=self.compile,
            max_hours=self.limits.max_hours,
            max_memory_bytes=self.limits.memory_bytes,
            upload_rate=self.limits.upload_rate,
            download_rate=self.limits.download_rate,
            place=place,
        )
