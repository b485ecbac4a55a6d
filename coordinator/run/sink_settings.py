"""`sinks` in settings.yaml: further destinations of the run's curves.

They are not part of the run file, which every volunteer receives: where an operator stores curves
is private. Volunteers' machines never write to these destinations.
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
    """Event files on this machine's disk."""

    directory: Annotated[str, Field(min_length=1, max_length=1024)] = "sinks/tensorboard"
    """Folder of the event files, relative to the run's directory."""


class WandbSettings(Section):
    """A project of Weights & Biases."""

    project: Name
    """Project that the curves belong to."""
    entity: Name | None = None
    """User or team; by default the key's own."""
    mode: Literal["online", "offline"] = "online"
    """Send curves to the server, or write them into files in `sinks/wandb` for `wandb sync`."""
    base_url: SafeUrl | None = None
    """Address of a server of your own; by default Weights & Biases'."""
    api_key_file: SecretFile | None = None
    """File of mode 0600 with the key, relative to the run's directory; without it the environment's `WANDB_API_KEY`."""


class TrackioSettings(Section):
    """A project of trackio: on this machine's disk, on a server of its own, or in a Space."""

    project: Name
    """Project that the curves belong to; without a server or a Space it lies in `sinks/trackio`."""
    server_url: SafeUrl | None = None
    """Address of a trackio server of your own."""
    space_id: Annotated[str, WrittenAs(r"[\w.-]{1,99}/[\w.-]{1,99}", "a Space's OWNER/NAME")] | None = None
    """Space of the Hugging Face hub, `OWNER/NAME`."""
    token_file: SecretFile | None = None
    """File of mode 0600 with the server's write token, or the hub's for a Space, relative to the run's directory;
    without it the environment's `TRACKIO_WRITE_TOKEN` or `HF_TOKEN`."""

    @model_validator(mode="after")
    def _has_one_place(self) -> TrackioSettings:
        if self.server_url is not None and self.space_id is not None:
            raise ValueError("`server_url` and `space_id` exclude each other: give one, or none to write to this disk")
        return self


class Sinks(Section):
    """All sinks; none by default."""

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
