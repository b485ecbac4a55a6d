"""hivemind's gradient averager, open to members only, with exact rounds (`peer.averaging.all_reduce`)."""

from __future__ import annotations

import asyncio
import logging
import math
import multiprocessing as mp
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any, AsyncIterator  # noqa: UP035 - hivemind reads the annotations of rpc_ methods and knows only typing's

import torch
from hivemind.averaging.allreduce import AveragingMode
from hivemind.averaging.control import AveragingStage, StepControl
from hivemind.averaging.group_info import GroupInfo
from hivemind.averaging.matchmaking import MatchmakingException
from hivemind.optim.grad_averager import GradientAverager
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import averaging_pb2
from hivemind.utils import MPFuture
from hivemind.utils.asyncio import enter_asynchronously
from hivemind.utils.serializer import MSGPackSerializer

from auth.clock import swarm_time
from auth.swarm.access import AuthorizedAverager, SwarmAccess
from auth.tokens import AccessToken
from peer.averaging.absences import MOST_REMEMBERED, Absences, absent_of, unawaited
from peer.averaging.all_reduce import Attesting, ExactAllReduce, take_averages
from peer.averaging.bandwidth import RoundTraffic
from peer.averaging.declarations import MAX_BANDWIDTH, MOST_MISSED, Declaration, open_declaration, read_declaration
from peer.gradients.error_feedback import ErrorFeedback
from peer.gradients.gradient_codes import Factors, GradientCode
from peer.averaging.meetings import Heard, Meetings, Requirements, UnconfirmedAverageError
from peer.gradients.power_sgd import LowRank
from peer.gradients.remainders import RemainderFile, RemainderOrigin
from peer.averaging.rounds import RoundDeadline, forget_frames, give_back
from peer.averaging.shares import (
    NOBODY,
    TRUSTED_ROLES,
    GroupLines,
    group_lines,
    part_size,
    reduction_shares,
    round_limit,
    round_time,
)
from peer.config.training import Averaging
from peer.network.traffic import Traffic
from peer.node.states import StateCopy, StateOrder, StateService
from peer.reduction.attestation import AttestedRound, AttestedWeight, digest_of_all, layout_of
from peer.reduction.audit import Audit
from peer.reduction.auditing import Auditing
from peer.reduction.compression import compression_of
from peer.reduction.findings import Accusations, Finding
from peer.reduction.guard import AverageScreen, ReductionGuard
from peer.reduction.sizes import RoundBytes, values_sent
from peer.reporting.event_log import MOST_PEERS, NOWHERE, EventLog, GroupMet
from peer.runtime.mailbox import Mailbox
from peer.runtime.processes import name_fork
from peer.transport.p2p import P2PTransport

logger = logging.getLogger(__name__)
CANCEL_POLL_S = 0.05
PIPE_POLL_S = 3.0
MOST_HEARD = 1  # messages to the trainer's process that may wait; each has up to half of a pipe's size
UNAWAITED_ROUNDS = 4  # rounds without waiting for a sender that was silent twice
MISSED_ROUNDS = 16  # rounds without a share for a reducer that did not return all averages
UNDERCOUNTED_ROUNDS = 2  # successive rounds of undercounting after which a reducer is treated as failed
SENDERS_SHARE, REDUCERS_SHARE = 1 / 3, 2 / 3  # shares of the time limit to wait for a sender's or reducer's next part
LATE_SHARE = 0.9  # fraction of a round's time limit after which an awaited sender is late
SETTLE_S = 0.5  # delay after a round, until its tasks have ended and hivemind has released its errors


