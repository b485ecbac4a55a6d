"""A dashboard over a made-up run: a real store, a real uvicorn server in a thread, real members."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coordinator.checkpoints.validations import ValidationRow, record_validation
from coordinator.context.services import RunServices, open_run_services
from coordinator.ledger.judgement import Delivery
from coordinator.ledger.keeper_status import write_swarm_status
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.ledger.sessions import open_session
from coordinator.run.directory import RunDirectory
from coordinator.run.settings import Settings
from coordinator.web.app import create_app
from coordinator.web.http.server import WebServer
from coordinator.web.http.site import Guide
from coordinator.web.state.web_state import WebState
from dashboards import GUIDE
from peer.config.run import RunConfig
from peer.reporting.messages import StepReport
from tests.support.crowds import touch
from tests.support.ledgers import ACCEPTED
from tests.support.receipts import keeper_confirms, key_of
from tests.support.stores import made_run
from tests.support.waiting import PATIENCE_S

TARGET = 100


@dataclass
class FakeRun:
    """A run that tests fill as peers and keeper would."""

    directory: RunDirectory
    services: RunServices
    devices: dict[str, str]  # member's name -> device id
    fresh_for_s: float = 0.0  # what members and keeper say, they say as if they said it again for so long

    def add_member(self, name: str) -> str:
        """A member with one device that is online; returns the device's id."""
        key = key_of(name)
        code = self.services.membership.invite(name)[0]
        pseudonym = key.receipt_key(self.directory.config.run.name).pseudonym
        device = self.services.membership.join(key.public_key, code, receipt_key=pseudonym).device_id
        self.devices[name] = device
        session = open_session(self.services.database, device, "cpu", "0.1.0", self.services.clock())
        touch(
            self.services.database,
            session,
            step=0,
            own_samples=5,
            samples_per_second=2.5,
            state="training",
            now=self.services.clock() + self.fresh_for_s,
        )
        return device

    def add_step(self, step: int, loss: float | None) -> None:
        """Every member contributes its share of a step, and the keeper follows."""
        self.add_steps([loss], first=step)

    def add_steps(self, losses: Sequence[float | None], first: int = 1) -> None:
        """The same for one step after another, whose reports come together."""
        steps = range(first, first + len(losses))
        self.keeper_says(steps[-1])
        reports = [self._report(step, loss) for step, loss in zip(steps, losses, strict=True)]
        deliveries = [
            Delivery(device, None, report.step, report, self.services.clock())
            for report in reports
            for device in self.devices.values()
        ]
        assert self.services.ledger.record_all(deliveries) == [ACCEPTED] * len(deliveries)
        services = self.services
        keeper_confirms(services.database, services.membership, services.ledger, self.directory.config.run.name, *steps)

    def _report(self, step: int, loss: float | None) -> StepReport:
        """Each member's report of a step."""
        share = TARGET // len(self.devices) + 1
        return StepReport(
            step=step,
            samples=share,
            loss=loss,
            mlm_loss=loss,
            sop_loss=None,
            group_size=len(self.devices) + 1,
            group_samples=share * len(self.devices),
            averaging_s=0.1,
            samples_per_second=2.5,
            data_wait_s=0.25,
            elapsed_s=20.0,
        )

    def keeper_says(self, step: int, samples: int = 40, now: float | None = None) -> None:
        """The keeper's status row."""
        write_swarm_status(
            self.services.database,
            step=step,
            samples_accumulated=samples,
            target_batch_size=TARGET,
            peers=len(self.devices),
            samples_per_second=5.0,
            eta_s=12.0,
            addresses=["/ip4/127.0.0.1/tcp/1/p2p/Qm"],
            now=self.services.clock() + self.fresh_for_s if now is None else now,
        )

    def add_checkpoint(self, step: int) -> None:
        """A recorded checkpoint."""
        record_checkpoint(
            self.services.database,
            step=step,
            size_bytes=6_300_000,
            manifest_sha256="ab" * 32,
            now=self.services.clock(),
        )

    def add_validation(self, step: int, mlm_loss: float | None = 6.0, **others: Any) -> None:
        """What the validator would write of the checkpoint of this step."""
        assert record_validation(self.services.database, validation_row(step, mlm_loss, **others))


def validation_row(step: int, mlm_loss: float | None = 6.0, **others: Any) -> ValidationRow:
    """What held-out text says of a checkpoint."""
    row = ValidationRow(
        step=step,
        era=0,
        manifest_sha256="ab" * 32,
        set_sha256="cd" * 32,
        sequence_length=128,
        samples=64,
        predicted_tokens=1216,
        mlm_loss=mlm_loss,
        sop_loss=None if mlm_loss is None else 0.5,
        accuracy=0.125,
        sop_accuracy=0.75,
        elapsed_s=2.0,
        evaluated_at=1_800_000_000.0,
    )
    return replace(row, **others)


@contextmanager
def fake_run(
    directory: Path,
    clock: Callable[[], float] = time.time,
    phases: Sequence[dict[str, Any]] = (),
    database_url: str | None = None,
    fresh_for_s: float = 0.0,
) -> Iterator[FakeRun]:
    """An empty run; `fresh_for_s` as in `FakeRun`."""
    config = RunConfig.from_mapping(
        {
            "run": {"name": "test-run", "description": "A run for tests."},
            "averaging": {"target_batch_size": TARGET},
            "data": {"microbatch_size": 4},
            "phases": phases,
        }
    )
    settings = Settings(bind_host="127.0.0.1", database_url=database_url, web_hosts=("run.example.org",))
    created = made_run(directory / "run", config, settings)
    with open_run_services(created, clock) as services:
        yield FakeRun(created, services, {}, fresh_for_s)


class PageServer:
    """The dashboard's server, in a thread of its own so that a browser can be driven from the test."""

    def __init__(self, run: FakeRun, guide: Path = GUIDE, port: int = 0) -> None:
        self._guide = guide
        self.port = port  # 0: any, at the first start
        self._run = run
        self.start()

    def start(self) -> None:
        """Serve, again on the same port."""
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._serve(),))
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)

    async def _serve(self) -> None:
        app = create_app(WebState(self._run.directory, self._run.services, guide=Guide(self._guide)))
        server = await WebServer.start(app, "127.0.0.1", self.port)
        self.port = server.port
        self._ready.set()
        await self._stop.wait()
        await server.stop()

    @property
    def url(self) -> str:
        """The page's address."""
        return f"http://127.0.0.1:{self.port}/"

    def close(self) -> None:
        """Stop serving and wait until the port is free."""
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        self._loop.close()
