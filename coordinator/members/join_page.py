"""Data for the join page: notebook links, the state of an invite code, and invitations."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from itertools import groupby
from typing import Literal
from urllib.parse import quote, urlsplit

import segno
from sqlalchemy import select

from auth.invite_codes import hash_invite_code
from coordinator.members.names import public_name
from coordinator.store.engine import Database
from coordinator.store.models import Invite, Naming
from peer.runtime.software import FOLDER, INSTALLER, install_commands

InviteState = Literal["open", "used", "expired", "revoked", "unknown"]
MAX_CODE_CHARS = 64
IMAGE = "python:3.12-slim"  # this image has sha256sum, but not curl
FETCH = "import sys, urllib.request as web; web.urlretrieve(*sys.argv[1:])"
QUIET_ZONE = 4  # width of the light margin in modules (squares), as required by ISO/IEC 18004


@dataclass(frozen=True)
class Notebooks:
    """URLs that open the one-cell notebook on free hosted services."""

    colab: str
    kaggle: str


@dataclass(frozen=True)
class InviteFacts:
    """The state of an invite code; names and times are set only if the code is known."""

    state: InviteState
    member: str = ""  # public name
    role: str = ""
    expires_at: float | None = None  # Unix time in seconds


def notebooks_of(notebook_url: str | None) -> Notebooks | None:
    """Return the Colab and Kaggle links for a notebook on GitHub (`.../blob/...ipynb`)."""
    if notebook_url is None:
        return None
    path = urlsplit(notebook_url).path
    kaggle = f"https://kaggle.com/kernels/welcome?src={quote(notebook_url, safe='')}"
    return Notebooks(f"https://colab.research.google.com/github{quote(path)}", kaggle)


def invite_facts(database: Database, code: str, now: float) -> InviteFacts:
    """Look up an invite code. A code has 100 random bits, so it cannot be guessed."""
    with database() as session:
        invite = session.scalar(select(Invite).where(Invite.code_sha256 == hash_invite_code(code[:MAX_CODE_CHARS])))
        if invite is None:
            return InviteFacts("unknown")
        member = invite.member
        return InviteFacts(
            _state(invite, now), public_name(member, session.get(Naming, member.id)), invite.role, invite.expires_at
        )


def _state(invite: Invite, now: float) -> InviteState:
    if invite.member.revoked_at is not None:
        return "revoked"
    if invite.used_at is not None:
        return "used"
    return "expired" if now >= invite.expires_at else "open"


def joining_line(software: str, command: str) -> str:
    """Return a shell command that installs a wheel from a URL with digest, and runs `command`."""
    return " && ".join([*install_commands(software), f"{FOLDER}/bin/{command}"])


@dataclass(frozen=True)
class Invitation:
    """An invitation for one person and one machine, in several forms for the operator to send."""

    code: str
    command: str  # shell command if the run's software is installed
    one_line: str  # shell command that installs the software, then joins
    with_uv: str  # `one_line` with a Python interpreter installed by uv
    container: str  # `one_line`, run in a container
    page: str  # URL with the code in its fragment (after #), which browsers do not send

    @classmethod
    def of(cls, code: str, role: str, join_link: str, web_address: str, software: str) -> Invitation:
        """Create an invitation; `software` is the URL of the run's wheel, including its digest."""
        command = f"manyhands {'assist' if role == 'auxiliary' else 'join'} '{join_link}' --invite {code}"
        one_line = joining_line(software, command)
        return cls(
            code=code,
            command=command,
            one_line=one_line,
            with_uv=one_line.replace(" python3 ", " uv run --no-cache --no-project --python 3.12 python ", 1),
            container=_in_container(command.removesuffix(f" --invite {code}"), code, software),
            page=f"{web_address}/join#invite={quote(code)}",
        )


def _in_container(command: str, code: str, software: str) -> str:
    """Return a Docker command that verifies and installs the software, and joins."""
    place, _, digest = software.partition("#sha256=")
    name = place.rpartition("/")[2]
    steps = (
        f"python3 -c {shlex.quote(FETCH)} {shlex.quote(place)} {name}",
        f"echo '{digest}  {name}' | sha256sum -c",
        f"python3 {name}/{INSTALLER}",
        f"exec {FOLDER}/bin/{command}",
    )
    script = re.sub(r'([\\"$`])', r"\\\1", " && ".join(steps))  # escapes characters that are special in double quotes
    return (
        "docker run -it --init --name manyhands --shm-size 1g --stop-timeout 30 --cap-drop ALL "
        "--volume manyhands:/data --workdir /data --env XDG_DATA_HOME=/data "
        f'--env MANYHANDS_INVITE={code} {IMAGE} sh -c "{script}"'
    )


@dataclass(frozen=True)
class QrCode:
    """A QR code as a drawing of dark squares on a light background, with a margin."""

    size: int  # squares per side, including the margin
    path: str  # SVG path of all dark squares

    @classmethod
    def of(cls, text: str) -> QrCode:
        """Draw a QR code that encodes the given text."""
        rows = [bytes(row) for row in segno.make(text, micro=False).matrix_iter(border=QUIET_ZONE)]
        runs = []
        for y, row in enumerate(rows):
            x = 0
            for is_dark, squares in groupby(row):
                width = len(list(squares))
                runs += [f"M{x} {y}h{width}v1h-{width}z"] * is_dark
                x += width
        return cls(len(rows), "".join(runs))
