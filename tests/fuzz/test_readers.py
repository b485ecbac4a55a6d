"""Readers of text and files from elsewhere: whatever they get, only our own errors come out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import given, strategies as st

from auth.errors import ConfigError, LinkError, ManyhandsError, RequestError, StorageError, TokenError
from auth.join_link import JoinLink
from auth.keys import AuthorityKey
from auth.tokens import (
    AccessToken,
    RevocationList,
    issue_revocations,
    issue_token,
    read_token,
    require_usable,
    verify_revocations,
)
from coordinator.checkpoints.manifest import verify
from coordinator.checkpoints.writing import StateSnapshot, restore_verified, write_checkpoint
from peer.config.run import BUILTIN_RUNS, RunConfig
from peer.data.tokenization.tokenizers import read_tokenizer, read_tokenizer_config
from peer.models.checkpoint_state import restore_model
from peer.network.downloads import check_announced
from tests.support.inputs import ANY_TEXT, JSON, inputs, spoilt, spoilt_text
from tests.support.tokens import token_of

NOW = 1_800_000_000.0
LINK = f"manyhands://example.org:7443/run#sha256={'ab' * 32}"
TOKEN = AccessToken("Ada", "device", "Qm123", "ssh-rsa AAAA", "trainer", "run", NOW, NOW + 3600, "a" * 64)


def only(error: type[ManyhandsError], read: Callable[[], Any]) -> None:
    """Call it; nothing but this error, with one sentence of bounded length, may come out."""
    refusal = ""
    try:
        read()
    except error as raised:
        refusal = str(raised) or "nothing"
    assert len(refusal) < 2000
    assert refusal != "nothing"


@cache
def authority() -> AuthorityKey:
    return AuthorityKey.generate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the spoilt files lie, one after the other."""
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def checkpoint(folder: Path) -> Path:
    """A small valid one."""
    (folder / "tokenizer").mkdir()
    (folder / "tokenizer" / "tokenizer.json").write_text("{}")
    weights = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    stored = write_checkpoint(
        folder,
        StateSnapshot(1, weights, {}),
        run="r",
        era=0,
        texts={"run.yaml": yaml.safe_dump({})},
        tokenizer_dir=folder / "tokenizer",
        probe={"x": torch.zeros(1)},
        probe_loss=None,
        created_at=0.0,
    )
    return stored.path


@inputs(400)
@given(data=st.data())
def test_tokens_and_revocations(data: st.DataObject) -> None:
    """A spoilt token or list is a token error; it never counts for more than what was signed."""
    key = authority()
    token = data.draw(spoilt_text(issue_token(key, TOKEN)) | ANY_TEXT)
    with suppress(TokenError):
        assert read_token(token, key.public_bytes, "run") == TOKEN
    revoked = RevocationList("run", 3, NOW, frozenset({"Qm1"}))
    text = data.draw(spoilt_text(issue_revocations(key, revoked)) | ANY_TEXT)
    with suppress(TokenError):
        assert verify_revocations(text, key.public_bytes, "run") == revoked


@inputs(200)
@given(JSON, JSON, JSON)
def test_claims_that_the_authority_signed_by_mistake(exp: Any, iat: Any, member: Any) -> None:
    """A signature is no schema: also signed claims of any type are a token error, or a token."""
    claims = {"sub": "d", "aud": "run", "exp": exp, "iat": iat, "member": member, "peer_id": "Q", "role": "trainer"}
    claims |= {"public_key": "k"}
    try:
        text = token_of({"alg": "EdDSA", "typ": "manyhands-access+jwt"}, claims, authority())
    except (TypeError, ValueError):  # what cannot be written cannot arrive
        return
    only(TokenError, lambda: require_usable(read_token(text, authority().public_bytes, "run"), NOW))


@inputs(400)
@given(spoilt_text(LINK) | ANY_TEXT)
def test_join_links(text: str) -> None:
    """A link that parses prints as one that parses alike; any other is a link error."""

    def read() -> None:
        link = JoinLink.parse(text)
        assert JoinLink.parse(str(link)) == link

    only(LinkError, read)


