"""The run's tokenizer: trained or imported by the operator, loaded from its folder by every peer.

transformers' `AutoTokenizer` can load the folder as a plain fast tokenizer. transformers' own
classes are avoided because they replace parts of a tokenizer: ALBERT's strips Bengali vowel signs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from auth.errors import ConfigError, StorageError
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.tokenization.sentencepiece import convert_sentencepiece
from peer.data.tokenization.special_tokens import (
    SpecialIds,
    cut_special_spellings,
    missing_token,
    special_ids,
    special_names,
)
from peer.data.tokenization.words import WordStarts

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE = ".model"


def read_tokenizer(path: Path) -> Tokenizer:
    """Load a `tokenizer.json` (gzipped or not), a sentencepiece `.model`, or a folder with either.

    Raises `ConfigError` if there is no valid tokenizer.
    """
    file = _find_file(path)
    try:
        content = file.read_bytes()
        if file.suffix == SENTENCEPIECE:
            return convert_sentencepiece(content, str(file))
        return Tokenizer.from_buffer(gzip.decompress(content) if file.suffix == ".gz" else content)
    except (OSError, EOFError) as error:
        raise ConfigError(f"Cannot read the tokenizer {file}: {getattr(error, 'strerror', None) or error}.") from error
    except ConfigError:
        raise
    except Exception as error:  # the library raises nothing more specific
        raise ConfigError(f"{file} is not a tokenizer: {error}.") from error


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """Load the configuration in a tokenizer's folder; {} if there is none. Raises `ConfigError` if invalid."""
    file = path / CONFIG_FILE
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is not a tokenizer's configuration: it must hold a JSON object.")
    return content


def save_tokenizer(
    tokenizer: Tokenizer, config: RunConfig, out_dir: Path, given: Mapping[str, Any] | None = None
) -> None:
    """Save the tokenizer to a folder that `load_tokenizer` and `AutoTokenizer` can load.

    `given` is the configuration of an imported tokenizer. The configuration is built here, because
    importing transformers takes seconds and also imports torch.
    """
    names = special_names(tokenizer, given)
    if "sep" not in names:
        raise missing_token("sep")
    segments = ["token_type_ids"] if ARCHITECTURES[config.model.architecture].token_types > 1 else []
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # exists in every version of transformers
        "model_max_length": config.model.max_position_embeddings,
        "model_input_names": ["input_ids", *segments, "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "bos_token": names.get("cls", names["sep"]),
        "eos_token": names["sep"],
        **{f"{role}_token": name for role, name in names.items()},
    }
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        (out_dir / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write the tokenizer to {out_dir} ({error.strerror}).") from error


def load_tokenizer(path: Path) -> Tokenizer:
    """Load the tokenizer without truncation or padding; text like "[MASK]" is ordinary."""
    tokenizer = read_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cut_special_spellings(tokenizer)
    return tokenizer


def load_special_ids(directory: Path) -> SpecialIds:
    """Load the special tokens' ids. Raises `ConfigError` if the tokenizer has no end-of-text token."""
    return special_ids(read_tokenizer(directory), read_tokenizer_config(directory))


def check_tokenizer(config: RunConfig, tokenizer: Tokenizer, special: SpecialIds) -> None:
    """Raise `ConfigError` if the tokenizer does not suit the run's objective or model family."""
    if config.model.architecture == "roberta" and special.pad == special.sep:
        raise missing_token("pad")  # RoBERTa has no positions for padding, so it must not be the separator
    if config.objective.masks and special.mask is None:
        raise missing_token("mask")
    if config.objective.whole_words:
        WordStarts(tokenizer, special)


def _find_file(path: Path) -> Path:
    """Return the tokenizer's file in a folder; return any other path unchanged."""
    if not path.is_dir():
        return path
    packed, pieces = path / f"{TOKENIZER_FILE}.gz", sorted(path.glob(f"*{SENTENCEPIECE}"))
    found = [file for file in (path / TOKENIZER_FILE, packed, *pieces) if file.is_file()]
    return found[0] if found else path / TOKENIZER_FILE
