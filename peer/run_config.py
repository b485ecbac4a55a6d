"""RunConfig: what a run trains and how.

Read from YAML by the operator's commands, validated once, frozen, sent to every peer at join, and saved in every
checkpoint. The defaults are sahajBERT's (Diskin et al. 2021, arXiv 2106.10207, section 4.3).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from auth.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]
BUILTIN_RUNS = Path(__file__).parent / "runs"


class Section(BaseModel):
    """A frozen part of the run file; unknown keys and silent type conversions are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Run(Section):
    """What the run is called and what it is about."""

    name: str = Field("manyhands", pattern=r"^[a-z0-9][a-z0-9-]{0,39}$")
    description: str = Field("", max_length=2000)
    language: str = Field("en", pattern=r"^[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*$")
    seed: int = Field(0, ge=0, lt=2**32)


class Model(Section):
    """The ALBERT to train (Lan et al. 2020, arXiv 1909.11942); the names are transformers' `AlbertConfig`'s."""

    architecture: Literal["albert"] = "albert"
    embedding_size: Positive = 128
    hidden_size: Positive = 1024
    num_hidden_layers: Positive = 24
    num_hidden_groups: Positive = 1
    num_attention_heads: Positive = 16
    intermediate_size: Positive = 4096
    max_position_embeddings: Positive = 512
    hidden_dropout_prob: Fraction = 0.0
    attention_probs_dropout_prob: Fraction = 0.0

    @model_validator(mode="after")
    def _heads_divide_width(self) -> Model:
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"`hidden_size` ({self.hidden_size}) must be a multiple of "
                f"`num_attention_heads` ({self.num_attention_heads})"
            )
        return self


class Objective(Section):
    """Masked language modelling with sentence order (ALBERT) or without."""

    name: Literal["mlm+sop", "mlm"] = "mlm+sop"
    mask_probability: float = Field(0.15, gt=0, lt=1)


class Tokenizer(Section):
    """The run's tokenizer: a given `tokenizer.json`, or a Unigram trained once by `coordinator init`."""

    path: str | None = None
    vocab_size: int = Field(32_000, ge=100, le=1_000_000)
    lowercase: bool = True
    max_training_documents: Positive = 200_000


class Source(Section):
    """One source of documents: the built-in corpus, local files, or a Hugging Face dataset (streamed)."""

    kind: Literal["builtin", "text", "jsonl", "hub"]
    path: str | None = None
    config_name: str | None = None
    split: str = "train"
    revision: str | None = None
    text_field: str = "text"
    weight: PositiveFloat = 1.0  # this source's share of the documents, relative to the others'

    @model_validator(mode="after")
    def _path_where_needed(self) -> Source:
        if (self.path is None) != (self.kind == "builtin"):
            wanted = "takes no `path`" if self.kind == "builtin" else "needs a `path`"
            raise ValueError(f"a source of kind `{self.kind}` {wanted}")
        return self


class Data(Section):
    """Where samples come from and what shape they have."""

    sources: tuple[Source, ...] = Field((Source(kind="builtin"),), min_length=1, strict=False)
    sequence_length: int = Field(512, ge=16, le=8192)
    microbatch_size: int = Field(4, ge=1, le=4096)
    shuffle_buffer: int = Field(1000, ge=1, le=1_000_000)


class Optimizer(Section):
    """LAMB (You et al. 2020, arXiv 1904.00962) with the recipe's options."""

    name: Literal["lamb"] = "lamb"
    learning_rate: PositiveFloat = 1.76e-3
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.999), strict=False)
    epsilon: PositiveFloat = 1e-6
    weight_decay: float = Field(0.01, ge=0, allow_inf_nan=False)
    clamp_value: PositiveFloat = 10_000.0
    max_grad_norm: PositiveFloat = 1.0


