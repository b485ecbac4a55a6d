"""`publications` in settings.yaml: destinations for checkpoints, and their secrets.

Each secret is in its own file (mode 0600, usually in the run's directory), not in settings,
arguments or environment variables. Only the publisher reads secrets.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AfterValidator, Field

from auth.errors import ConfigError
from peer.config.base import Section

MAX_SECRET_BYTES = 4096
REASON_CHARACTERS = 400
HUB = "hf://"
LOCAL = ("file://", "local://")
SECRET_OPTIONS = frozenset(
    {
        *("key", "secret", "token", "password", "account_key", "sas_token", "connection_string"),
        *("aws_access_key_id", "aws_secret_access_key", "aws_session_token"),
    }
)
Option = str | int | float | bool
Options = dict[str, Option | dict[str, Option]]  # values may be nested, for example in s3fs' `client_kwargs`


def _is_address(address: str) -> str:
    scheme, separator, rest = address.partition("://")
    if not (separator and scheme and rest.strip("/")):
        raise ValueError("must be an address such as hf://owner/name, s3://bucket/folder or file:///folder")
    if "@" in rest or "?" in rest or "#" in rest:
        raise ValueError("must hold no login and no query: what is secret belongs into `secret_file`")
    if address.startswith(HUB) and rest.strip("/").count("/") != 1:
        raise ValueError("must name a repository as hf://owner/name")
    return HUB + rest.strip("/") if address.startswith(HUB) else address.rstrip("/")


def _are_no_secrets(options: Options) -> Options:
    inner = [key for value in options.values() if isinstance(value, dict) for key in value]
    for key in sorted(SECRET_OPTIONS & {*options, *inner}):
        raise ValueError(f"`{key}` is a secret: write it to a file of mode 0600 and name that in `secret_file`")
    return options


class PlaceSettings(Section):
    """A publishing destination; `options` are for fsspec's file system, such as `endpoint_url`."""

    to: Annotated[str, Field(max_length=500), AfterValidator(_is_address)]
    """Address of the place: `hf://owner/name`, or any fsspec address, such as `s3://bucket/folder`."""
    secret_file: str | None = None
    """File (mode 0600) with the hub's token, or with fsspec's secret options as YAML; relative to the run's
    directory."""
    private: bool = False
    """Create a missing repository as private; public pages do not show a private place."""
    options: Annotated[Options, Field(max_length=50), AfterValidator(_are_no_secrets)] = Field(default_factory=dict)
    """fsspec options for the file system, such as `endpoint_url`; not for secrets."""

    @property
    def is_hub(self) -> bool:
        """True if the destination is a Hugging Face repository."""
        return self.to.startswith(HUB)

    @property
    def is_public(self) -> bool:
        """True unless the destination is a private repository or a local folder."""
        return not (self.private or self.to.startswith(LOCAL))


@dataclass(frozen=True)
class Secret:
    """A destination's secret, which `repr` does not show."""

    token: str | None = field(default=None, repr=False)
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def reason(self, error: BaseException) -> str:
        """Return an error and its cause as one line, with this secret removed."""
        found = [error] if error.__cause__ is None else [error, error.__cause__]
        text = ": ".join(str(each) or repr(each) for each in found)
        for value in filter(None, (self.token, *self.options.values())):
            text = text.replace(value, "[secret]")
        return " ".join(text.split())[:REASON_CHARACTERS]


def read_secret(base: Path, place: PlaceSettings) -> Secret:
    """Read a destination's secret. Raises `ConfigError` if the file is missing, exposed or invalid."""
    if place.secret_file is None:
        return Secret()
    path = base / place.secret_file
    key = f"`secret_file` ({path}) of {place.to}"
    try:
        if stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise ConfigError(f"{key} can be read by others: `chmod 600` it.")
        text = path.read_bytes()[:MAX_SECRET_BYTES].decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{key} cannot be read ({getattr(error, 'strerror', 'not ASCII')}).") from error
    if not text:
        raise ConfigError(f"{key} is empty.")
    return Secret(token=text) if place.is_hub else Secret(options=_parse_options(text, key))


def _parse_options(text: str, key: str) -> dict[str, str]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:  # the error's message would quote the secret file
        content = None
    if not isinstance(content, dict) or not all(isinstance(value, str) for pair in content.items() for value in pair):
        raise ConfigError(f"{key} must hold lines such as `key: ...` and `secret: ...`.")
    return content
