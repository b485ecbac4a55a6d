"""The worker process, which joins the swarm, loads the keeper's state, and trains or assists.

The start-up order matters because the swarm node is a fork: it starts before the accelerator is
used and before the data pipeline starts threads. The process never imports gRPC; it communicates
with its agent through a pipe.
"""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import torch
from hivemind.utils.logging import use_hivemind_log_handler
from transformers import PreTrainedModel

from auth.clock import follow_coordinator, swarm_time
from auth.credentials import Credentials
from auth.errors import ManyhandsError, SwarmError, WorkerError
from peer.averaging.ways import fewest_bytes
from peer.backends import Backend
from peer.backends.devices import choose_backend, compile_if_it_pays
from peer.backends.hardware import find_device, pick_threads
from peer.backends.local_steps import own_model, with_local_steps
from peer.backends.memory import FoundSizes, describe_work, fitting_microbatch_size, is_out_of_memory
from peer.config.phases import phase_at
from peer.config.run import RunConfig
from peer.config.training import Averaging
from peer.data.batching.batches import Batch, BatchStream, PhasedBatches, open_batches
from peer.data.batching.synthetic import random_batch
from peer.data.tokenization.special_tokens import SpecialIds
from peer.data.tokenization.tokenizers import load_special_ids, load_tokenizer
from peer.gradients.remainders import RemainderFile
from peer.limits.usage import CACHE_FOLDER, require_memory
from peer.models.build import build_model
from peer.models.optimizer_setup import state_size
from peer.network.traffic import Throttle, Traffic, require_rate
from peer.reduction.sizes import gradient_bytes
from peer.reporting.advice import Adviser, SparingReports
from peer.reporting.event_log import FOLDER, EventLog, ProcessEnded, ProcessStarted
from peer.reporting.messages import (
    CheckpointFetched,
    ClockRead,
    Failed,
    KeeperAt,
    LineInDoubt,
    LineMeasured,
    Notice,
    PhaseEntered,
    Progress,
    Ready,
    StepReport,
    Stop,
    Stopped,
    Transferred,
    WorkerMessage,
    WorkerPlan,
)
from peer.runtime.devices import Stay
from peer.runtime.processes import (
    LOG_FILE,
    die_with_parent,
    exit_now,
    kill_forks_at_end,
    lead_own_group,
    write_output_to,
)
from peer.runtime.repeats import RepeatFilter
from peer.runtime.version import software_version
from peer.swarm.moves import StepOutcome
from peer.swarm.swarm import Swarm, SwarmProgress
from peer.training.bootstrap import BEACON_WAIT_S, StateTaking
from peer.training.tally import Tally
from peer.training.trainer import train

SIZES_FILE = "microbatch.json"
REMAINDERS_FILE = "remainders.safetensors"
MAX_LOG_BYTES = 5_000_000
TRAFFIC_EVERY_S = 2.0
ASSIST_POLL_S = 0.03  # maximum time that a full batch waits for this peer
ASSIST_PROGRESS_S = 1.0


def run_worker(plan: WorkerPlan, pipe: Connection, parent_pid: int) -> None:
    """Run the worker in a spawned process; send a fatal error as a `Failed` message."""
    lead_own_group()
    die_with_parent(parent_pid)
    kill_forks_at_end()
    _write_output_to(Path(plan.data_dir) / LOG_FILE)
    try:
        Worker(plan, pipe.send).run(pipe)
    except ManyhandsError as error:
        traceback.print_exc()
        pipe.send(Failed(error.code, error.exit_code, str(error)))
    except Exception as error:  # noqa: BLE001 - the process's outermost boundary; the log has the traceback
        traceback.print_exc()
        text = f"The training process failed ({type(error).__name__}: {error}); details are in {LOG_FILE}."
        pipe.send(Failed(WorkerError.code, WorkerError.exit_code, text, is_out_of_memory(error)))