class Schedule(Section):
    """Linear warm-up, then linear decay to zero; both in global steps."""

    warmup_steps: int = Field(5_000, ge=0)
    total_steps: Positive = 125_000

    @model_validator(mode="after")
    def _warmup_below_total(self) -> Schedule:
        if self.warmup_steps >= self.total_steps:
            raise ValueError(f"`warmup_steps` ({self.warmup_steps}) must be below `total_steps` ({self.total_steps})")
        return self


class Averaging(Section):
    """How peers fill the global batch and average gradients; times in seconds."""

    target_batch_size: Positive = 4096
    matchmaking_time_s: PositiveFloat = 15.0
    averaging_timeout_s: PositiveFloat = 60.0
    statistics_expiration_s: PositiveFloat = 120.0
    progress_refresh_s: PositiveFloat = 0.5
    compression: Literal["float16", "none"] = "float16"

    @model_validator(mode="after")
    def _timeout_exceeds_matchmaking(self) -> Averaging:
        if self.averaging_timeout_s <= self.matchmaking_time_s:
            raise ValueError(
                f"`averaging_timeout_s` ({self.averaging_timeout_s}) must be above "
                f"`matchmaking_time_s` ({self.matchmaking_time_s})"
            )
        return self


class Checkpoints(Section):
    """How often the keeper writes a checkpoint (in global steps) and how many it keeps."""

    every_steps: Positive = 500
    keep: Positive = 5


class Membership(Section):
    """How long an access token is valid (seconds): so long does the swarm go on without the coordinator."""

    token_lifetime_s: int = Field(6 * 3600, ge=60, le=30 * 24 * 3600)


class RunConfig(Section):
    """A whole run; see the module's docstring."""

    run: Run = Run()
    model: Model = Model()
    objective: Objective = Objective()
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    checkpoints: Checkpoints = Checkpoints()
    membership: Membership = Membership()

    @model_validator(mode="after")
    def _sections_fit(self) -> RunConfig:
        if self.data.sequence_length > self.model.max_position_embeddings:
            raise ValueError(
                f"`data.sequence_length` ({self.data.sequence_length}) must not exceed "
                f"`model.max_position_embeddings` ({self.model.max_position_embeddings})"
            )
        if self.data.microbatch_size > self.averaging.target_batch_size:
            raise ValueError(
                f"`data.microbatch_size` ({self.data.microbatch_size}) must not exceed "
                f"`averaging.target_batch_size` ({self.averaging.target_batch_size})"
            )
        return self

    @classmethod
    def from_yaml(cls, path: Path) -> RunConfig:
        """Read and validate a run file; raises `ConfigError` with one sentence for the first mistake."""
        try:
            content = yaml.safe_load(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"Cannot read the run file {path}: {error.strerror}.") from error
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}.") from error
        return cls.from_mapping({} if content is None else content, origin=str(path))

    @classmethod
    def from_mapping(cls, content: Any, origin: str = "the run configuration") -> RunConfig:
        """Validate a parsed run file; raises `ConfigError`, which names the key, the value and what is allowed."""
        try:
            return cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(f"{origin}: {_first_mistake(error)}") from error

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Parse what `to_json` wrote, as a peer does at join; raises `ConfigError`."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"the coordinator's run configuration: {_first_mistake(error)}") from error

    def to_json(self) -> str:
        """The canonical JSON form that travels to peers."""
        return self.model_dump_json()

    def to_yaml(self) -> str:
        """The complete run file, defaults included, as saved in checkpoints."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def _first_mistake(error: ValidationError) -> str:
    """One sentence for the first of pydantic's complaints: key, value, remedy."""
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"]) or "the file"
    if first["type"] == "extra_forbidden":
        return f"`{key}` is not a known key; remove it or check its spelling."
    if first["type"] == "value_error":
        return f"{first['msg'].removeprefix('Value error, ')}."
    return f"`{key}` ({first['input']!r:.80}): {first['msg'][0].lower()}{first['msg'][1:]}."