@dataclass(frozen=True)
class AveragedGroup:
    """The group and the samples of one successful averaging round."""

    size: int  # peers in the group
    samples: int  # the senders' total weight; if a sender was lost, the smallest total of any part
    averaged_bytes: int  # bytes received from others for reduction
    weights: Mapping[str, float] = field(default_factory=dict)  # peer ID -> samples in this peer's reduction
    counted: Mapping[str, float] = field(default_factory=dict)  # peer ID -> samples after any cut in weight
    attested: Mapping[str, AttestedWeight] = field(default_factory=dict)  # peer ID -> weight attested by the reducers
    seconds: float = 0.0  # time from the group's formation to the last average
    traffic: RoundTraffic | None = None  # measured traffic of this peer's connection
    lines: GroupLines = NOBODY  # declared bandwidths and roles
    peers: frozenset[str] = frozenset()  # peer IDs of the group
    digest: bytes = b""  # of all reducers' attestations
    pseudonyms: Mapping[str, str] = field(default_factory=dict)  # peer ID -> name in receipts


def _count(counter: Any) -> None:
    with counter.get_lock():
        counter.value += 1


async def given_up(step: StepControl) -> None:
    """Wait until a cancelled step is done; hivemind checks too early, and only once."""
    await StepControl.wait_for_cancel(step)
    while not step.done():  # noqa: ASYNC110 - set by another process
        await asyncio.sleep(CANCEL_POLL_S)


class BalancedRounds:
    """Mixin for a hivemind averager that divides the reduction by the peers' declared bandwidths.

    hivemind's solver uses a method that SciPy has removed, and solvers differ in their results. A
    round's time limit is derived from earlier rounds and the group's slowest connection.
    """

    async def _aggregate_with_group(self: Any, group_info: GroupInfo, **kwargs: Any) -> AveragedGroup:
        """Average with this group. After a `MatchmakingException`, hivemind seeks another group."""
        del kwargs["min_vector_size"]  # used by hivemind's own balancing
        peers = [peer.to_base58() for peer in group_info.peer_ids]
        tokens = [self.directory.token_of(peer) for peer in peers]
        control = self._control
        self._lines = lines = self._read_lines(group_info, tokens)
        if not self.wanted.quorum.is_in(peers):
            self.meetings.group_ended(came_about=False)
            raise MatchmakingException(f"beside these {len(peers)} others may take this step")
        try:
            shares = reduction_shares(self.total_size, lines.rates, lines.reduces, lines.trusted, lines.averages_of_own)
            promised_s = round_time(self.round_bytes, shares, lines.rates, lines.averages_of_own)
            patience_s = self._deadline.bounded(round_limit(lines.patience_s, promised_s))
            kwargs |= {"sender_timeout": patience_s * SENDERS_SHARE, "reducer_timeout": patience_s * REDUCERS_SHARE}
            before = self._traffic.passed()
            async with enter_asynchronously(self.get_tensors()) as tensors:
                self._nearly_over_at = time.monotonic() + LATE_SHARE * patience_s
                self.meetings.round_began(asyncio.get_running_loop().time() + patience_s)
                round_ = self._run_allreduce_inplace_(tensors, group_info, peer_fractions=shares, **kwargs)
                group = await asyncio.wait_for(round_, patience_s)
            if group.samples >= self.wanted.target:  # otherwise, it leads to no step
                control.stage = AveragingStage.FINISHED
                await self.meetings.confirm(group.digest)
        except BaseException as error:  # also on cancellation: the next declaration reports the failure
            is_void = isinstance(error, UnconfirmedAverageError)
            self._round_failed(control, is_void=is_void)
            if is_void:  # the trainer loads its gradients again
                raise
            raise MatchmakingException(f"the round failed: {error!r}") from error
        else:
            self._deadline.succeeded(group.seconds)
            sent, received = (now - then for now, then in zip(self._traffic.passed(), before, strict=True))
            traffic = RoundTraffic(sent, received, group.seconds, promised_s)
            pseudonyms = {peer: token.receipt_key for peer, token in zip(peers, tokens, strict=True) if token}
            return replace(group, traffic=traffic, lines=lines, peers=frozenset(peers), pseudonyms=pseudonyms)
        finally:
            asyncio.get_running_loop().call_later(SETTLE_S, give_back)


