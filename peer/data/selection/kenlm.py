"""Scoring with a KenLM n-gram model, as in CCNet and BERTIN, and training with KenLM's `lmplz`.

Only this module imports `kenlm`, an optional extra because it must be compiled.
"""

from __future__ import annotations

import shutil
import subprocess
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import regex
from numpy.typing import NDArray

from auth.errors import ConfigError
from peer.runtime.software import how_to_add

REMEMBERED_WORDS = 500_000
LONGEST_REMEMBERED = 40  # maximum length of a cached word, in characters
_MARK, _DIGIT = regex.compile(r"[\p{P}\p{S}]"), regex.compile(r"\p{Nd}")
SMALL_CORPUS = "--discount_fallback"  # a small text has too few counts to estimate the discounts


class KenlmScorer:
    """A scorer by the perplexity per word of a document's lines; line ends are counted as words."""

    def __init__(self, path: Path, text: str) -> None:
        try:
            import kenlm
        except ImportError as error:
            raise ConfigError(
                f"A KenLM model needs the package kenlm, which is not installed: {how_to_add('kenlm')}."
            ) from error
        if not path.is_file():
            raise ConfigError(f"There is no KenLM model at {path}: check the path.")
        try:
            config = kenlm.Config()
            config.show_progress, config.arpa_complain = False, kenlm.ARPALoadComplain.NONE
            self._score = kenlm.Model(str(path), config).score
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"{path} is not a KenLM model: it must be an ARPA or binary file of order 2 to 6."
            ) from error
        self._normalize = text == "words"

    def perplexities(self, documents: Sequence[str]) -> NDArray[np.float64]:
        return np.fromiter(map(self._perplexity, documents), np.float64, len(documents))

    def _perplexity(self, document: str) -> float:
        text = words_of(document) if self._normalize else document
        lines = [line for line in text.split("\n") if line.strip()]
        if not lines:
            return float("inf")
        log10 = sum(map(self._score, lines))
        words = len(text.split()) + len(lines)
        return float(10.0 ** min(-log10 / words, 300.0))


def words_of(text: str) -> str:
    """Normalize text for our models: NFKC, lower case, 0 for every digit, separate punctuation."""
    return "\n".join(" ".join(map(_words_in, line.split())) for line in text.split("\n"))


def _words_in(text: str) -> str:
    return _remembered(text) if len(text) <= LONGEST_REMEMBERED else _normalized(text)


def _normalized(text: str) -> str:
    text = unicodedata.normalize("NFKC", text).lower()
    return " ".join(_DIGIT.sub("0", _MARK.sub(r" \g<0> ", text)).split())


_remembered = lru_cache(REMEMBERED_WORDS)(_normalized)  # normalization takes far longer than KenLM's scoring


def train_kenlm(documents: Iterable[str], out: Path, order: int = 5, program: str = "lmplz") -> None:
    """Train an ARPA model on the documents' lines. Raises `ConfigError` if KenLM is missing or fails."""
    found = shutil.which(program)
    if found is None:
        raise ConfigError(
            f"`{program}`, KenLM's program that trains models, is not installed: build it from "
            "github.com/kpu/kenlm and put it on the PATH, give a trained model by --kenlm, or leave --clean out."
        )
    command = [found, "-o", str(order), "-S", "20%", "-T", str(out.parent), "--arpa", str(out), SMALL_CORPUS]
    log = out.with_suffix(".log")
    with log.open("wb") as messages:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=messages, stderr=messages)  # noqa: S603
        try:
            assert process.stdin is not None
            for document in documents:
                process.stdin.write((words_of(document) + "\n").encode("utf-8", "replace"))
            process.stdin.close()
        except BrokenPipeError:
            pass  # the program ended early; its exit status is checked below
        except BaseException:  # also on interruption; otherwise a partial corpus would be trained on
            process.kill()
            raise
        finally:
            process.wait()
    last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
    log.unlink()
    if process.returncode:
        raise ConfigError(f"`{program}` could not train a model ({' '.join(last)}): is there enough clean text?")
