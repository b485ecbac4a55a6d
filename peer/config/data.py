"""`data:` in a run file: sources and selection of documents, held-out text, and the samples' shape.

Addresses are local paths or URLs that every volunteer's machine can open (`SCHEMES`). A
source's `sampling` and `duplicates` select its documents: `manyhands corpus sample` prints both
keys, and `peer.data.selection.perplexity` defines the numbers. Documents of `validation` are
never used for training, only to compare checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from peer.config.base import Positive, PositiveFloat, Section, Sha256, WholeNumber

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*)://")
# Schemes that volunteers' machines open: only file stores, without code, caches or logins.
SCHEMES = ("abfs", "abfss", "az", "gcs", "gs", "hf", "http", "https", "memory", "s3", "s3a")
Duplicates = Literal["none", "exact", "near"]
Method = Literal["random", "stepwise", "gaussian"]
Factor = Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)]
Address = Annotated[str, Field(min_length=1, max_length=1000)]
MAX_SAMPLES = 16_384  # upper limit, because all samples are evaluated for each checkpoint
# key -> kinds of sources to which the key applies
KINDS_WITH = {
    "storage_options": {"text", "jsonl", "parquet"},
    "documents": {"text"},
    "encoding": {"text", "jsonl"},
    "config_name": {"hub"},
    "split": {"hub"},
    "revision": {"hub"},
}
KINDS_WITH_FIELDS = {"jsonl", "parquet", "hub"}
# Allowed options of file systems; none refers to a volunteer's logins, files or caches.
STORAGE_OPTIONS = {
    *("anon", "endpoint_url", "key", "secret", "requester_pays", "use_ssl"),  # S3
    *("account_name", "account_key", "sas_token"),  # Azure
    *("project",),  # Google
    *("block_size", "encoded", "simple_links"),  # HTTP
}
Options = Mapping[str, str | int | float | bool | None]
Name = Annotated[str, Field(min_length=1, max_length=1000)]


def is_remote(address: str) -> bool:
    """Return whether an address refers to another machine, rather than a local path."""
    return _SCHEME.match(address) is not None


def check_address(key: str, address: str) -> None:
    """Raise `ValueError`, naming the run file's `key`, for an address that volunteers must not open."""
    scheme = _SCHEME.match(address)
    if "::" in address or (scheme and scheme.group(1) not in SCHEMES):
        raise ValueError(f"`{key}` ({address}) must be a local path, or one of {', '.join(SCHEMES)} with `://`")


class ScorerConfig(Section):
    """A scorer of documents: a Unigram tokenizer (by default the run's own) or a KenLM model."""

    kind: Literal["unigram", "kenlm"] = "unigram"
    """Kind of the scorer: the pieces of a Unigram tokenizer, or a KenLM model."""
    model: Address | None = None
    """Path or address of the scorer's model, which every volunteer's machine must be able to read; by default the
    run's tokenizer."""
    sha256: Sha256 | None = None
    """Digest of the model's file."""
    text: Literal["raw", "words"] = "raw"
    """Text given to a KenLM model: unchanged (`raw`), or normalized and split into words (`words`)."""

    @model_validator(mode="after")
    def _model_where_needed(self) -> ScorerConfig:
        if self.kind == "kenlm" and self.model is None:
            raise ValueError("a scorer of kind `kenlm` needs a `model`")
        if self.sha256 is not None and self.model is None:
            raise ValueError("`sha256` is the digest of a scorer's `model`: name one, or remove it")
        if self.kind == "unigram" and self.text != "raw":
            raise ValueError("`text` is for scorers of kind `kenlm`: a tokenizer normalizes by itself")
        return self

    @model_validator(mode="after")
    def _address_is_of_a_file(self) -> ScorerConfig:
        if self.model is not None:
            check_address("model", self.model)
        return self