@inputs(100)
@given(data=st.data())
def test_run_files(folder: Path, data: st.DataObject) -> None:
    """A spoilt run file is a config error, with one sentence."""
    path = folder / "run.yaml"
    valid = (BUILTIN_RUNS / data.draw(st.sampled_from(("demo.yaml", "albert-large.yaml")))).read_bytes()
    strange = data.draw(st.sampled_from(STRANGE_YAML))
    path.write_bytes(data.draw(spoilt(valid) | spoilt(strange)))
    only(ConfigError, lambda: RunConfig.from_yaml(path))


STRANGE_YAML = (
    b"a: &a [x, x]\nb: &b [*a, *a, *a]\nc: [*b, *b, *b]\n",
    b"!!python/object/apply:os.system ['true']",
    b"run: !!timestamp 2026-99-99\nx: !!bool maybe\ny: !!int ''\nz: !!float ''\n",
    b"run: {name: 0x" + b"f" * 5000 + b"}",
    b"data: " + b"[" * 3000,
    b"phases: [{from_step: 1_000_000_000_000_000_000_000_000}]",
    b"? {a: b}\n: c\n",
)


@inputs(300)
@given(data=st.data())
def test_run_configurations_from_a_coordinator(data: st.DataObject) -> None:
    """What arrives at join is a configuration, or a config error: spoilt bytes, and any value at any key."""
    content = json.loads(RunConfig().to_json())
    section = data.draw(st.sampled_from(sorted(content)))
    if isinstance(content[section], dict):
        content[section][data.draw(st.sampled_from(sorted(content[section])))] = data.draw(JSON)
    else:
        content[section] = data.draw(JSON)
    text = data.draw(spoilt_text(json.dumps(content)) | st.just(json.dumps(content)))
    only(ConfigError, lambda: RunConfig.from_json(text))


@inputs(300)
@given(ANY_TEXT | st.sampled_from(("tokenizer.json", "../x.json")).flatmap(spoilt_text), st.integers(0, 2**64 - 1))
def test_names_of_files(name: str, size_bytes: int) -> None:
    """A name that is taken is that of a file in the folder."""

    def read() -> None:
        check_announced(name, size_bytes)
        assert (Path("folder") / name).resolve().parent == Path("folder").resolve()

    only(RequestError, read)


@inputs(150)
@given(data=st.data())
def test_checkpoints(folder: Path, checkpoint: Path, data: st.DataObject) -> None:
    """A manifest or weights that another machine spoilt are a storage error."""
    valid, copy = checkpoint, folder / "copy"
    shutil.copytree(valid, copy, dirs_exist_ok=True)
    name = data.draw(st.sampled_from(("manifest.json", "model.safetensors")))
    (copy / name).write_bytes(data.draw(spoilt((valid / name).read_bytes())))
    model = torch.nn.Linear(2, 2)
    only(StorageError, lambda: verify(copy))
    only(StorageError, lambda: restore_model(model, copy))
    only(StorageError, lambda: restore_verified(model, copy, "00"))


@inputs(150)
@given(data=st.data())
def test_tokenizers(folder: Path, data: st.DataObject) -> None:
    """A tokenizer's files, as a coordinator may send them, are read or are a config error."""
    home = folder / "spoilt-tokenizer"
    home.mkdir(exist_ok=True)
    vocabulary = {"[UNK]": 0, "a": 1, "b": 2}
    valid = json.dumps({"version": "1.0", "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "[UNK]"}})
    (home / "tokenizer.json").write_bytes(data.draw(spoilt(valid.encode())))
    (home / "tokenizer_config.json").write_bytes(data.draw(spoilt(b'{"mask_token": "[MASK]", "x": [1, {"y": 2}]}')))
    only(ConfigError, lambda: read_tokenizer(home))
    only(ConfigError, lambda: read_tokenizer_config(home))
