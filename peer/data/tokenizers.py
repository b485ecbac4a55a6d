"""The run's tokenizer: trained or imported once by the operator, loaded by every peer from the folder it was saved to.

The folder loads with transformers' `AutoTokenizer` as a plain fast tokenizer. transformers' ALBERT class is avoided: it
replaces the normalizer by its own, which strips Bengali vowel signs.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from auth.errors import ConfigError, StorageError
from peer.data.documents import sample_documents
from peer.data.sentences import split_sentences
from peer.data.special_tokens import SpecialIds, missing_token, special_ids, special_names
from peer.run_config import RunConfig

SPECIAL_TOKENS = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}  # ids 0 to 4
TOKENIZER_FILE = "tokenizer.json"
CONFIG_FILE = "tokenizer_config.json"


def prepare_tokenizer(config: RunConfig, out_dir: Path) -> None:
    """Make the run's tokenizer folder: import the one that the run names, or train one on the run's documents."""
    if config.tokenizer.path is not None:
        tokenizer = read_tokenizer(Path(config.tokenizer.path))
        if config.objective.name.startswith("mlm") and "mask" not in special_names(tokenizer):
            raise missing_token("mask")
        save_tokenizer(tokenizer, config, out_dir)
    else:
        train_unigram(config, sample_documents(config, config.tokenizer.max_training_documents), out_dir)


def train_unigram(config: RunConfig, documents: Iterable[str], out_dir: Path) -> None:
    """Train a Unigram tokenizer on the documents and save it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = _normalizer(config.tokenizer.lowercase)
    # Digits one by one and punctuation apart: the vocabulary goes to words, not to numbers and "word,".
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Punctuation(),
        ]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=config.tokenizer.vocab_size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        unk_token=SPECIAL_TOKENS["unk"],
        show_progress=False,
    )
    tokenizer.train_from_iterator((split_sentences(document) for document in documents), trainer)
    tokenizer.post_processor = _pair_template(tokenizer)
    save_tokenizer(tokenizer, config, out_dir)


def read_tokenizer(path: Path) -> Tokenizer:
    """A tokenizer from a `tokenizer.json`, a gzipped one, or a folder with one; raises `ConfigError`."""
    file = path / TOKENIZER_FILE if path.is_dir() else path
    try:
        data = file.read_bytes()
        return Tokenizer.from_buffer(gzip.decompress(data) if file.suffix == ".gz" else data)
    except (OSError, EOFError) as error:
        raise ConfigError(f"Cannot read the tokenizer {file}: {error}.") from error
    except Exception as error:
        raise ConfigError(f"{file} is no tokenizer: {error}.") from error


def save_tokenizer(tokenizer: Tokenizer, config: RunConfig, out_dir: Path) -> None:
    """Save as a folder that `load_tokenizer` and `AutoTokenizer` read.

    The configuration is written by hand, since importing transformers takes seconds and brings torch into a command.
    """
    names = special_names(tokenizer)
    content = {
        "tokenizer_class": "PreTrainedTokenizerFast",  # what every version of transformers knows
        "model_max_length": config.model.max_position_embeddings,
        "model_input_names": ["input_ids", "token_type_ids", "attention_mask"],
        **{f"{role}_token": name for role, name in names.items()},
    }
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        (out_dir / TOKENIZER_FILE).write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
        (out_dir / CONFIG_FILE).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"Cannot write the tokenizer to {out_dir} ({error.strerror}).") from error


def load_tokenizer(directory: Path) -> Tokenizer:
    """The tokenizer for the data path: text that spells a special token, such as "[MASK]", stays text."""
    tokenizer = read_tokenizer(directory)
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_special_ids(directory: Path) -> SpecialIds:
    """The special tokens' ids, by the names that the folder's configuration gives them; raises `ConfigError`."""
    try:
        config = json.loads((directory / CONFIG_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"Cannot read {directory / CONFIG_FILE}: {error}.") from error
    return special_ids(read_tokenizer(directory), config)


def _normalizer(lowercase: bool) -> normalizers.Normalizer:
    steps = [normalizers.Nmt(), normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")]
    return normalizers.Sequence([*steps, normalizers.Lowercase()] if lowercase else steps)


def _pair_template(tokenizer: Tokenizer) -> processors.PostProcessor:
    names = special_names(tokenizer)
    cls, sep = names["cls"], names["sep"]
    return processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(name, tokenizer.token_to_id(name)) for name in (cls, sep)],
    )
