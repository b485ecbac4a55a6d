"""A checkpoint as a model of sentence-transformers: untuned sentence embeddings, with a card that says so.

    modules.json, 1_Pooling/config.json     the steps: the model, then the mean over a text's tokens
    config_sentence_transformers.json, sentence_bert_config.json
    config.json, model.safetensors, tokenizer files
    README.md                               the card

`manyhands export --sentence-transformers` writes it. The model is `coordinator.evaluation.tasks.retrieval.embedder`, as
the task kind `retrieval` scores and tunes it; the process that makes it loads it again and compares an embedding.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from auth.errors import ConfigError
from auth.files import new_directory, sync
from coordinator.checkpoints.manifest import StoredCheckpoint
from coordinator.evaluation.tasks.plan import EmbedderPlan
from coordinator.evaluation.tasks.running import save_embedder
from coordinator.publishing.card_facts import CardFacts, count_parameters
from coordinator.publishing.front_matter import document, shared_front_matter
from coordinator.publishing.model_card import (
    CARD,
    FOLDER,
    NO_PROBES,
    citation,
    escaped,
    language_limit,
    listed,
    longest_sequence,
    origin,
    place_note,
    training_data,
)
from coordinator.publishing.soundness import check_loads
from peer.config.run import RunConfig
from peer.runtime.software import how_to_add

UNTUNED = (
    "**It was not tuned for sentences.** Cosine similarities of such embeddings lie close together, and a tuned model "
    "ranks texts better: take this one as a starting point for tuning on pairs of texts."
)
LIMITS = (
    "Do not use similarities for decisions about people unless a person checks each of them.",
    "The training text was not searched for personal data or insults beyond the filters named under *Training data*; "
    "similarities may follow the prejudices of that text.",
)
USAGE = (
    f'{place_note("")}With `pip install "sentence-transformers>=6"`:\n\n'
    "```python\nfrom sentence_transformers import SentenceTransformer\n\n"
    f'model = SentenceTransformer("{FOLDER}")\n'
    'embeddings = model.encode(["...", "... ..."])\n'
    "print(embeddings.shape, model.similarity(embeddings, embeddings))\n```"
)


def require_package() -> None:
    """Raise `ConfigError` if sentence-transformers is not installed."""
    if find_spec("sentence_transformers") is None:
        raise ConfigError(f"--sentence-transformers needs the package of that name: {how_to_add('embeddings')}.")


def require_bidirectional(config: RunConfig) -> None:
    """Raise `ConfigError` for a causal model: only its last token has seen the whole text."""
    if not config.objective.masks:
        raise ConfigError(
            f"--sentence-transformers is not for a model of the objective `{config.objective.name}`: a token of a "
            "causal model has not seen what follows, so the mean over tokens is no embedding of the sentence."
        )


def export_embedder(stored: StoredCheckpoint, out: Path, facts: CardFacts) -> int:
    """Write the folder, which appears whole or not at all, and return the length of its embeddings.

    Raises `ConfigError` for a causal model, a target that is taken or a missing package, `UnsoundWeightsError` if the
    checkpoint's loss is not the manifest's or the embedding not that of plain transformers.
    """
    require_bidirectional(facts.config)
    length = longest_sequence(facts.config)
    with new_directory(out) as folder:
        check_loads(stored.path)
        width = save_embedder(EmbedderPlan(str(stored.path), str(folder), length))
        card = embedding_card(facts, width, length, count_parameters(folder))
        (folder / CARD).write_text(card, encoding="utf-8")
        for path in (*folder.rglob("*"), folder):
            sync(path)
    return width


def embedding_card(facts: CardFacts, width: int, length: int, parameters: int | None) -> str:
    """Return the whole README.md; `width`: numbers in an embedding, `length`: tokens in the longest text."""
    tags = ("sentence-transformers", "feature-extraction")
    front = shared_front_matter(facts, "sentence-transformers", "sentence-similarity", tags)
    front |= {"base_model": facts.repository} if facts.repository else {}
    return document(front, _sections(facts, width, length, parameters))


def embedding_limits(config: RunConfig, length: int) -> str:
    """List the limits of embeddings, tuned or not; `length`: tokens in the longest text."""
    cut = f"Of a text of more than {length:,} tokens only the first {length:,} count."
    return listed((language_limit(config), cut, *LIMITS))


def _sections(facts: CardFacts, width: int, length: int, parameters: int | None) -> Iterator[str]:
    config = facts.config
    sized = "" if parameters is None else f" with {parameters:,} parameters"
    yield f"# {config.run.name}: sentence embeddings"
    yield escaped(config.run.description)
    yield (
        f"This model maps a text to {width:,} numbers: the mean of the last layer over the text's tokens. It is a "
        f"language model of the family `{config.model.architecture}`{sized} for the language `{config.run.language}`, "
        f"trained together by volunteers (global step {facts.step:,}), without its head."
    )
    yield UNTUNED
    yield "## Use\n" + USAGE
    yield (
        "## Intended use and limits\nThe model is meant to be tuned for search, clustering or comparison of sentences; "
        "untuned it is a baseline for these.\n\n" + embedding_limits(config, length)
    )
    yield training_data(config)
    yield "## Bias\n" + NO_PROBES
    yield from origin(facts)
    yield f"## Check\nThe weights are those of the checkpoint whose manifest has the SHA-256 `{facts.manifest_sha256}`."
    if facts.year is not None:
        yield "## Citation\n" + citation(config, facts.step, facts.manifest_sha256, facts.year)