class Sampling(Section):
    """Sampling of documents with probability min(1, `scale` x weight); `method` sets the weight."""

    method: Method
    """Method that assigns a weight to each document."""
    scale: PositiveFloat
    """Factor of the weight: a document is kept with the probability min(1, scale x weight)."""
    quartiles: tuple[PositiveFloat, PositiveFloat, PositiveFloat] | None = Field(None, strict=False)
    """Three perplexities that divide the corpus into quarters; not for `random`."""
    factors: tuple[Factor, Factor, Factor, Factor] | None = Field(None, strict=False)
    """Weights of the four quartiles; for `stepwise`."""
    width: PositiveFloat | None = None
    """Width of the bell curve, for `gaussian`: the weight is exp(-((perplexity - median) / median)² / width)."""
    scorer: ScorerConfig = ScorerConfig()

    @model_validator(mode="after")
    def _parameters_fit_the_method(self) -> Sampling:
        wanted = {"quartiles": self.method != "random", "factors": self.method == "stepwise"}
        for name, needed in {**wanted, "width": self.method == "gaussian"}.items():
            if needed != (getattr(self, name) is not None):
                verb = "needs" if needed else "takes no"
                raise ValueError(f"sampling by the method `{self.method}` {verb} `{name}`")
        if self.quartiles is not None and list(self.quartiles) != sorted(self.quartiles):
            raise ValueError(f"`quartiles` {self.quartiles} must rise")
        if self.factors is not None and not any(self.factors):
            raise ValueError("`factors` are all 0: nothing would be kept")
        return self


class ValidationSplit(Section):
    """The share of documents held out, and the number of samples for evaluating each checkpoint."""

    share: float = Field(0.001, ge=0, lt=0.5)
    """Share of the documents that are held out from training, chosen by their hash; 0: none, and no evaluation."""
    samples: int = Field(512, ge=1, le=MAX_SAMPLES)
    """Maximum number of held-out samples that each checkpoint is evaluated on."""


def _one_or_several(value: Any) -> Any:
    if not isinstance(value, (str, list, tuple)):
        raise ValueError("`path` must be an address or a list of addresses")
    return (value,) if isinstance(value, str) else value


Paths = Annotated[
    tuple[Name, ...],
    Field(min_length=1, max_length=10_000, strict=False),
    BeforeValidator(_one_or_several),
]


class Filters(Section):
    """Conditions on a source's documents; documents that do not meet all conditions are skipped."""

    min_characters: WholeNumber = 0
    """Minimum length of a document, in characters; shorter documents are skipped."""
    max_characters: Positive | None = None
    """Maximum length of a document, in characters; longer documents are skipped."""
    language_field: Name | None = None
    """Field or column with the language of a document."""
    languages: tuple[Name, ...] = Field((), strict=False)
    """Languages of the documents to read, as written in `language_field`."""

    @model_validator(mode="after")
    def _limits_fit(self) -> Filters:
        if self.max_characters is not None and self.max_characters < self.min_characters:
            raise ValueError(
                f"`max_characters` ({self.max_characters}) must not be below `min_characters` ({self.min_characters})"
            )
        if (self.language_field is None) != (not self.languages):
            raise ValueError("`language_field` and `languages` go together: set both or none")
        return self


