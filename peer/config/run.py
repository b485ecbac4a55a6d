"""The complete configuration of a run, and its public part.

The configuration is loaded from YAML by the operator's commands, validated once, frozen, sent to
every peer on joining, and saved in every checkpoint. The defaults are sahajBERT's (Diskin et al.
2021, arXiv 2106.10207, section 4.3). The public part describes the computation, but not the text.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import Field, ValidationError, model_validator

from auth.errors import ConfigError
from peer.config.architectures import ARCHITECTURES
from peer.config.base import Positive, Section, ShortName, WrittenAs, first_mistake
from peer.config.data import Data, Source
from peer.config.evaluation import EvaluationTasks
from peer.config.model import Model, Objective
from peer.config.tokenizer import Tokenizer
from peer.config.training import Averaging, Optimizer, Phase, Schedule

logger = logging.getLogger(__name__)
MAX_RUN_FILE_CHARS = 4_000_000
MAX_DEVICES_PER_MEMBER = 32  # default for `max_devices_per_member` in a run file
BUILTIN_RUNS = Path(__file__).parents[1] / "runs"

LanguageCode = Annotated[
    str, WrittenAs(r"[A-Za-z]{2,3}(-[A-Za-z0-9]{2,8})*", "a language code of BCP 47, such as `bn` or `zh-Hant`")
]


class Run(Section):
    """The run's name, description, language and seed."""

    name: ShortName = "manyhands"
    """Name of the run; part of the join link."""
    description: str = Field("", max_length=2000)
    """Description of the run on its dashboard."""
    language: LanguageCode = "en"
    """Language of the text; its abbreviations are respected when text is split into sentences."""
    seed: int = Field(0, ge=0, lt=2**32)
    """Seed for the model's initial weights and the order in which sources are read."""


class Checkpoints(Section):
    """The keeper's checkpoints: their frequency, retention and publication."""

    every_steps: Positive = 500
    """Number of global steps between checkpoints."""
    every_minutes: float | None = Field(None, gt=0, le=1e6)
    """Number of minutes after which the next global step is written even if it is not due by its number."""
    keep: Positive = 5
    """Number of newest checkpoints to keep."""
    keep_every_steps: int = Field(0, ge=0)
    """Interval, in global steps, between checkpoints that are kept permanently; 0: none."""
    keep_best: int = Field(1, ge=0, le=100)
    """Number of further checkpoints to keep: those with the lowest loss on held-out text."""
    max_loss_rise: float = Field(1.5, ge=1, le=1e6)
    """Maximum ratio of a checkpoint's loss to the loss of the previous checkpoint; a checkpoint above it is not
    published."""


class MembershipLimits(Section):
    """Limits on members, their devices and their access tokens."""

    token_lifetime_s: int = Field(6 * 3600, ge=60, le=30 * 24 * 3600)
    """Validity of an access token, in seconds; the swarm can continue that long without the coordinator."""
    newcomer_share: float = Field(0.25, gt=0, le=1, allow_inf_nan=False)
    """Share of a global batch up to which a member's samples count before the keeper has received any of them. At
    least twice a fair share counts, and all samples are averaged."""
    max_devices_per_member: int = Field(MAX_DEVICES_PER_MEMBER, ge=1, le=10_000)
    """Maximum number of a member's devices with a valid token at once."""


class Dashboard(Section):
    """Optional features of the run's public page."""

    try_it: bool = True
    """Let visitors try sentences on the newest published checkpoint; the coordinator's CPU answers."""