class SwarmGradientAverager(AuthorizedAverager, BalancedRounds, GradientAverager):
    """An averager that accumulates gradients in `.grad` (sums over samples) and averages them."""

    request_timeout = PIPE_POLL_S  # interval at which hivemind's loop looks for the trainer's calls without news

    def __init__(
        self,
        parameters: Iterable[torch.nn.Parameter],
        *,
        access: SwarmAccess,
        traffic: Traffic,
        allreduce_timeout: float,
        averaging: Averaging | None = None,
        may_reduce: bool = True,
        guard: ReductionGuard | None = None,
        events: EventLog = NOWHERE,
        **kwargs: Any,
    ) -> None:
        """Set up the averager; `averaging`: initial settings; `events`: the log of its process."""
        parameters = tuple(parameters)
        self._shapes = shapes = [parameter.shape for parameter in parameters]
        self._values_sent = cache(lambda rank: values_sent(shapes, rank))
        self.averaging = averaging or Averaging()  # the current gradient encoding; each process has a copy
        self._code = self._code_in(self.averaging)
        self._averaged = mp.Value("b", False)  # whether the values last loaded have been averaged
        self._may_reduce = may_reduce
        self._events = events
        self._guard = guard or ReductionGuard()
        self.wanted = Requirements()  # as told by the trainer's process; each process has a copy
        self.heard = Mailbox[Heard](MOST_HEARD)  # from the averager's process
        self.copies_wanted = Mailbox[None](1)  # from the averager's process
        self.copies = Mailbox[StateCopy | None](1)  # to it; None: the state could not be copied
        self.access, self._traffic = access, traffic
        self.findings = self._guard.findings
        self._accusations = Accusations(time.monotonic)
        self._missed = Absences(free=0, first_rounds=MISSED_ROUNDS)  # reducers that did not return all averages
        self._silent = Absences(free=1, first_rounds=UNAWAITED_ROUNDS)  # senders that did not send all parts
        self._low = Absences(free=0, first_rounds=MISSED_ROUNDS)  # reducers that undercounted repeatedly
        self._undercounted: dict[bytes, dict[str, int]] = {}  # half -> reducer -> successive rounds with undercounting
        self._screen = AverageScreen()
        self._control: StepControl | None = None  # control of the scheduled or running round
        self._lines = NOBODY  # connections of the current group
        self._nearly_over_at = math.inf  # time after which an awaited sender is late
        self._position = (0, 0)  # era and step of the wanted groups
        self._failed_rounds = mp.Value("i", 0)
        self._moves, self._turned_away = mp.Value("q", 0), mp.Value("q", 0)
        self._held: list[torch.Tensor] = []  # gradient sums of a round, while newer sums accumulate
        self._held_samples = 0
        self._longest_s = allreduce_timeout
        self._deadline = RoundDeadline(allreduce_timeout)
        super().__init__(
            parameters,
            allreduce_timeout=None,  # the group's own limit is shorter, and its average may wait for confirmation
            reuse_grad_buffers=True,
            allow_state_sharing=False,  # by hivemind's own means; see `peer.node.states`
            **kwargs,
        )

    def _code_in(self, averaging: Averaging) -> GradientCode:
        if averaging.powersgd_rank:
            return LowRank(self._shapes, averaging.powersgd_rank)
        return ErrorFeedback() if averaging.sends_sparse else GradientCode()

    def size_in(self, averaging: Averaging) -> RoundBytes:
        """Return the sizes in bytes of gradients and of their averages with these settings."""
        return RoundBytes.of(averaging.wire_format, self._values_sent(averaging.powersgd_rank))

    @property
    def round_bytes(self) -> int:
        """The bytes of gradients that a peer sends per round."""
        return round(self.size_in(self.averaging).own)

    def change(self, averaging: Averaging) -> bool:
        """Use these settings' gradient encoding from the next round on; return whether it changed.

        Call this method while no round runs, before the next gradients are loaded. A change of
        PowerSGD's rank drops the remainders.
        """
        return self._take_up(averaging)

    def want(self, wanted: Requirements) -> None:
        """Send the trainer's requirements for the next group to the averager's process, if they have changed."""
        if wanted != self.wanted:
            self.wanted = wanted
            self._outer_pipe.send(("_want", [wanted], {}))

    async def _want(self, wanted: Requirements) -> None:
        self.wanted = wanted
        self.meetings.want(wanted)

    def order(self, order: StateOrder) -> Any:
        """Send an order to the averager's process; return a future for what the trainer wants, if anything."""
        future: MPFuture = MPFuture()
        self._outer_pipe.send(("_obey", [order, future], {}))
        return future

    async def _obey(self, order: StateOrder, future: Any) -> None:
        found = None
        try:
            found = await self.states.obey(order)
        except Exception:  # a peer that cannot read the DHT finds nothing, and tries again
            logger.warning("an order on the state failed: %s", type(order).__name__, exc_info=True)
        future.set_result(found)

    async def _copied_state(self) -> StateCopy:
        self.copies_wanted.put(None)
        copied = await asyncio.to_thread(self.copies.get)
        if copied is None:
            raise RuntimeError("the trainer could not copy its state")
        return copied

    @property
    def moves(self) -> int:
        """A number that grows while a download progresses."""
        return int(self._moves.value)

    @property
    def turned_away(self) -> int:
        """The number of requests for the state that were rejected as busy."""
        return int(self._turned_away.value)

    @cached_property
    def states(self) -> StateService:
        """This peer's transfers of states, created on first use in the averager's process."""
        return StateService(
            self._transport,
            self.prefix,
            self.directory,
            values=sum(map(torch.Tensor.numel, self.parameters)),
            donor_roles=self.access.donor_roles,
            traffic=self._traffic,
            copy=self._copied_state,
            moved=partial(_count, self._moves),
            turned_away=partial(_count, self._turned_away),
        )

    @cached_property
    def meetings(self) -> Meetings:
        """This peer's meetings with others, created on first use in the averager's process."""
        sign = self.access.credentials.device_key.sign
        return Meetings(self._transport, f"{self.prefix}.meet", self.directory, self._opened, sign, self.heard.put)

    @cached_property
    def auditing(self) -> Auditing:
        """This peer's audits of reducers, created on first use in the averager's process."""
        return Auditing(self._transport, f"{self.prefix}.audit", self.directory, self._traffic, self._note)

    @cached_property
    def _transport(self) -> P2PTransport:
        return P2PTransport(self._p2p)

    async def add_p2p_handlers(self, *args: Any, **kwargs: Any) -> None:
        """Let other peers call this averager, follow it to a group, download its state, and compare averages."""
        await super().add_p2p_handlers(*args, **kwargs)
        for service in self.meetings, self.states, self.auditing:
            await service.serve()

    def _take_up(self, averaging: Averaging) -> bool:
        """Switch this process to a new encoding; reset the deadline, counters and old norms."""
        if averaging.code == self.averaging.code:
            return False
        if averaging.powersgd_rank != self.averaging.powersgd_rank:
            self._code = self._code_in(averaging)
            self._screen.forget_tensors()
            self._guard.forget_norms()
        self.averaging, self._deadline = averaging, RoundDeadline(self._longest_s)
        self._undercounted.clear()
        return True

    @property
    def failed_rounds(self) -> int:
        """The number of failed rounds, including those that hivemind retries internally."""
        return int(self._failed_rounds.value)

    @property
    def holds(self) -> bool:
        """Whether gradients are held for a round while newer gradients accumulate separately."""
        return bool(self._held)

    @property
    def due_samples(self) -> int:
        """This peer's samples towards the next global step."""
        return self._held_samples if self.holds else int(self.local_samples_accumulated)

    @property
    def all_samples(self) -> int:
        """This peer's samples towards the next two global steps."""
        return int(self.local_samples_accumulated) + self._held_samples

    @torch.no_grad()
    def hold(self) -> None:
        """Move accumulated gradients to a buffer; `.grad` then accumulates for the next step."""
        self._held = [gradient.clone() for gradient in self._grad_accumulators()]
        self._held_samples = int(self.local_samples_accumulated)
        self.reset_accumulated_grads_()

    @torch.no_grad()
    def take_back(self) -> None:
        """Add the held gradients back to `.grad`, so that all gradients belong to the same step."""
        for gradient, held in zip(self._grad_accumulators(), self._held, strict=True):
            gradient.add_(held)
        self.local_samples_accumulated += self._held_samples
        self._held, self._held_samples = [], 0

    def drop_all(self) -> int:
        """Drop all accumulated and held gradients; return their number of samples."""
        lost = self.all_samples
        self._held, self._held_samples = [], 0
        self.reset_accumulated_grads_()
        return lost

    @property
    def factors(self) -> Mapping[int, Factors]:
        """The PowerSGD factors of the last averaged matrices, by tensor index; empty without PowerSGD."""
        return self._code.factors

    def keep_remainders(self, file: RemainderFile, era: int, step: int) -> None:
        """Save the remainders, which belong to the state after `step`, for the next session."""
        file.keep(self._origin(era, step), self._code.remainders)

    def resume_remainders(self, file: RemainderFile, era: int, step: int) -> None:
        """Load an earlier session's remainders of this encoding, for use after `step`."""
        self._code.resume(file.take(self._origin(era, step), self._code.remainder_shapes(self._shapes)))

    def _origin(self, era: int, step: int) -> RemainderOrigin:
        run = f"{self.access.run} of {self.access.credentials.authority.hex()}"
        return RemainderOrigin(run, era, step, repr(self.averaging.code))

    def forget_remainders(self) -> None:
        """Drop the remainders of earlier rounds."""
        self._code.forget()

    @contextmanager
    def making_room(self) -> Iterator[None]:
        """Use `.grad` for the averaged gradient during a step, then restore the newer gradients.

        The averaged tensors then hold the step's gradient; remainders are kept for later steps.
        """
        with self.get_tensors() as averaged:
            sums = self._held or list(self._grad_accumulators())
            self._code.settle(averaged, sums, averaged=bool(self._averaged.value))
        newer = [parameter.grad for parameter in self.parameters]
        for parameter, spare in zip(self.parameters, self._held, strict=False):  # no effect if no gradients are held
            parameter.grad = spare
        yield
        if not self.holds:
            self.reset_accumulated_grads_()
        for parameter, gradient in zip(self.parameters, newer, strict=True):
            parameter.grad = gradient
        self._held, self._held_samples = [], 0

    @torch.no_grad()
    def load_accumulators_into_averager_(self) -> None:
        """Load the mean gradient (zero if no samples are due) into the averaged tensors."""
        scale = 1.0 / self.due_samples if self.due_samples else 0.0
        with self.get_tensors() as averaged:
            for gradient, target in zip(self._held or self._grad_accumulators(), averaged, strict=True):
                target.copy_(gradient).mul_(scale)
            self._averaged.value = False
            self._code.load(averaged, self.due_samples)

    @torch.no_grad()
    def load_average(self, tensors: Iterable[torch.Tensor]) -> None:
        """Load an average that others have made into the averaged tensors."""
        with self.get_tensors() as averaged:
            for ours, theirs in zip(averaged, tensors, strict=True):
                ours.copy_(theirs)

    def run(self) -> None:
        """Run the forked process."""
        name_fork("averager")
        super().run()

    def schedule_step(self, scheduled_time: float | None = None, **kwargs: Any) -> StepControl:
        """Start looking for a group, which may begin once the round is triggered."""
        return super().schedule_step(scheduled_time or swarm_time(), **kwargs)

    async def _step(self, *, step: StepControl, **kwargs: Any) -> None:
        rate, mode, _ = MSGPackSerializer.loads(step.data_for_gather)  # as declared by hivemind
        self._control, self._rate, self._takes_connections = step, rate, mode == AveragingMode.NODE.value
        self._position = self.wanted.position
        self._take_up(self.averaging.with_code(self.wanted.code))
        self._declare()
        step.wait_for_cancel = partial(given_up, step)
        self._matchmaking = self  # instead of hivemind's
        try:
            await super()._step(step=step, **kwargs)
        except UnconfirmedAverageError as error:  # the trainer's side has it, too
            logger.warning("no step is taken: %s", error)
        finally:
            if step.done() and not step.cancelled():  # hivemind still references the step
                forget_frames(step.exception())

    async def look_for_group(self, step: StepControl) -> GroupInfo:
        """Return the next group, as hivemind expects it of its matchmaking."""
        group = await self.meetings.look_for_group(step)
        return GroupInfo(group.group_id, tuple(map(PeerID.from_base58, group.peers)), group.declared)

    async def _aggregate_with_group(self, group_info: GroupInfo, **kwargs: Any) -> AveragedGroup:
        """Average with this group; stop if the step is cancelled, which hivemind does not check.

        The other members' round then fails too, so a retry counts these samples only once.
        """
        assert self._control is not None  # set by `_step`, which looks for the group
        if self._averaged.value:  # the gradients are overwritten, so a retry is impossible
            raise RuntimeError("a round has averaged the gradients, and failed after that")
        averaging = asyncio.create_task(super()._aggregate_with_group(group_info, **kwargs))
        waiting = asyncio.create_task(self._control.wait_for_cancel())
        try:
            await asyncio.wait({averaging, waiting}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            waiting.cancel()
            averaging.cancel()  # no effect if the round has ended
            await asyncio.wait({averaging})
        return averaging.result()

    def _note(self, finding: Finding) -> None:
        """Report a finding to the trainer's process, and accuse the peer in later declarations."""
        self.findings.tell(finding)
        self._accusations.accuse(finding.peer_id)

    def _key_of(self, peer: PeerID) -> bytes | None:
        token = self.directory.token_of(peer.to_base58())
        return None if token is None else token.public_key.encode()

    def _declare(self) -> None:
        """Sign the declaration with which this peer joins the next group."""
        assert self._control is not None
        era, step = self._position
        said = Declaration(
            run=self.access.run,
            era=era,
            step=step,
            compression=self.averaging.wire_format,
            powersgd_rank=self.averaging.powersgd_rank,
            rate=None if self._rate is None else min(MAX_BANDWIDTH, float(self._rate)),
            takes_connections=self._takes_connections,
            reduces=self._may_reduce,
            patience_s=self._deadline.seconds,
            accused=self._accusations.current(),
            missed=list(dict.fromkeys(self._missed.newest(MOST_MISSED) + self._low.newest(MOST_MISSED)))[-MOST_MISSED:],
        )
        self._declared = said.signed(self.access.credentials.device_key.sign)
        self.meetings.declare(self._position, self._declared)

    def _opened(self, gathered: bytes, token: AccessToken) -> Declaration:
        """Read a peer's declaration for any step. Raises `ValueError` if it is invalid."""
        return open_declaration(gathered, token.public_key, self.access.run)

    def _read(self, gathered: bytes, token: AccessToken) -> Declaration:
        """Read a peer's declaration for the current round. Raises `ValueError` if it is invalid."""
        return read_declaration(gathered, token.public_key, self.access.run, self._position, self.averaging.code)

    def _read_lines(self, group_info: GroupInfo, tokens: Sequence[AccessToken | None]) -> GroupLines:
        """Read the group's declarations. Raises `MatchmakingException` if one is invalid."""
        known = [token for token in tokens if token is not None]
        if len(known) < len(tokens):
            raise MatchmakingException("a peer of the group holds no valid token any more")
        try:
            if group_info.gathered[group_info.peer_ids.index(self.peer_id)] != self._declared:
                raise ValueError("the leader changed what this peer had said of itself")
            said = [self._read(gathered, token) for gathered, token in zip(group_info.gathered, known, strict=True)]
        except ValueError as error:
            self.meetings.distrust_leader(str(error))
            raise MatchmakingException(str(error)) from error
        peers = [peer.to_base58() for peer in group_info.peer_ids]
        return group_lines(peers, known, said, self.size_in(self.averaging).averages_of_own)

    def _round_failed(self, control: StepControl | None, *, is_void: bool = False) -> None:
        """Record a failed round unless this peer cancelled it; unless it is void, its time limit may be too short."""
        if control is None or control.done() or control is not self._control:
            return
        self._failed_rounds.value += 1
        self.meetings.round_failed()
        if not (is_void or self._missed.current()):
            self._deadline.failed()
        self._declare()

    def _undercounting_again(self, runner: ExactAllReduce, half: bytes) -> set[str]:
        """Return the reducers that undercounted in several rounds; an honest one may do so once."""
        accounts, before = runner.accounts, self._undercounted.get(half, {})
        rounds = {peer: before.get(peer, 0) + 1 for peer in accounts.undercounting(self.wanted.target)}
        again = {peer for peer, count in rounds.items() if count >= UNDERCOUNTED_ROUNDS}
        unheard = {peer: count for peer, count in before.items() if peer not in accounts.attestations}
        once = unheard | {peer: count for peer, count in rounds.items() if peer not in again}
        self._undercounted[half] = dict(list(once.items())[-MOST_REMEMBERED:])
        return again

    def _note_absent(self, runner: ExactAllReduce, half: bytes, control: StepControl | None) -> None:
        """Record the peers that failed; none if most did, because this peer may be at fault."""
        if control is None or control.done() or control is not self._control:  # cancelled before the parts arrived
            return
        own = {self.peer_id.to_base58()}
        senders = {peer.to_base58() for peer in runner.sender_peer_ids}
        late = runner.late if time.monotonic() >= self._nearly_over_at else set()
        silent = absent_of(late or runner.silent, senders)  # the end of a round bans senders with open streams
        unreturned = set() if late else runner.missed  # reducers may have waited for the late sender too
        missed = absent_of(unreturned, runner.other_reducers | own)
        self._missed.round_ended(missed)
        self._silent.round_ended(silent)
        is_full = runner.least_weight >= self.wanted.target
        self.meetings.group_ended(came_about=is_full and missed == unreturned)
        low = self._undercounting_again(runner, half) - own
        self._low.round_ended(low)
        for peer in missed | low | silent:
            token = self.directory.token_of(peer)
            who = "no member" if token is None else f"{token.member} (device {token.device_id}, {token.role})"
            if peer in silent - missed - low:
                did = "did not send all its parts"
            else:
                how = "did not return all averages" if peer in missed else "counted too few of others' samples again"
                did = f"{how}: it gets no share for some rounds"
            logger.warning("missing: %s, peer %s, %s", who, peer, did)

    async def rpc_aggregate_part(
        self, stream: AsyncIterator[averaging_pb2.AveragingData], context: P2PContext
    ) -> AsyncIterator[averaging_pb2.AveragingData]:
        """Return averages to a sender within this peer's upload limit."""
        async for message in self._traffic.sending(super().rpc_aggregate_part(stream, context)):
            yield message

    @contextmanager
    def _register_allreduce_group(self, group_info: GroupInfo) -> Iterator[None]:
        """Accept parts for each half of a round; then release the senders of a half that never ran."""
        halves = [group_info.group_id + half for half in self._code.halves]
        for half in halves:  # the last half has the group's own ID and is registered below
            self._running_groups[half] = asyncio.Future()
        with super()._register_allreduce_group(group_info):
            try:
                yield
            finally:
                for half in halves:
                    self._running_groups[half].cancel()  # no effect on a started half
                    if half != group_info.group_id:
                        del self._running_groups[half]

    async def _run_allreduce_inplace_(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, group_id: bytes | None = None, **kwargs: Any
    ) -> AveragedGroup:
        """Average in place with the current encoding. Raises an exception if a value is missing."""
        del group_id
        began, halves = time.perf_counter(), list[AveragedGroup]()

        async def reduce(values: Sequence[torch.Tensor], half: bytes = b"") -> None:
            halves.append(await self._average_exactly(values, group_info, half, **kwargs))

        await self._code.average(tensors, reduce)
        self._averaged.value = True
        return replace(
            halves[-1],
            averaged_bytes=sum(half.averaged_bytes for half in halves),
            seconds=time.perf_counter() - began,
            digest=digest_of_all([half.digest for half in halves]),
        )

    async def _average_exactly(
        self, tensors: Sequence[torch.Tensor], group_info: GroupInfo, half: bytes, **kwargs: Any
    ) -> AveragedGroup:
        """Average in place. Raises `AllreduceException` if a value is missing or not finite."""
        group_id, control = group_info.group_id + half, self._control
        layout = layout_of(group_info.peer_ids, kwargs["peer_fractions"])
        attested = AttestedRound(self.access.run, *self._position, group_id, layout)
        self.auditing.expect(attested)
        tokens = {peer: self.directory.token_of(peer) for peer in map(PeerID.to_base58, group_info.peer_ids)}
        members = {peer_id: token.member for peer_id, token in tokens.items() if token is not None}
        trusted = frozenset(peer_id for peer_id, token in tokens.items() if token and token.role in TRUSTED_ROLES)
        guard = self._guard.begin(group_info.group_id, half, members)
        wire_format = self.averaging.wire_format
        values = sum(map(torch.Tensor.numel, tensors))
        others = {peer.to_base58() for peer in group_info.peer_ids if peer != self.peer_id}
        runner = ExactAllReduce(
            p2p=self._p2p,
            servicer_type=type(self),
            prefix=self.prefix,
            tensors=tensors,
            ordered_peer_ids=group_info.peer_ids,
            traffic=self._traffic,
            note=self._note,
            limits=self._screen.limits(half, len(tensors)),
            accused=self._accusations.current(),
            may_contribute=self.may_contribute,
            guard=guard,
            unawaited=unawaited(self._silent.current(), others),
            attesting=Attesting(attested, self.access.credentials.device_key, self._key_of, members, trusted),
            **kwargs
            | {
                "compression": compression_of(wire_format),
                "part_size_bytes": part_size(values, wire_format, group_info.group_size),
            },
        )
        self._running_groups[group_id].set_result(runner)
        peers = tuple(peer.to_base58() for peer in group_info.peer_ids[:MOST_PEERS])
        self._events.add(GroupMet(group=group_id.hex(), peers=peers, shares=runner.peer_fractions[:MOST_PEERS]))
        began, is_whole = time.perf_counter(), False
        try:
            await take_averages(runner, tensors)
            is_whole = True
        except BaseException:  # also on cancellation, because no peer may wait for this round's audit
            self.auditing.give_up(group_id)
            raise
        finally:
            self._note_absent(runner, half, control)  # must precede any call that may raise
            self._events.add(runner.passed(is_whole))
            guard.ended()
        self._guard.accepted(half, tensors)
        self._screen.accepted(half, tensors)
        audit = Audit(
            group_info.peer_ids,
            self.peer_id,
            runner.evidence,
            key_of=self._key_of,
            are_means=self._guard.makes_means,
        )
        self.auditing.begin(group_id, audit, list(map(PeerID.from_base58, self._lines.second_reducers)))
        return AveragedGroup(
            size=group_info.group_size,
            samples=round(runner.least_weight),
            averaged_bytes=runner.received_bytes,
            weights=runner.weights_by_peer,
            counted=runner.counted_by_peer,
            attested=runner.attested_by_peer,
            seconds=time.perf_counter() - began,
            digest=digest_of_all(runner.evidence.digests),
        )
