"""Agents in a test's process, with a display that remembers."""

from __future__ import annotations

import time
from pathlib import Path

from peer.agent.agent import Agent
from peer.agent.options import AgentOptions
from peer.agent.terminal import DisplayEvent, PanelState
from peer.agent.worker_process import WorkerMain
from peer.reporting.messages import Notice, Ready
from tests.support.control_plane import KEEPER, TestCoordinator, write_status


class Recorder:
    """A display that remembers."""

    def __init__(self) -> None:
        self.state: PanelState | None = None
        self.events: list[DisplayEvent] = []
        self.closed = False

    def open(self, state: PanelState) -> Recorder:
        """As `open_display` does."""
        self.state = state
        return self

    def show(self, event: DisplayEvent) -> None:
        """Remember."""
        self.events.append(event)

    def close(self) -> None:
        """Remember that, too."""
        self.closed = True

    def told(self, part: str) -> list[str]:
        """The notices with these words."""
        return [event.text for event in self.events if isinstance(event, Notice) and part in event.text]

    @property
    def devices(self) -> list[str]:
        """The device of each worker that was ready, as the worker told it."""
        return [event.device for event in self.events if isinstance(event, Ready)]


def make_agent(
    coordinator: TestCoordinator, directory: Path, main: WorkerMain, invite: str | None = None, device: str = "auto"
) -> tuple[Agent, Recorder]:
    """An agent with a fresh invite, in a run that has a keeper."""
    recorder = Recorder()
    write_status(coordinator, KEEPER)
    code = coordinator.invite("ada") if invite is None else invite
    options = AgentOptions(link=coordinator.link, state_dir=directory, invite=code, device=device)
    return Agent(options, recorder.open, time.time, main), recorder
