"""What Prometheus reads of a run: rounds, peers, refusals, calls, the disk and what expires."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from starlette.testclient import TestClient

from auth.errors import RequestError
from coordinator.context.refusal_log import RECORDS_AT_ONCE
from coordinator.control.server import SERVICE_NAME
from coordinator.ledger.reading import SETTLED_S
from coordinator.ledger.recorded_checkpoints import record_checkpoint
from coordinator.members.quarantine import SuspicionReport, hear, quarantine_device
from coordinator.statistics.swarm_health import write_figures
from coordinator.web.app import create_app
from coordinator.web.state.metrics import certificate_expiry
from coordinator.web.state.web_state import WebState
from peer.protocol import control_pb2
from peer.reporting.metrics import RoundTally
from tests.support.clocks import Clock
from tests.support.control_plane import TestCoordinator, a_report, connected, joined, serving
from tests.support.served_page import TARGET, FakeRun
from tests.support.waiting import PATIENCE_S, eventually

Samples = dict[tuple[str, ...], float]


def scrape(run: FakeRun) -> Samples:
    """Samples by name and labels' values, as a service that starts now gives them."""
    with TestClient(create_app(WebState(run.directory, run.services))) as client:
        return samples_of(client.get("/metrics").text)


def samples_of(scraped: str) -> Samples:
    """(name, labels' values in the order of the labels) -> value."""
    found = [sample for family in text_string_to_metric_families(scraped) for sample in family.samples]
    return {(sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value for sample in found}


def test_rounds_and_peers_are_what_the_keeper_counts(run: FakeRun) -> None:
    """Rounds by outcome, a histogram of their durations, peers by role and reachability."""
    tally = RoundTally().with_success(0.7).with_success(3.0).with_failure()
    write_figures(run.services.database, tally, (("keeper", True, 1), ("trainer", False, 4)), 3)
    found = scrape(run)
    assert found["manyhands_averaging_rounds_total", "succeeded"] == 2
    assert found["manyhands_averaging_rounds_total", "failed"] == 1
    assert found["manyhands_averaging_round_duration_seconds_bucket", "1.0"] == 1
    assert found["manyhands_averaging_round_duration_seconds_bucket", "+Inf"] == 2
    assert found["manyhands_averaging_round_duration_seconds_sum",] == pytest.approx(3.7)
    assert found["manyhands_swarm_peers", "false", "trainer"] == 4
    assert found["manyhands_swarm_peers", "true", "keeper"] == 1
    assert found["manyhands_missing_auxiliaries",] == 3


def test_a_step_tells_its_share_of_the_batch_when_its_reports_are_in(run: FakeRun, clock: Clock) -> None:
    """Samples over the target, who reported it, and whether anybody had a finite loss; its time at once."""
    run.add_member("ada")
    run.add_step(1, 9.0)
    clock.now += SETTLED_S
    run.add_step(2, 8.0)
    run.add_member("bob")
    found = scrape(run)
    assert found["manyhands_step_timestamp_seconds",] == clock()
    assert found["manyhands_target_batch_samples",] == TARGET
    assert found["manyhands_step_batch_ratio",] == (TARGET + 1) / TARGET
    assert (found["manyhands_step_devices",], found["manyhands_loss_finite",]) == (1, 1)
    run.add_step(3, None)
    assert scrape(run)["manyhands_loss_finite",] == 1
    clock.now += SETTLED_S
    found = scrape(run)
    assert (found["manyhands_step_devices",], found["manyhands_loss_finite",]) == (2, 0)


def test_suspected_and_quarantined_devices_are_counted(run: FakeRun, clock: Clock) -> None:
    """Words count by kind while they are in the window; every kind is there from the first scrape on."""
    suspected, witness = run.add_member("mallory"), run.add_member("ada")
    with run.services.database() as session:
        peer = session.scalar(text("select peer_id from devices where id = :id").bindparams(id=suspected))
    hear(
        run.services.database,
        run.services.quarantine,
        SuspicionReport(peer, "samples", 3, "claims a lot"),
        witness,
        clock(),
    )
    quarantine_device(run.services.database, "mallory", suspected, "by hand", "os:ada", clock())
    found = scrape(run)
    assert found["manyhands_suspicions", "samples"] == 1
    assert found["manyhands_suspicions", "state"] == 0
    assert found["manyhands_devices_quarantined",] == 1
    clock.now += run.services.quarantine.window_s + 1
    assert scrape(run)["manyhands_suspicions", "samples"] == 0


def test_checkpoints_tell_age_gate_and_what_waits_for_the_validator(run: FakeRun, clock: Clock) -> None:
    """Ages are timestamps; a withheld checkpoint is 1; of those that wait the oldest counts."""
    run.add_checkpoint(3)
    clock.now += 100
    record_checkpoint(
        run.services.database, step=6, size_bytes=9, manifest_sha256="cd" * 32, now=clock(), withheld="NaN"
    )
    found = scrape(run)
    assert found["manyhands_checkpoint_withheld",] == 1
    assert found["manyhands_checkpoint_timestamp_seconds",] == clock()
    assert found["manyhands_validations_pending",] == 2
    assert found["manyhands_validation_pending_timestamp_seconds",] == clock() - 100
    run.add_validation(3)
    assert scrape(run)["manyhands_validations_pending",] == 1


def test_what_expires_and_the_disk_are_told(run: FakeRun, clock: Clock) -> None:
    """The certificate's end, the end of the keeper's token, and free bytes where checkpoints lie."""
    run.add_member("ada")
    run.add_step(1, 9.0)  # the keeper confirms it, with a token
    found = scrape(run)
    assert found["manyhands_tls_certificate_expiry_timestamp_seconds",] == certificate_expiry(
        run.directory.tls_cert_path
    )
    lifetime = run.directory.config.membership.token_lifetime_s
    assert found["manyhands_keeper_token_expiry_timestamp_seconds",] == clock() + lifetime
    assert 0 < found["manyhands_checkpoint_disk_free_bytes",] <= found["manyhands_checkpoint_disk_size_bytes",]
    assert found["process_resident_memory_bytes",] > 0


def test_a_certificate_that_cannot_be_read_has_no_end(tmp_path: Path) -> None:
    """A damaged or missing file is none of the metrics' business."""
    (tmp_path / "damaged.crt").write_text("no certificate")
    assert certificate_expiry(tmp_path / "damaged.crt") is None
    assert certificate_expiry(tmp_path / "missing.crt") is None


def test_database_errors_are_counted_and_conflicts_are_not(run: FakeRun) -> None:
    """A statement that fails counts; two who write the same row do not."""
    services = run.services
    with services.database() as session, pytest.raises(OperationalError):
        session.execute(text("select * from nowhere"))
    with pytest.raises(IntegrityError), services.database.begin() as session:
        session.execute(text("insert into eras (era, after_step, began_at) values (1, 1, 0.0), (1, 1, 0.0)"))
    assert scrape(run)["manyhands_database_errors_total",] == 1


async def test_refusals_are_counted_by_kind_even_beyond_their_record(run: FakeRun) -> None:
    """A flood that is no longer written down is still seen."""
    refusals = run.services.refusals
    while not refusals.unrecorded:
        await refusals.record("join", RequestError("no"))
    assert scrape(run)["manyhands_refusals_total", "join"] > RECORDS_AT_ONCE


async def test_calls_of_the_control_plane_are_counted_with_their_status(tmp_path: Path) -> None:
    """By method and status code; those that reach no method are not, nor do strangers choose names."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path), connected(coordinator) as client:
        with pytest.raises(grpc.aio.AioRpcError):
            await client._stub.Renew(control_pb2.RenewRequest(nonce=b"x"), timeout=PATIENCE_S)
        with pytest.raises(grpc.aio.AioRpcError):
            await client._channels[0].unary_unary(f"/{SERVICE_NAME}/Nonsense")(b"", timeout=PATIENCE_S)
        calls = Calls(coordinator)
        await eventually(
            "the refused call is counted", lambda: calls.ended("Renew", "invalid_argument") == 1
        )  # said before the call has ended
        assert calls.ended("Join", "ok") == 1
        assert calls.answered("Join") == 1
        assert calls.methods() == {"Challenge", "Join", "Renew"}


async def test_a_session_is_open_until_it_has_ended(tmp_path: Path) -> None:
    """It counts as open, then as a call that was cut off; how long it lasted says nothing of us."""
    async with serving(tmp_path) as coordinator, joined(coordinator, tmp_path) as member:
        calls = Calls(coordinator)
        member.start()
        await eventually("the session is counted as open", lambda: calls.value("manyhands_sessions_open") == 1)
        member.outbox.put(a_report(1), completed_at=coordinator.clock())
        await eventually(
            "the report is counted", lambda: calls.value("manyhands_reports_total", verdict="accepted") == 1
        )
        assert member.running is not None
        member.running.cancel()
        await eventually("the session is counted as ended", lambda: calls.ended("Session", "cancelled") == 1)
        assert calls.value("manyhands_sessions_open") == 0
        assert calls.answered("Session") == 0


class Calls:
    """What a coordinator has counted of them."""

    def __init__(self, coordinator: TestCoordinator) -> None:
        self._registry = coordinator.services.telemetry.registry

    def value(self, name: str, **labels: str) -> float:
        return self._registry.get_sample_value(name, labels) or 0.0

    def ended(self, method: str, code: str) -> float:
        return self.value("manyhands_control_calls_total", method=method, code=code)

    def answered(self, method: str) -> float:
        return self.value("manyhands_control_call_duration_seconds_count", method=method)

    def methods(self) -> set[str]:
        samples = [sample for family in self._registry.collect() for sample in family.samples]
        return {sample.labels["method"] for sample in samples if sample.name == "manyhands_control_calls_total"}
