"""Admission of a device: by its invite, as one that is known already, or by a login with one of the run's providers."""

from __future__ import annotations

from collections.abc import Callable

from auth.errors import ConfigError, NotInvitedError
from auth.keys import DeviceKey
from peer.agent.options import AgentOptions
from peer.control.client import ControlClient
from peer.control.login import LoginPrompt, LoginProvider
from peer.protocol import control_pb2
from peer.runtime.version import software_version


async def admit(
    client: ControlClient, key: DeviceKey, options: AgentOptions, show_login: Callable[[LoginPrompt], None]
) -> control_pb2.JoinReply:
    """Join; a device that brings no invite and is not known logs in, where the run has a provider."""
    known = (options.state_dir / "token.jwt").exists()
    if options.invite or known or not (options.login or client.login_providers):
        try:
            return await client.join(key, options.invite, role=options.role, software=software_version())
        except NotInvitedError:
            if options.invite or not client.login_providers:
                raise
    provider = choose_provider(client.login_providers, options.login)
    return await client.login(key, provider, show_login, role=options.role, software=software_version())


def choose_provider(providers: tuple[LoginProvider, ...], wanted: str) -> str:
    """The provider to log in with; raises `ConfigError` where there is a choice to make, or none."""
    names = [provider.name for provider in providers]
    if wanted in names:
        return wanted
    if not names:
        raise ConfigError("This run has no login with an identity provider: ask its operator for an invite code.")
    if wanted:
        raise ConfigError(f"`--login` ({wanted:.40}) must be one of {', '.join(names)}.")
    if len(names) > 1:
        raise ConfigError(f"This run has several logins: choose one with --login, of {', '.join(names)}.")
    return names[0]
