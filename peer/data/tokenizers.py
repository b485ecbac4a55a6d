"""The run's tokenizer: trained or imported once by the operator, loaded by every peer from the folder it was saved to.

The folder loads with transformers' `AutoTokenizer` as a plain fast tokenizer. transformers' classes for single families
are avoided: they replace parts of the tokenizer by their own, and ALBERT's strips Bengali vowel signs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from auth.errors import ConfigError, StorageError
from peer.config.architectures import ARCHITECTURES
from peer.config.tokenizer_presets import ROBERTA_TOKENS
from peer.data.documents import sample_documents
from peer.data.held_out import PartFilter
from peer.data.sentencepiece_models import convert_sentencepiece
from peer.data.special_tokens import (
    SpecialIds,
    added_tokens,
    cut_special_spellings,
    missing_token,
    special_ids,
    special_names,
)
from peer.data.tokenizer_needs import check_tokenizer
from peer.data.tokenizer_pipelines import frame
from peer.data.tokenizer_training import train_tokenizer
from peer.run_config import RunConfig

TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"
SENTENCEPIECE = ".model"


def prepare_tokenizer(config: RunConfig, out_dir: Path) -> None:
    """Make the run's tokenizer folder: import the one that the run names, or train one on the run's documents.

    Raises `ConfigError` if it lacks what the run's objective and family of models need.
    """
    if config.tokenizer.path is not None:
        import_tokenizer(config, Path(config.tokenizer.path), out_dir)
    else:
        save_tokenizer(train_tokenizer(config, training_sample(config)), config, out_dir)
    check_tokenizer(config, read_tokenizer(out_dir), load_special_ids(out_dir))


def training_sample(config: RunConfig) -> Iterator[str]:
    """As many of the run's documents as its tokenizer is trained on, and none that is held out for validation."""
    keeps = PartFilter("training", config.data.validation.share).keeps
    return filter(keeps, sample_documents(config, config.tokenizer.max_training_documents))


def import_tokenizer(config: RunConfig, path: Path, out_dir: Path) -> None:
    """Save a given tokenizer as the run's; raises `ConfigError` if it cannot end a text.

    A sentencepiece model is no more than a vocabulary: what else a masked objective needs is added to it. Any other
    tokenizer is left as it is.
    """
    masked = config.objective.name.startswith("mlm")
    tokenizer, given = read_tokenizer(path), read_tokenizer_config(path)
    if masked and _find_file(path).suffix == SENTENCEPIECE:
        names = {**ROBERTA_TOKENS, **special_names(tokenizer, given)}
        tokenizer.add_special_tokens(added_tokens(names))
        tokenizer.post_processor = frame(tokenizer, names)
    save_tokenizer(tokenizer, config, out_dir, given)


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a `tokenizer.json` (gzipped or not), a `.model` of sentencepiece, or a folder with one of these.

    Raises `ConfigError`.
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
    except Exception as error:  # the library raises nothing more special
        raise ConfigError(f"{file} is no tokenizer: {error}.") from error


def read_tokenizer_config(path: Path) -> dict[str, Any]:
    """The configuration beside a tokenizer in a folder, if there is one."""
    file = path / CONFIG_FILE
    if not file.is_file():
        return {}
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read {file}: {error}.") from error
    if not isinstance(content, dict):
        raise ConfigError(f"{file} is no tokenizer's configuration: it must hold a JSON object.")
    return content


def save_tokenizer(
    tokenizer: Tokenizer, config: RunConfig, out_dir: Path, given: Mapping[str, Any] | None = None
) -> None:
    """Save as a folder that `load_tokenizer` and `AutoTokenizer` read; `given` is an imported one's configuration.

    The configuration is written by hand, since importing transformers takes seconds and brings torch into a command.
    """
    names = special_names(tokenizer, given)
    if "sep" not in names:
        raise missing_token("sep")
    segments = ["token_type_ids"] if ARCHITECTURES[config.model.architecture].token_types > 1 else []
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # what every version of transformers knows
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
    """The tokenizer for the data path: all of a text and no padding; what spells a special token stays text."""
    tokenizer = read_tokenizer(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    cut_special_spellings(tokenizer)
    return tokenizer


def load_special_ids(directory: Path) -> SpecialIds:
    """The special tokens' ids, by the names that the folder's configuration gives them; raises `ConfigError`."""
    return special_ids(read_tokenizer(directory), read_tokenizer_config(directory))


def _find_file(path: Path) -> Path:
    """The tokenizer's file in a folder; any other path is the file itself."""
    if not path.is_dir():
        return path
    packed, pieces = path / f"{TOKENIZER_FILE}.gz", sorted(path.glob(f"*{SENTENCEPIECE}"))
    found = [file for file in (path / TOKENIZER_FILE, packed, *pieces) if file.is_file()]
    return found[0] if found else path / TOKENIZER_FILE
