"""`sinks` in settings.yaml: further destinations of the run's curves.

The destinations are private, so they are not in the run file, which every volunteer receives.
Volunteers' machines never write to them.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Annotated, Literal

from pydantic import Field, model_validator

from auth.errors import ConfigError
from auth.openid.provider import SafeUrl
from peer.config.base import Section, WrittenAs
from peer.runtime.software import how_to_add

Name = Annotated[
    str,
    WrittenAs(
        r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}",
        "at most 128 letters, digits, dots, hyphens and underscores, the first a letter or a digit",
    ),
]
SecretFile = Annotated[str, Field(min_length=1, max_length=255)]  # path relative to the run's directory


class TensorBoardSettings(Section):
    """TensorBoard event files on this machine's disk."""

    directory: Annotated[str, Field(min_length=1, max_length=1024)] = "sinks/tensorboard"
    """Folder of the event files, relative to the run's directory."""


class WandbSettings(Section):
    """A Weights & Biases project."""

    project: Name
    """Project that receives the curves."""
    entity: Name | None = None
    """User or team; by default the owner of the API key."""
    mode: Literal["online", "offline"] = "online"
    """Send curves to the server, or write them to files in `sinks/wandb` for a later `wandb sync`."""
    base_url: SafeUrl | None = None
    """Address of your own server; by default the server of Weights & Biases."""
    api_key_file: SecretFile | None = None
    """File (mode 0600) with the API key, relative to the run's directory; by default the variable `WANDB_API_KEY`."""


class TrackioSettings(Section):
    """A trackio project on this machine's disk, on your own server, or in a Space."""

    project: Name
    """Project that receives the curves; without a server or a Space it is stored in `sinks/trackio`."""
    server_url: SafeUrl | None = None
    """Address of your own trackio server."""
    space_id: Annotated[str, WrittenAs(r"[\w.-]{1,99}/[\w.-]{1,99}", "a Space's OWNER/NAME")] | None = None
    """Space on the Hugging Face hub, `OWNER/NAME`."""
    token_file: SecretFile | None = None
    """File (mode 0600) with the server's write token or, for a Space, the hub's token; relative to the run's
    directory. By default the environment variable `TRACKIO_WRITE_TOKEN` or `HF_TOKEN`."""

    @model_validator(mode="after")
    def _has_one_place(self) -> TrackioSettings:
        if self.server_url is not None and self.space_id is not None:
            raise ValueError("`server_url` and `space_id` exclude each other: give one, or none to write to this disk")
        return self


class Sinks(Section):
    """All sinks of a run; there are none by default."""

    tensorboard: TensorBoardSettings | None = None
    wandb: WandbSettings | None = None
    trackio: TrackioSettings | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the configured sinks."""
        return tuple(name for name in type(self).model_fields if getattr(self, name) is not None)

    def require_installed(self) -> None:
        """Raise `ConfigError` for the first sink whose package is not installed."""
        for name in self.names:
            if find_spec(name) is None:
                raise ConfigError(f"`sinks.{name}` needs its package: {how_to_add(name)}.")
