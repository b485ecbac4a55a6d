"""The inside of a real peer's round: its gradients are exchanged with the group's, and the reducers audited.

`peer.averaging.all_reduce` averages, once for each half of the gradients' encoding
(`peer.gradients.gradient_codes`). `peer.reduction` checks parts and averages.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from hivemind.averaging.partition import AllreduceException

from auth.keys import DeviceKey
from auth.swarm.directory import PeerDirectory
from peer.averaging.absences import Attendance
from peer.averaging.all_reduce import ExactAllReduce, take_averages
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.deadline import give_back
from peer.averaging.reducer import RoundTerms
from peer.averaging.reduction_service import ReductionService
from peer.averaging.requirements import least_samples
from peer.averaging.rounds import AveragedGroup, PlannedRound, RoundError
from peer.averaging.shares import TRUSTED_ROLES, part_size
from peer.config.training import Averaging
from peer.gradients.buffer import SharedTensors, code_of
from peer.network.traffic import Traffic
from peer.reduction.attestation import AttestedRound, Attesting, digest_of_all, layout_of
from peer.reduction.audit import Audit, auditors_of
from peer.reduction.auditing import Auditing
from peer.reduction.compression import compression_of
from peer.reduction.findings import Accusations, Finding
from peer.reduction.guard import AverageScreen, ReductionGuard
from peer.reporting.event_log import MOST_PEERS, EventLog, GroupMet
from peer.transport.transport import Transport

LATE_SHARE = 0.9  # fraction of a round's time limit after which an awaited sender is late
SETTLE_S = 0.5  # delay after a round, until its tasks have ended


@dataclass(eq=False, repr=False)
class GradientExchange:
    """One peer's exchanges of gradients with its groups."""

    tensors: SharedTensors
    averaging: Averaging
    run: str
    key: DeviceKey
    transport: Transport
    service: ReductionService  # which receives the parts that others send
    directory: PeerDirectory
    guard: ReductionGuard
    auditing: Auditing
    attendance: Attendance
    accusations: Accusations
    note: Callable[[Finding], None]  # receives what is found of other peers
    traffic: Traffic
    events: EventLog

    def __post_init__(self) -> None:
        """Set up exchanges of these tensors."""
        self._code = code_of(self.averaging, self.tensors.shapes)
        self._screen = AverageScreen()
        self.values = sum(shape.numel() for shape in self.tensors.shapes)

    @property
    def size_bytes(self) -> float:
        """The bytes of gradients that a peer sends per round."""
        return self.tensors.size_in(self.averaging)

    def take_up(self, averaging: Averaging) -> None:
        """Use another encoding of gradients; forget old norms if other tensors are averaged."""
        if averaging.powersgd_rank != self.averaging.powersgd_rank:
            self._code = code_of(averaging, self.tensors.shapes)
            self._screen.forget_tensors()
            self.guard.forget_norms()
        self.averaging = averaging

    async def average(self, round_: PlannedRound) -> AveragedGroup:
        """Average the shared tensors in place. Raises `RoundError`, without a change, if the round fails."""
        began, before, halves = time.monotonic(), self.traffic.passed(), list[AveragedGroup]()
        ids = [round_.group.group_id + half for half in self._code.halves]
        try:
            async with self.tensors.used_in_loop() as tensors:
                with self.service.expecting(ids):

                    async def reduce(values: Sequence[torch.Tensor], half: bytes = b"") -> None:
                        halves.append(await self._reduce(values, half, round_, began))

                    await self._code.average(tensors, reduce)
        except (AllreduceException, OverflowError) as error:
            raise RoundError(str(error)) from error
        finally:
            asyncio.get_running_loop().call_later(SETTLE_S, give_back)
        seconds = time.monotonic() - began
        sent, received = (now - then for now, then in zip(self.traffic.passed(), before, strict=True))
        return replace(
            halves[-1],
            averaged_bytes=sum(half.averaged_bytes for half in halves),
            seconds=seconds,
            traffic=RoundTraffic(sent, received, seconds, round_.plan.promised_s),
            digest=digest_of_all([half.digest for half in halves]),
        )

    async def _reduce(
        self, values: Sequence[torch.Tensor], half: bytes, round_: PlannedRound, began: float
    ) -> AveragedGroup:
        """Average one half's values in place. Raises `AllreduceException` if one is missing or not finite."""
        group, plan = round_.group, round_.plan
        group_id, peers = group.group_id + half, group.peers
        attested = AttestedRound(self.run, *round_.position, group_id, layout_of(peers, plan.shares))
        self.auditing.expect(attested)
        tokens = {peer: token for peer in peers if (token := self.directory.token_of(peer)) is not None}
        members = {peer: token.member for peer, token in tokens.items()}
        trusted = frozenset(peer for peer, token in tokens.items() if token.role in TRUSTED_ROLES)
        guard = self.guard.begin(group.group_id, half, members)
        wire_format = self.averaging.wire_format
        runner = ExactAllReduce(
            terms=RoundTerms(
                peers=peers,
                weight=round_.weight,
                compression=compression_of(wire_format),
                sender_timeout=plan.sender_s,
                reducer_timeout=plan.reducer_s,
                traffic=self.traffic,
                may_contribute=self.service.may_contribute,
                guard=guard,
                unawaited=self.attendance.unawaited(set(peers) - {self.transport.peer_id}),
                attesting=Attesting(attested, self.key, self._key_of, members, trusted),
            ),
            transport=self.transport,
            service=self.service.name,
            tensors=values,
            shares=plan.shares,
            part_size_bytes=part_size(sum(map(torch.Tensor.numel, values)), wire_format, len(peers)),
            note=self.note,
            limits=self._screen.limits(half, len(values)),
            accused=self.accusations.current(),
        )
        self.service.begin(group_id, runner.reducer)
        self.events.add(GroupMet(group=group_id.hex(), peers=peers[:MOST_PEERS], shares=plan.shares[:MOST_PEERS]))
        is_whole = False
        try:
            await take_averages(runner, values)
            is_whole = True
        except BaseException:  # also on cancellation, because no peer may wait for this round's audit
            self.auditing.give_up(group_id)
            raise
        finally:
            if not round_.is_given_up():  # otherwise, the others' averages were still on their way
                self._note_absent(runner, half, round_, began)  # must precede any call that may raise
            self.events.add(runner.passed(is_whole))
            guard.ended()
        self.guard.accepted(half, values)
        self._screen.accepted(half, values)
        audit = Audit(
            peers, self.transport.peer_id, runner.evidence, key_of=self._key_of, are_means=self.guard.makes_means
        )
        self.auditing.begin(group_id, audit, auditors_of(plan.lines.second_reducers, group_id, members, trusted))
        return AveragedGroup(
            size=len(peers),
            samples=round(runner.least_weight),
            averaged_bytes=runner.reducer.received_bytes,
            weights=runner.reducer.weights_by_peer,
            counted=runner.reducer.counted_by_peer,
            attested=runner.attested_by_peer,
            digest=digest_of_all(runner.evidence.digests),
        )

    def _note_absent(self, runner: ExactAllReduce, half: bytes, round_: PlannedRound, began: float) -> None:
        is_nearly_over = time.monotonic() >= began + LATE_SHARE * round_.plan.limit_s
        are_named = self.attendance.round_ended(
            missed=runner.missed,
            silent=runner.reducer.silent,
            late=runner.reducer.late if is_nearly_over else (),
            reducers=runner.other_reducers,
            senders=round_.group.peers,
        )
        round_.came_about = are_named and runner.least_weight >= least_samples(round_.target)
        accounts = runner.accounts
        self.attendance.counted(half, accounts.undercounting(round_.target), accounts.attestations)

    def _key_of(self, peer: str) -> bytes | None:
        token = self.directory.token_of(peer)
        return None if token is None else token.public_key.encode()
