"""The authority's key on disk, and its rotation: the old key signs a handover to the new key.

The handover is written before the new key replaces the old key by a rename. A process killed in
between leaves the old key and an unused handover to a key that was never saved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from auth.errors import ConfigError, StorageError
from auth.files import write_private
from auth.keys import AuthorityKey
from auth.tokens import MAX_CLOCK_SKEW_S, Handover, issue_handover, verify_handover

KEY_FILE = "authority.key"
NAME_CHARS = 16


def load_authority(path: Path) -> AuthorityKey:
    """Load the authority's key and, unless it is the first, the handover from the previous key."""
    key = AuthorityKey.load(path)
    try:
        return replace(key, handover=_statement_path(path.parent, key).read_text(encoding="ascii"))
    except FileNotFoundError:
        return key
    except (OSError, UnicodeDecodeError) as error:
        raise StorageError(f"Cannot read {_statement_path(path.parent, key)} ({error}).") from error


def handover_to(authority: AuthorityKey, run: str) -> Handover | None:
    """Return the handover from the previous key, if any. Raises `TokenError` if it is invalid."""
    return verify_handover(authority.handover, run) if authority.handover else None


def rotate(keys_dir: Path, run: str, tokens_until: float, now: float) -> Handover:
    """Replace the authority's key; the old key stays valid until its tokens expire (`tokens_until`).

    Raises `ConfigError` until the last rotation's old key expires: a handover links only two keys.
    """
    old = load_authority(keys_dir / KEY_FILE)
    before = handover_to(old, run)
    if before is not None and now < before.until:
        raise ConfigError(
            f"The key was replaced {(now - before.issued_at) / 3600:.1f} hours ago, and the one before it counts for "
            f"{(before.until - now) / 3600:.1f} hours more: wait until then."
        )
    new = AuthorityKey.generate()
    handover = Handover(run, now, old.public_bytes, new.public_bytes, tokens_until + MAX_CLOCK_SKEW_S)
    write_private(_statement_path(keys_dir, new), issue_handover(replace(old, handover=""), handover).encode())
    new.save(keys_dir / KEY_FILE)
    return handover


def _statement_path(keys_dir: Path, key: AuthorityKey) -> Path:
    return keys_dir / f"handover-{key.public_bytes.hex()[:NAME_CHARS]}.jwt"