class RunConfig(Section):
    """The configuration of a run: the sections of its run file, validated together."""

    run: Run = Run()
    model: Model = Model()
    objective: Objective = Objective()
    tokenizer: Tokenizer = Tokenizer()
    data: Data = Data()
    optimizer: Optimizer = Optimizer()
    schedule: Schedule = Schedule()
    averaging: Averaging = Averaging()
    phases: tuple[Phase, ...] = Field((), strict=False)
    """Changes of settings at given global steps, in the order of the steps."""
    checkpoints: Checkpoints = Checkpoints()
    membership: MembershipLimits = MembershipLimits()
    dashboard: Dashboard = Dashboard()
    evaluation: EvaluationTasks = EvaluationTasks()

    @model_validator(mode="after")
    def _sections_fit(self) -> RunConfig:
        self.objective.check_architecture(self.model.architecture)
        self.model.check_length(self.data.sequence_length)
        if not (self.data.cross_document_attention or ARCHITECTURES[self.model.architecture].separable):
            raise ValueError(
                f"`data.cross_document_attention` (false) is not for `{self.model.architecture}`: remove it, or take "
                "modernbert"
            )
        for task in self.evaluation.tasks:
            if self.objective.name == "rtd" and task.kind in ("fill-mask", "bias"):
                raise ValueError(
                    f"the task `{task.name}` of kind {task.kind} asks a checkpoint to fill a mask; with "
                    "`objective.name: rtd` checkpoints hold the discriminator, which cannot: remove the task"
                )
        smallest = "target_batch_size" if self.averaging.initial_batch_size is None else "initial_batch_size"
        batch = getattr(self.averaging, smallest)
        if self.data.microbatch_size > batch:
            raise ValueError(
                f"`data.microbatch_size` ({self.data.microbatch_size}) must not exceed `averaging.{smallest}` ({batch})"
            )
        return self

    @model_validator(mode="after")
    def _local_steps_fit(self) -> RunConfig:
        averaging, microbatch = self.averaging, self.data.microbatch_size
        if averaging.local_steps == 1 and self.optimizer.name == "sgd":
            raise ValueError(
                "`optimizer.name` (sgd) is for local steps: set `averaging.local_steps` above 1, or take lamb, adamw, "
                "stable_adamw or muon"
            )
        if averaging.local_steps > 1 and averaging.initial_batch_size is not None:
            raise ValueError(
                f"`averaging.initial_batch_size` ({averaging.initial_batch_size}) is for averaged gradients: leave it "
                f"out, or `averaging.local_steps` ({averaging.local_steps})"
            )
        if averaging.local_steps > 1 and microbatch > averaging.local_batch_size:
            raise ValueError(
                f"`averaging.local_steps` ({averaging.local_steps}) leaves {averaging.local_batch_size} of the target "
                f"batch's {averaging.target_batch_size} samples to a local step; `data.microbatch_size` ({microbatch}) "
                "must not exceed that"
            )
        return self

    @model_validator(mode="after")
    def _phases_fit(self) -> RunConfig:
        steps = [phase.from_step for phase in self.phases]
        if steps != sorted(set(steps)):
            raise ValueError(f"`phases` must be in the order of their `from_step` ({', '.join(map(str, steps))})")
        for number, phase in enumerate(self.phases, 2):
            mistake = _phase_mistake(self, phase)
            if mistake is not None:
                raise ValueError(f"in phase {number} (from step {phase.from_step}), {mistake}")
        return self

    def in_phase(self, step: int) -> RunConfig:
        """Return the configuration after `step` global steps, ignoring any batch-size warm-up."""
        begun = tuple(phase for phase in self.phases if phase.from_step <= step)
        sections: dict[str, Section] = {}
        for phase in begun:
            for name, changes in phase.changes.items():
                sections[name] = sections.get(name, getattr(self, name)).model_copy(update=changes)
        return self.model_copy(update={**sections, "phases": begun})

    def at_step(self, step: int) -> RunConfig:
        """Return the configuration after `step` global steps, without later phases."""
        now = self.in_phase(step)
        return now.model_copy(update={"averaging": now.averaging.at_step(step)})

    @property
    def all_sources(self) -> tuple[Source, ...]:
        """The data sources of all phases."""
        return (*self.data.sources, *(source for phase in self.phases for source in phase.sources or ()))

    def schedule_start(self, step: int) -> int:
        """Return the global step at which the current learning rate schedule began."""
        begun = [phase.from_step for phase in self.at_step(step).phases if phase.begins_schedule]
        return max(begun, default=0)

    def starts_optimizer(self, step: int) -> bool:
        """Return whether the optimizer is reset after `step` steps, because a phase requires it."""
        return any(phase.from_step == step and phase.optimizer == "fresh" for phase in self.phases)

    @classmethod
    def from_yaml(cls, path: Path) -> RunConfig:
        """Load and validate a run file. Raises `ConfigError` that describes the first error."""
        try:
            text = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"Cannot read the run file {path}: {error.strerror}.") from error
        except UnicodeDecodeError as error:
            raise ConfigError(f"{path} is not valid YAML: {error}.") from error
        return cls.from_text(text, origin=str(path))

    @classmethod
    def from_text(cls, text: str, origin: str) -> RunConfig:
        """Parse and validate a run file. Raises `ConfigError` that describes the first error."""
        content = _parse_yaml(text, origin)
        if content is None:
            raise ConfigError(f"{origin} is empty: a run file names at least its run, as in `run: {{name: my-run}}`.")
        return cls.from_mapping(content, origin=origin)

    @classmethod
    def from_mapping(cls, content: Any, origin: str = "the run configuration") -> RunConfig:
        """Validate a parsed run file. Raises `ConfigError` with the key, its value and the allowed values.

        Keys that this version no longer has are ignored, with a warning.
        """
        try:
            config = cls.model_validate(content)
        except ValidationError as error:
            raise ConfigError(f"{origin}: {first_mistake(error)}.") from error
        if removed := _removed_keys(config, content):
            logger.warning("%s: settings that this version no longer has are ignored: %s.", origin, ", ".join(removed))
        return config

    @classmethod
    def from_json(cls, text: str) -> RunConfig:
        """Parse the output of `to_json`, as sent to joining peers. Raises `ConfigError` if it is invalid.

        Keys that this version no longer has are ignored without a warning, because a peer cannot remove them.
        """
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise ConfigError(f"the coordinator's run configuration: {first_mistake(error)}.") from error

    def to_json(self) -> str:
        """Return the canonical JSON form that is sent to peers."""
        return self.model_dump_json()

    def to_yaml(self) -> str:
        """Return the complete run file, including defaults, as saved in checkpoints."""
        return yaml.safe_dump(self.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def public_part(config: RunConfig) -> RunConfig:
    """Return a run's name and current sizes (see `at_step`), with defaults for all other keys.

    Public keys are listed explicitly, so that no new key becomes public by accident.
    """
    return RunConfig(
        run=Run(name=config.run.name, language=config.run.language),
        model=config.model,
        objective=config.objective,
        tokenizer=Tokenizer(vocab_size=config.tokenizer.vocab_size),
        data=Data(sequence_length=config.data.sequence_length, microbatch_size=config.data.microbatch_size),
        averaging=Averaging(target_batch_size=config.averaging.target_batch_size),
    )


def _removed_keys(config: RunConfig, content: Mapping[str, Any]) -> list[str]:
    """Return the keys of a valid run file that this version no longer has."""
    sections = [(name, getattr(config, name)) for name, keys in content.items() if isinstance(keys, Mapping)]
    return [f"`{name}.{key}`" for name, section in sections for key in content[name] if key in section.removed_keys]


def _parse_yaml(text: str, origin: str) -> Any:
    """Parse the YAML. Raises `ConfigError` if it is invalid or too long.

    Aliases are rejected, because a few lines could expand to more data than fits in memory.
    """
    if len(text) > MAX_RUN_FILE_CHARS:
        raise ConfigError(f"{origin} has {len(text)} characters; a run file may have {MAX_RUN_FILE_CHARS}.")
    try:
        loader = _Loader(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except Exception as error:  # errors of yaml, and of its parsers for numbers, dates and nesting
        reason = " ".join(str(error).split())
        raise ConfigError(f"{origin} is not valid YAML: {reason:.300}.") from error


class _Loader(yaml.SafeLoader):
    """A safe YAML loader that rejects aliases."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("a run file has no aliases (`*name`): write the value itself")
        return super().compose_node(parent, index)


def _phase_mistake(config: RunConfig, phase: Phase) -> str | None:
    """Return the error in the settings that apply from `phase` on, or None if they are valid."""
    effective = config.at_step(phase.from_step)
    try:
        RunConfig.model_validate(effective.model_copy(update={"phases": ()}).model_dump())
    except ValidationError as error:
        return first_mistake(error)
    initial, target = config.averaging.initial_batch_size, phase.target_batch_size
    if initial is not None and target is not None and target < initial:
        return f"`target_batch_size` ({target}) must not be below `averaging.initial_batch_size` ({initial})"
    if phase.mask_probability is not None and not effective.objective.masks:
        return f"`mask_probability` is for masked language modelling, not for `{effective.objective.name}`: remove it"
    schedule = effective.schedule
    begins = max(phase.from_step, config.schedule_start(phase.from_step) + schedule.warmup_steps)
    if begins >= schedule.total_steps:
        return f"`total_steps` ({schedule.total_steps}) must be above {begins}, the step at which the warm-up ends"
    if phase.begins_schedule and begins > schedule.total_steps - (schedule.decay_steps or 0):
        return (
            f"`decay_steps` ({schedule.decay_steps}) must not exceed {schedule.total_steps - begins}, the steps "
            "after the warm-up"
        )
    return None
