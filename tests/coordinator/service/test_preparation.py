"""The preparation of a run to be served: the parts that it needs, and the checks before any of them starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from auth.errors import PortTakenError
from coordinator.run.settings import Settings
from coordinator.service.parts import ANSWERER, HERALD, KEEPER, PUBLISHER, SERVICE, SINKS, VALIDATOR, Part
from coordinator.service.preparation import chosen_parts, dashboard_url, listeners, prepare
from peer.config.run import RunConfig
from tests.support.small_run import HOST, make_small_run


@pytest.mark.parametrize("key", ["control_port", "web_port", "swarm_port"])
def test_taken_port_is_named_before_anything_starts(tmp_path: Path, key: str) -> None:
    """Each of the three ports is checked; the sentence names the port and the setting to change."""
    run = make_small_run(tmp_path)
    port = getattr(run.settings, key)
    with (
        socket.create_server((HOST, port)),
        pytest.raises(PortTakenError, match=rf"{port}.*`{key}` in .*settings.yaml"),
    ):
        prepare(run.path)


SILENT = RunConfig.from_mapping({"dashboard": {"try_it": False}})  # the model answers no visitors
NOT_HELD_OUT = RunConfig.from_mapping({"dashboard": {"try_it": False}, "data": {"validation": {"share": 0.0}}})


@pytest.mark.parametrize(
    ("config", "settings", "beside_the_keeper"),
    [
        (NOT_HELD_OUT, {}, ()),
        (SILENT, {}, (VALIDATOR,)),
        (RunConfig(), {}, (VALIDATOR, ANSWERER)),
        (SILENT, {"has_webhooks": True}, (VALIDATOR, HERALD)),
        (SILENT, {"has_sinks": True}, (VALIDATOR, SINKS)),
        (SILENT, {"publishes": True}, (VALIDATOR, PUBLISHER)),
    ],
)
def test_all_parts_but_the_service_stand_beside_the_keeper(
    config: RunConfig, settings: dict[str, bool], beside_the_keeper: tuple[Part, ...]
) -> None:
    """There are the checkpoints; a service alone has none of them, or replicas would tell everything several times."""
    keeper = (KEEPER, *beside_the_keeper)
    assert chosen_parts(config, service_only=False, keeper_only=False, **settings) == (SERVICE, *keeper)
    assert chosen_parts(config, service_only=False, keeper_only=True, **settings) == keeper
    assert chosen_parts(config, service_only=True, keeper_only=False, **settings) == (SERVICE,)


def test_one_part_alone_needs_only_its_own_ports(tmp_path: Path) -> None:
    """The service does not need the swarm's port, nor the keeper the service's."""
    run = make_small_run(tmp_path)
    settings = run.settings
    assert [item.port for item in listeners(run, (SERVICE,))] == [settings.control_port, settings.web_port]
    assert [item.port for item in listeners(run, (KEEPER,))] == [settings.swarm_port]


def test_dashboard_address_has_brackets_around_ipv6() -> None:
    """The printed address can be clicked, whatever the host."""
    assert dashboard_url(Settings(public_host="example.org", web_port=80)) == "http://example.org:80/"
    assert dashboard_url(Settings(public_host="::1")) == "http://[::1]:8080/"
