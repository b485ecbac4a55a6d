"""The preparation of a run to be served: the parts that it needs, and the checks before any of them starts."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from auth.errors import ConfigError, PortTakenError
from coordinator.run.settings import Settings
from coordinator.service.parts import ANSWERER, HERALD, KEEPER, PUBLISHER, SERVICE, SINKS, VALIDATOR
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


def silent(content: Mapping[str, Any] = MappingProxyType({})) -> RunConfig:
    """A run file by which the model answers no visitors."""
    return RunConfig.from_mapping({"dashboard": {"try_it": False}, **content})


def test_the_validator_stands_beside_the_keeper() -> None:
    """It is where the checkpoints are, and nowhere if nothing is held out."""
    config, without = silent(), silent({"data": {"validation": {"share": 0.0}}})
    assert chosen_parts(config, service_only=False, keeper_only=False) == (SERVICE, KEEPER, VALIDATOR)
    assert chosen_parts(config, service_only=True, keeper_only=False) == (SERVICE,)
    assert chosen_parts(config, service_only=False, keeper_only=True) == (KEEPER, VALIDATOR)
    assert chosen_parts(without, service_only=False, keeper_only=True) == (KEEPER,)


def test_the_answerer_stands_where_the_checkpoints_are() -> None:
    """Once, beside the keeper, unless the run file says that visitors may not try the model."""
    assert chosen_parts(RunConfig(), service_only=False, keeper_only=True) == (KEEPER, VALIDATOR, ANSWERER)
    assert chosen_parts(RunConfig(), service_only=True, keeper_only=False) == (SERVICE,)
    assert ANSWERER not in chosen_parts(silent(), service_only=False, keeper_only=False)


def test_one_herald_tells_of_milestones() -> None:
    """Where there is a webhook; a service alone tells nothing, or replicas would tell it several times."""
    config = silent()
    assert chosen_parts(config, service_only=False, keeper_only=True, has_webhooks=True) == (KEEPER, VALIDATOR, HERALD)
    assert chosen_parts(config, service_only=True, keeper_only=False, has_webhooks=True) == (SERVICE,)


def test_sinks_are_written_beside_the_keeper() -> None:
    """Where there are any; a service alone writes none, or two machines would write the same."""
    config = silent()
    assert chosen_parts(config, service_only=False, keeper_only=True, has_sinks=True) == (KEEPER, VALIDATOR, SINKS)
    assert chosen_parts(config, service_only=True, keeper_only=False, has_sinks=True) == (SERVICE,)


def test_the_publisher_stands_where_the_checkpoints_are() -> None:
    """If the settings name a place to publish to."""
    config = silent()
    both = chosen_parts(config, service_only=False, keeper_only=False, publishes=True)
    assert both == (SERVICE, KEEPER, VALIDATOR, PUBLISHER)
    assert chosen_parts(config, service_only=True, keeper_only=False, publishes=True) == (SERVICE,)


def test_one_part_alone_needs_only_its_own_ports(tmp_path: Path) -> None:
    """The service does not need the swarm's port, nor the keeper the service's."""
    run = make_small_run(tmp_path)
    settings = run.settings
    assert [item.port for item in listeners(run, (SERVICE,))] == [settings.control_port, settings.web_port]
    assert [item.port for item in listeners(run, (KEEPER,))] == [settings.swarm_port]


def test_impossible_address_is_a_configuration_error(tmp_path: Path) -> None:
    """An address that is not this machine's is told as such, not as a taken port."""
    run = make_small_run(tmp_path)
    settings = run.settings.model_copy(update={"bind_host": "192.0.2.1"})
    (run.path / "settings.yaml").write_text(settings.to_yaml())
    with pytest.raises(ConfigError, match="bind_host"):
        prepare(run.path)


def test_dashboard_address_has_brackets_around_ipv6() -> None:
    """The printed address can be clicked, whatever the host."""
    assert dashboard_url(Settings(public_host="example.org", web_port=80)) == "http://example.org:80/"
    assert dashboard_url(Settings(public_host="::1")) == "http://[::1]:8080/"
