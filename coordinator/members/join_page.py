"""Facts for the page on joining: addresses of the notebook, the state of an invite code, an invitation's commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote, urlsplit

from sqlalchemy import select

from auth.invite_codes import hash_invite_code
from coordinator.members.names import public_name
from coordinator.store.engine import Database
from coordinator.store.models import Invite, Naming
from peer.runtime.software import FOLDER, install_commands

InviteState = Literal["open", "used", "expired", "revoked", "unknown"]
MAX_CODE_CHARS = 64


@dataclass(frozen=True)
class Notebooks:
    """Addresses that open the one-cell notebook at a host of free machines."""

    colab: str
    kaggle: str


@dataclass(frozen=True)
class InviteFacts:
    """The state of an invite code; names and times only if the code is known."""

    state: InviteState
    member: str = ""  # as the public sees the member
    command: str = ""  # `join`, or `assist` for who only averages
    expires_at: float | None = None  # Unix seconds


def notebooks_of(notebook_url: str | None) -> Notebooks | None:
    """The buttons for a notebook on GitHub (`https://github.com/OWNER/REPOSITORY/blob/...ipynb`); None without one."""
    if notebook_url is None:
        return None
    path = urlsplit(notebook_url).path
    kaggle = f"https://kaggle.com/kernels/welcome?src={quote(notebook_url, safe='')}"
    return Notebooks(f"https://colab.research.google.com/github{quote(path)}", kaggle)


def invite_facts(database: Database, code: str, now: float) -> InviteFacts:
    """Look a code up. It has 100 random bits, so nobody learns by guessing whether there are others."""
    with database() as session:
        invite = session.scalar(select(Invite).where(Invite.code_sha256 == hash_invite_code(code[:MAX_CODE_CHARS])))
        if invite is None:
            return InviteFacts("unknown")
        member = invite.member
        return InviteFacts(
            _state(invite, now),
            public_name(member, session.get(Naming, member.id)),
            "assist" if invite.role == "auxiliary" else "join",
            invite.expires_at,
        )


def _state(invite: Invite, now: float) -> InviteState:
    if invite.member.revoked_at is not None:
        return "revoked"
    if invite.used_at is not None:
        return "used"
    return "expired" if now >= invite.expires_at else "open"


@dataclass(frozen=True)
class Invitation:
    """An invitation for one person and one machine, as the operator hands it out."""

    code: str
    command: str  # where the run's software is installed
    one_line: str  # installs the software, and then joins
    page: str  # the code stands behind the #, which browsers send to nobody

    @classmethod
    def of(cls, code: str, role: str, join_link: str, web_address: str, software: str) -> Invitation:
        """`software` is the address of the run's wheel, with its digest."""
        command = f"manyhands {'assist' if role == 'auxiliary' else 'join'} '{join_link}' --invite {code}"
        one_line = " && ".join((*install_commands(software), f"{FOLDER}/bin/{command}"))
        return cls(code, command, one_line, f"{web_address}/join#invite={quote(code)}")