class Worker:
    """A worker's membership in the swarm, from joining to leaving."""

    def __init__(self, plan: WorkerPlan, send: Callable[[WorkerMessage], None]) -> None:
        self._plan = plan
        self._traffic = Traffic(Throttle(plan.upload_rate), Throttle(plan.download_rate))
        self._send = send
        self._sending = threading.Lock()
        self._report = SparingReports(lambda text: self._tell(Notice("warning", text)), time.monotonic)
        self._stop = threading.Event()
        self._remainders = RemainderFile(Path(plan.data_dir) / CACHE_FOLDER / REMAINDERS_FILE)
        self._events = EventLog(Path(plan.data_dir) / FOLDER, "worker", time.time)
        self._swarm: Swarm | None = None
        self._keeper_at = plan.initial_peers  # latest known addresses of the keeper
        self._taking: StateTaking | None = None

    def run(self, pipe: Connection) -> None:
        """Join the swarm, train or assist until stopped, and leave."""
        follow_coordinator(self._plan.clock_offset_s)
        threading.Thread(target=self._listen, args=(pipe,), daemon=True).start()
        plan, tokenizer_dir = self._plan, Path(self._plan.tokenizer_dir)
        config = RunConfig.from_json(plan.run_config_json)
        credentials = Credentials(Path(plan.credentials_dir))
        torch.set_num_threads(1)  # threads do not survive a fork; the backend starts them later
        vocabulary, special = load_tokenizer(tokenizer_dir).get_vocab_size(), load_special_ids(tokenizer_dir)
        model = build_model(config, vocabulary, special)
        role = credentials.access_token(swarm_time()).role
        self._events.add(ProcessStarted(software=software_version(), role=role, peer=credentials.device_key.peer_id))
        assists = role == "auxiliary"
        parameters = sum(parameter.numel() for parameter in model.parameters())
        require_memory(plan.max_memory_bytes, parameters, state_size(config, model).moments)
        take_part = self._assist if assists else self._prepare_training(config, model, vocabulary, special)
        self._swarm = swarm = Swarm.join(
            config=config,
            model=model,
            credentials=credentials,
            initial_peers=self._keeper_at,
            place=plan.place,
            relays=plan.relays,
            traffic=self._traffic,
            on_suspicion=self._tell,
            on_lost=self._end_at_once,
            events=self._events,
        )
        swarm.keeper_at(self._keeper_at)  # the addresses may have changed while joining
        threading.Thread(target=self._tell_traffic, args=(swarm,), daemon=True).start()
        try:
            self._require_rates(swarm, model, config.averaging)
            taking = StateTaking(swarm, model, self._tell, self._stop, random.Random(), time.monotonic)
            self._taking = taking
            if has_state := taking.run():
                take_part(swarm, credentials.device_key.peer_id)
        finally:
            swarm.leave()
        self._tell(self._transferred())
        self._events.add(ProcessEnded(cause=self._why_left(swarm)))
        self._tell(Stopped(self._why_left(swarm)))
        if has_state and not swarm.has_ended:
            swarm.state.keep_remainders(self._remainders)  # last, because saving may take a long time

    def _end_at_once(self, lost: SwarmError) -> NoReturn:
        self._events.add(ProcessEnded(cause=str(lost)))
        with suppress(OSError):  # the agent has exited
            self._tell(Failed(lost.code, lost.exit_code, str(lost)))
        exit_now(lost.exit_code)

    def _why_left(self, swarm: Swarm) -> str:
        if self._stop.is_set():
            return "told to stop"
        return f"the run has ended with step {swarm.step}" if swarm.has_ended else "the data has ended"

    def _assist(self, swarm: Swarm, peer_id: str) -> None:
        torch.set_num_threads(pick_threads(self._plan.threads))  # number of threads for the optimizer
        self._tell(Ready(peer_id, swarm.step, device="", microbatch_size=0))
        assist(swarm, self._tell, partial(self._is_over, swarm), time.monotonic, self._stop.wait)

    def _is_over(self, swarm: Swarm) -> bool:
        """Return whether the worker was stopped or the run has ended."""
        return self._stop.is_set() or swarm.has_ended

    def _prepare_training(
        self, config: RunConfig, model: PreTrainedModel, vocabulary: int, special: SpecialIds
    ) -> Callable[[Swarm, str], None]:
        """Check that this machine can train, and return a function that trains after joining."""
        plan = self._plan
        own = own_model(config, model)
        start_backend = choose_backend(find_device(plan.device), plan.precision, config, own)
        found = FoundSizes(Path(plan.data_dir) / SIZES_FILE)

        def take_part(swarm: Swarm, peer_id: str) -> None:
            started = start_backend(pick_threads(plan.threads))
            backend = with_local_steps(config, started, own, model, swarm)
            fitting = partial(fitting_microbatch_size, backend, vocab_size=vocabulary, special=special, found=found)
            now = config.in_phase(swarm.step)
            size = plan.microbatch_size or fitting(now)
            self._compile(started, now, swarm.step, size, vocabulary, special)
            enter = partial(self._enter_phase, config, fitting, backend.stage)
            with PhasedBatches(config, lambda: swarm.step, enter, swarm.samples_at_once) as batches:
                self._tell(Ready(peer_id, swarm.step, backend.description, size))
                adviser = Adviser(swarm.conditions, self._tell, time.monotonic)

                def advise(done: StepOutcome) -> None:
                    adviser.settled(done.samples, done.lost_samples, done.lost_reason)

                is_over = partial(self._is_over, swarm)
                swarm.state.resume_remainders(self._remainders)
                train(backend, batches, swarm, self._tell, is_over, time.monotonic, advise)

        return take_part

    def _compile(
        self,
        backend: Backend,
        config: RunConfig,
        step: int,
        size: int,
        vocabulary: int,
        special: SpecialIds,
    ) -> None:
        """Compile the layers if this saves time, before other peers wait for this peer."""
        plan = self._plan
        stay = Stay(config.schedule.total_steps - step, plan.max_hours)
        compile_if_it_pays(
            backend,
            plan.compile,
            stay,
            describe_work(backend.description, config, vocabulary, size),
            lambda: random_batch(config, vocabulary, special, size, np.random.default_rng(config.run.seed)),
            Path(plan.data_dir),
            lambda text: self._tell(Notice("info", text)),
            time.monotonic,
        )

    def _enter_phase(
        self, config: RunConfig, fitting: Callable[[RunConfig], int], stage: Callable[[Batch], Batch], step: int
    ) -> BatchStream:
        """Report the new phase to the agent, and open the phase's batches."""
        if config.phases:
            self._tell(PhaseEntered(phase_at(config, step)))
        plan, now = self._plan, config.in_phase(step)
        microbatch_size = plan.microbatch_size or fitting(now)
        return open_batches(
            now,
            Path(plan.tokenizer_dir),
            Path(plan.data_dir),
            plan.device_number,
            microbatch_size,
            report=self._report,
            stage=stage,
            reserve=self._traffic.down.reserve,
        )

    def _require_rates(self, swarm: Swarm, model: PreTrainedModel, usual: Averaging) -> None:
        """Raise `ConfigError` if a rate limit of the volunteer is too low for averaging.

        Averaging must be possible with the swarm's current gradient compression (without a beacon,
        the run file's, `usual`) or with the smallest one that the keeper may choose.
        """
        if self._plan.upload_rate is None and self._plan.download_rate is None:
            return
        swarm.await_beacon(BEACON_WAIT_S)
        averaging = swarm.averaging
        needed_bytes = min(gradient_bytes(averaging, model), fewest_bytes(usual, model))
        for option, rate in (
            ("--max-upload-rate", self._plan.upload_rate),
            ("--max-download-rate", self._plan.download_rate),
        ):
            require_rate(option, rate, needed_bytes, averaging.averaging_timeout_s)

    def _tell_traffic(self, swarm: Swarm) -> None:
        """Report traffic every two seconds, and request a bandwidth measurement when due."""
        with suppress(OSError):  # the agent has exited
            while True:
                self._tell(self._transferred())
                if swarm.line_is_due():
                    self._tell(LineInDoubt())
                time.sleep(TRAFFIC_EVERY_S)

    def _transferred(self) -> Transferred:
        awaits_state = self._swarm is not None and self._swarm.state.is_downloading
        return Transferred(self._traffic.up.total_bytes, self._traffic.down.total_bytes, awaits_state)

    def _tell(self, event: WorkerMessage) -> None:
        """Send an event; safe from any thread."""
        with self._sending:
            self._send(event)

    def _listen(self, pipe: Connection) -> None:
        """Handle the agent's messages until `Stop` or the agent's exit."""
        try:
            while not isinstance(message := pipe.recv(), Stop):
                if isinstance(message, LineMeasured) and self._swarm is not None:
                    self._swarm.line_measured(message.rate)
                elif isinstance(message, ClockRead):
                    follow_coordinator(message.offset_s)
                elif isinstance(message, KeeperAt):
                    self._keeper_at = message.addresses  # stored before the check, to avoid a race with `run`
                    if self._swarm is not None:
                        self._swarm.keeper_at(message.addresses)
                elif isinstance(message, CheckpointFetched) and self._taking is not None:
                    self._taking.hear(message)
        except (EOFError, OSError):
            logging.getLogger(__name__).info("the agent has exited")
        self._stop.set()
        if self._swarm is not None:
            self._swarm.interrupt()


