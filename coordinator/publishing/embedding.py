"""Export of a checkpoint as a sentence-transformers model: untuned sentence embeddings, with a card.

  modules.json, 1_Pooling/config.json     modules: the model, then the mean over a text's tokens
  config_sentence_transformers.json, sentence_bert_config.json
  config.json, model.safetensors, tokenizer files
  README.md                               model card

`manyhands export --sentence-transformers` writes the folder, reloads the model and verifies an
embedding. Tasks of kind `retrieval` score and tune the same model
(`coordinator.evaluation.tasks.retrieval`).
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from auth.errors import ConfigError
from auth.files import new_directory, sync
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.evaluation.tasks.plan import EmbedderPlan
from coordinator.evaluation.tasks.running import run_apart
from coordinator.publishing.card_facts import CardFacts, count_parameters
from coordinator.publishing.cards import CARD, embedding_card, longest_sequence
from coordinator.publishing.soundness import check_loads
from peer.config.run import RunConfig
from peer.runtime.software import how_to_add


def require_package() -> None:
    """Raise `ConfigError` if sentence-transformers is not installed."""
    if find_spec("sentence_transformers") is None:
        raise ConfigError(f"--sentence-transformers needs the package of that name: {how_to_add('embeddings')}.")


def require_bidirectional(config: RunConfig) -> None:
    """Raise `ConfigError` for a causal model, where only the last token attends to all tokens."""
    if not config.objective.masks:
        raise ConfigError(
            f"--sentence-transformers is not for a model of the objective `{config.objective.name}`: a token of a "
            "causal model has not seen what follows, so the mean over tokens is no embedding of the sentence."
        )


def export_embedder(stored: StoredCheckpoint, out: Path, facts: CardFacts) -> int:
    """Export a checkpoint as a sentence-transformers model, atomically; return the embedding size.

    Raises `ConfigError` for a causal model, an existing target or a missing package, and
    `UnsoundWeightsError` if the loss or an embedding differs from its expected value.
    """
    require_bidirectional(facts.config)
    length = longest_sequence(facts.config)
    with new_directory(out) as folder:
        check_loads(stored.path)
        width: int = run_apart(EmbedderPlan(str(stored.path), str(folder), length))
        card = embedding_card(facts, width, length, count_parameters(folder))
        (folder / CARD).write_text(card, encoding="utf-8")
        for path in (*folder.rglob("*"), folder):
            sync(path)
    return width
