"""What of a run's configuration anybody may know: what a machine has to compute, not where the text comes from."""

from __future__ import annotations

from peer.config.data import Data
from peer.config.tokenizer import Tokenizer
from peer.config.training import Averaging
from peer.run_config import Run, RunConfig


def public_part(config: RunConfig) -> RunConfig:
    """The name and the sizes of a run (as they are in force: see `at_step`), everything else at its default.

    What is public is listed here, so that no key that is added to the run file becomes public by accident.
    """
    return RunConfig(
        run=Run(name=config.run.name, language=config.run.language),
        model=config.model,
        objective=config.objective,
        tokenizer=Tokenizer(vocab_size=config.tokenizer.vocab_size),
        data=Data(sequence_length=config.data.sequence_length, microbatch_size=config.data.microbatch_size),
        averaging=Averaging(target_batch_size=config.averaging.target_batch_size),
    )