class AssistedSwarm(Protocol):
    """The part of `peer.swarm.swarm.Swarm` that `assist` needs."""

    def begin_training(self) -> None: ...

    def advance(self) -> StepOutcome | None: ...

    def progress(self) -> SwarmProgress: ...


def assist(
    swarm: AssistedSwarm,
    send: Callable[[Progress | StepReport], None],
    should_stop: Callable[[], bool],
    clock: Callable[[], float],
    wait: Callable[[float], object],
) -> None:
    """Average and step with the trainers until `should_stop`, without training.

    Such a peer reduces a share of the others' gradients (DeDLOC, Diskin et al. 2021, arXiv
    2106.10207, section 3.2) and is credited for it. Its own gradient has no weight, and its reports
    contain no samples, losses or training time.
    """
    swarm.begin_training()
    next_progress_at = clock()
    while not should_stop():
        outcome = swarm.advance()
        now = clock()
        if outcome is not None and outcome.averaged:
            send(Tally(began_at=now, data_wait_s=0.0).report(outcome, now, 0.0))
        if now >= next_progress_at:
            next_progress_at = now + ASSIST_PROGRESS_S
            send(Tally(began_at=now, data_wait_s=0.0).progress(swarm.progress()))
        wait(ASSIST_POLL_S)


def _write_output_to(path: Path) -> None:
    """Redirect the output of this process and its forks, including hivemind's, to a size-limited file."""
    write_output_to(path, MAX_LOG_BYTES)
    use_hivemind_log_handler("nowhere")
    style = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=logging.INFO, format=style, force=True)
    logging.getLogger().handlers[0].addFilter(RepeatFilter())
    logging.getLogger("hivemind").setLevel(logging.WARNING)
