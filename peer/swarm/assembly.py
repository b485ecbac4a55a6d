"""Construction of one peer's tracker and averager from the run's settings.

hivemind's averager is used without its optimizer. That optimizer begins a step at an estimated
time, steps on local gradients when averaging fails, and accepts any peer's state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hivemind
from hivemind.p2p import PeerID

from auth.swarm.access import SwarmAccess
from auth.swarm.authorizer import RecordKey
from peer.averaging.averager import SwarmGradientAverager
from peer.config.run import RunConfig
from peer.network.traffic import Traffic
from peer.reduction.guard import ReductionGuard
from peer.reduction.shared_caps import WeightCaps
from peer.reporting.event_log import EventLog
from peer.reporting.suspicions import Suspicions
from peer.swarm.refresh import longest_refresh_s
from peer.swarm.tracker import StepTracker
from peer.swarm.training_state import TrainingState

SHUTDOWN_S = 2.0


@dataclass(frozen=True)
class Assembly:
    """A factory for one peer's tracker and averager, which it does not start."""

    config: RunConfig
    access: SwarmAccess
    role: str
    dht: hivemind.DHT
    is_client: bool  # other peers cannot connect to this peer
    may_reduce: bool  # other peers may send this peer gradients to reduce
    traffic: Traffic
    events: EventLog

    def tracker(self, keeper_ids: Sequence[PeerID], caps: WeightCaps, suspicions: Suspicions) -> StepTracker:
        """Create the tracker of the swarm's progress."""
        averaging = self.config.averaging
        return StepTracker(
            self.dht,
            access=self.access,
            key=RecordKey(self.access.credentials.device_key.private_der),
            role=self.role,
            keeper_ids=keeper_ids,
            newcomer_share=self.config.membership.newcomer_share,
            caps=caps,
            suspicions=suspicions,
            prefix=self.config.run.name,
            target_batch_size=averaging.target_batch_size,
            client_mode=self.is_client,
            min_refresh_period=averaging.progress_refresh_s,
            max_refresh_period=longest_refresh_s(averaging.progress_refresh_s, averaging.statistics_expiration_s),
            metadata_expiration=averaging.statistics_expiration_s,
        )

    def gradient_averager(
        self,
        state: TrainingState,
        bandwidth: float | None,
        guard: ReductionGuard,
    ) -> SwarmGradientAverager:
        """Create the averager of a state's gradients; `bandwidth`: this peer's bytes per second, if known."""
        averaging = self.config.averaging
        return SwarmGradientAverager(
            state.parameters,
            prefix=f"{self.config.run.name}_grad_averager",
            averaging=averaging,
            may_reduce=self.may_reduce,
            bandwidth=bandwidth,
            guard=guard,
            events=self.events.of_process(f"{self.events.process}-averager"),
            allreduce_timeout=averaging.averaging_timeout_s,
            next_chunk_timeout=averaging.averaging_timeout_s / 3,
            warn=False,
            dht=self.dht,
            access=self.access,
            traffic=self.traffic,
            client_mode=self.is_client,
            shutdown_timeout=SHUTDOWN_S,
            start=False,
        )