class Source(Section):
    """A source of documents: the built-in corpus, files, or a streamed Hugging Face dataset."""

    kind: Literal["builtin", "text", "jsonl", "parquet", "hub"]
    """Kind of the source: the built-in corpus, files, or a Hugging Face dataset, streamed (`hub`)."""
    path: Paths | None = None
    """Name of a dataset; or a file, folder, pattern or address, or a list of these. Required for every kind but
    `builtin`."""
    storage_options: Options = Field({}, max_length=50)
    """fsspec options for object storage, such as `anon: true`. Every volunteer can read them: store no secrets."""
    documents: Literal["line", "paragraph"] = "paragraph"
    """Unit of a `text` file that is one document: each line, or all lines up to an empty one."""
    encoding: str | None = Field(None, max_length=40)
    """Encoding of the files, as Python names it; by default it is detected from their bytes."""
    config_name: str | None = None
    """Configuration of the dataset on the hub."""
    split: str = "train"
    """Split of the dataset on the hub."""
    revision: str | None = None
    """Revision of the dataset on the hub; only a commit hash pins it."""
    text_field: str = "text"
    """Field or column with the text of a document."""
    license: str | None = Field(None, min_length=1, max_length=200)
    """Licence of the documents, for the model card."""
    weight: PositiveFloat = 1.0
    """Share of this source in the tokens, relative to the weights of the other sources."""
    filters: Filters = Filters()
    duplicates: Duplicates = "none"
    """Duplicates that a device drops: `exact` copies of documents read earlier in the same source, or `near` copies,
    too."""
    sampling: Sampling | None = None
    """Sampling of the documents by perplexity; by default all documents are kept."""

    @model_validator(mode="after")
    def _path_where_needed(self) -> Source:
        if (self.path is None) != (self.kind == "builtin"):
            wanted = "takes no `path`" if self.kind == "builtin" else "needs a `path`"
            raise ValueError(f"a source of kind `{self.kind}` {wanted}")
        if self.kind == "hub" and len(self.paths) > 1:
            raise ValueError("a source of kind `hub` has one `path`: name each dataset in a source of its own")
        return self

    @property
    def is_remote(self) -> bool:
        """Return whether the source's text is downloaded over a network."""
        return self.kind == "hub" or any(map(is_remote, self.paths))

    @model_validator(mode="after")
    def _addresses_are_of_files(self) -> Source:
        for path in self.paths:
            check_address("path", path)
        return self

    @model_validator(mode="after")
    def _encoding_is_known(self) -> Source:
        if self.encoding is not None:
            try:
                "".encode(self.encoding)
            except (LookupError, UnicodeError) as error:
                raise ValueError(f"`encoding` ({self.encoding}) must be one that Python knows, as cp1251") from error
        return self

    @model_validator(mode="after")
    def _storage_options_are_known(self) -> Source:
        for key in self.storage_options:
            if key not in STORAGE_OPTIONS:
                raise ValueError(f"`storage_options` may hold {', '.join(sorted(STORAGE_OPTIONS))}, not `{key}`")
        return self

    @model_validator(mode="after")
    def _keys_fit_the_kind(self) -> Source:
        for key, kinds in KINDS_WITH.items():
            if self.kind not in kinds and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"`{key}` is for sources of kind {', '.join(sorted(kinds))}, not `{self.kind}`")
        if self.filters.language_field is not None and self.kind not in KINDS_WITH_FIELDS:
            raise ValueError(f"`language_field` is for sources with fields, not for kind `{self.kind}`")
        return self

    @property
    def paths(self) -> tuple[str, ...]:
        """All values of `path`; empty for the built-in corpus."""
        return self.path or ()

    @property
    def name(self) -> str:
        """The source's name in messages."""
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return f"`{self.paths[0]}`{more}" if self.paths else "the built-in corpus"


class Data(Section):
    """The sources of the samples, and the shape of a sample."""

    sources: tuple[Source, ...] = Field((Source(kind="builtin"),), min_length=1, strict=False)
    """Sources of the documents; their tokens are mixed in proportion to their weights."""
    sequence_length: int = Field(512, ge=16, le=8192)
    """Maximum number of tokens in a sample."""
    cross_document_attention: bool = True
    """Whether documents packed into one sample attend to each other; `false` is supported by `modernbert` only."""
    microbatch_size: int = Field(4, ge=1, le=4096)
    """Samples in one forward pass; volunteers may choose another number."""
    shuffle_buffer: int = Field(1000, ge=1, le=1_000_000)
    """Number of documents that are shuffled together."""
    validation: ValidationSplit = ValidationSplit()
