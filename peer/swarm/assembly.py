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
from peer.averaging.averager import SwarmGradientAverager
from peer.config.run import RunConfig
from peer.network.traffic import Traffic
from peer.progress.refresh import Refresh
from peer.progress.tracker import Owner, StepTracker
from peer.progress.view import SwarmCourse
from peer.reduction.guard import ReductionGuard
from peer.reduction.shared_caps import WeightCaps
from peer.reporting.event_log import EventLog
from peer.reporting.suspicions import Suspicions
from peer.swarm.record_exchange import RecordExchange
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
        averaging, peer_id = self.config.averaging, self.dht.peer_id.to_base58()
        token = self.access.credentials.access_token(self.access.clock())
        return StepTracker(
            Owner(peer_id, token.member, token.device_id, self.role, self.is_client),
            self.access.run,
            SwarmCourse.of(self.config, peer_id, self.role, suspicions),
            target_batch_size=averaging.target_batch_size,
            refresh=Refresh(averaging.progress_refresh_s, averaging.statistics_expiration_s),
            keepers=[keeper.to_base58() for keeper in keeper_ids],
            caps=caps,
        )

    def record_exchange(self, tracker: StepTracker, keeper_ids: Sequence[PeerID]) -> RecordExchange:
        """Create the exchange of the records that the tracker evaluates."""
        return RecordExchange(self.dht, self.access, tracker, keeper_ids, self.config.averaging.statistics_expiration_s)

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
