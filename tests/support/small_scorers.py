"""Models small enough to score with by hand."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from tests.support.programs import require_kenlm

PIECES = {"[UNK]": 0.0, "\u2581": -6.0, "a": -3.0, "b": -4.0, "\u2581a": -1.0, "\u2581b": -2.0, "আ": -5.0}
# log10 probabilities
ARPA = """\\data\\
ngram 1=5
ngram 2=1

\\1-grams:
-2.0\t<unk>
0\t<s>\t0
-1.0\t</s>
-0.5\ta\t0
-1.5\tb\t0

\\2-grams:
-0.25\ta a

\\end\\
"""


def write_arpa(path: Path) -> Path:
    """A KenLM model of `a` and `b`; only `a a` is more likely than its words apart. Skips the test without kenlm."""
    require_kenlm()
    path.write_text(ARPA, encoding="utf-8")
    return path


def write_unigram(path: Path) -> Path:
    """A Unigram tokenizer of `PIECES`."""
    tokenizer = Tokenizer(models.Unigram(list(PIECES.items()), unk_id=0, byte_fallback=False))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.save(str(path))
    return path
