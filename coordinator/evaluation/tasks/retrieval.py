"""Retrieval by sentence embeddings: contrastive tuning on pairs of texts, and ranking metrics.

An embedding is the mean of the last hidden layer over the tokens of a text. With `train`, each seed
tunes the checkpoint for all epochs with sentence-transformers' MultipleNegativesRankingLoss: for
each first text, the other pairs' second texts in the batch are negatives (Reimers and Gurevych
2019, arXiv 1908.10084; Henderson et al. 2017, arXiv 1705.00652). Without `train`, nothing is tuned.

No other module imports sentence-transformers, an optional package (extra `embeddings`).
"""

from __future__ import annotations

import logging
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors import SafetensorError
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    util,
)
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tqdm import tqdm
from transformers import PrinterCallback

from auth.errors import ConfigError, StorageError, UnsoundWeightsError
from coordinator.evaluation.tasks.examples import RetrievalSet, TextPair
from coordinator.evaluation.tasks.fine_tuning import Finished, split
from coordinator.evaluation.tasks.metrics import Scores, retrieval_scores
from coordinator.evaluation.tasks.pretrained import Pretrained, tuning
from coordinator.evaluation.tasks.results import SeedResult
from peer.config.evaluation import Recipe, Task

logger = logging.getLogger(__name__)
RANKED = 100  # number of documents to rank for each query


def run_retrieval(
    pretrained: Pretrained,
    task: Task,
    train: Sequence[TextPair] | None,
    dev: RetrievalSet | None,
    test: RetrievalSet,
    finished: Finished,
) -> list[SeedResult]:
    """Score the checkpoint; if `train` is given, first tune it, once for each seed."""
    length = pretrained.length(task.recipe)
    if train is None:
        return [_judged(embedder(pretrained, length, 0), task, None, dev, test, finished)]
    pairs, held = split(train, None if dev is None else [])
    results = []
    for seed in task.recipe.seeds:
        model = embedder(pretrained, length, seed)
        tune(model, pairs, task.recipe, seed)
        results.append(_judged(model, task, seed, dev or set_of_pairs(held), test, finished))
    return results


def embedder(pretrained: Pretrained, length: int, seed: int) -> SentenceTransformer:
    """Load the checkpoint as a sentence-transformers model; raises `ConfigError` if loading fails.

    Texts are truncated to `length` tokens.
    """
    tqdm.set_lock(threading.RLock())  # with tqdm's default semaphore, Python would warn if the process is killed
    weights: Any = pretrained.model("AutoModel", seed)
    body: Any = Transformer(
        pretrained.source, max_seq_length=length, model_kwargs={"use_safetensors": True, "dtype": torch.float32}
    )
    body.auto_model.load_state_dict(weights.state_dict())
    weights.train(False)  # a Reformer in training mode accepts only one text length
    width = len(_mean_of_last_layer(pretrained, weights, "a", length))  # for a Reformer, twice `hidden_size`
    return SentenceTransformer(modules=[body, Pooling(width, "mean")], device="cpu")


def save_checked(pretrained: Pretrained, folder: Path, text: str, length: int) -> int:
    """Save the untuned checkpoint as a sentence-transformers model; return the embedding size.

    Raises `StorageError` if the model cannot be written, and `UnsoundWeightsError` if the saved
    model and plain transformers compute different embeddings of `text`.
    """
    try:
        embedder(pretrained, length, 0).save_pretrained(str(folder), create_model_card=False)
    except (OSError, SafetensorError) as error:
        raise StorageError(f"Cannot write the model to {folder} ({error}).") from error
    saved = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    found = saved.encode([text], convert_to_tensor=True)[0]
    expected = _mean_of_last_layer(pretrained, pretrained.model("AutoModel", 0), text, length)
    if found.shape != expected.shape or not torch.allclose(found, expected, rtol=1e-3, atol=1e-4):
        raise UnsoundWeightsError(
            "Loaded by sentence-transformers the model gives another embedding than plain transformers."
        )
    return len(found)


def _mean_of_last_layer(pretrained: Pretrained, model: Any, text: str, length: int) -> torch.Tensor:
    batch = pretrained.tokenizer()([text], truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**batch).last_hidden_state  # (1, l, width)
    return torch.as_tensor(hidden[0].mean(dim=0))


def tune(model: SentenceTransformer, pairs: Sequence[TextPair], recipe: Recipe, seed: int) -> None:
    """Train the model in place on pairs of related texts."""
    if len(pairs) < 2:
        raise ConfigError("Contrastive tuning needs two pairs of texts or more: each is compared with the others.")
    steps = recipe.epochs * -(-len(pairs) // recipe.batch_size)
    with tempfile.TemporaryDirectory() as folder:
        arguments = SentenceTransformerTrainingArguments(
            output_dir=folder,
            num_train_epochs=recipe.epochs,
            per_device_train_batch_size=recipe.batch_size,
            learning_rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            warmup_steps=round(recipe.warmup_share * steps),
            seed=seed,
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            disable_tqdm=True,
            dataloader_pin_memory=False,
            use_cpu=True,
        )
        trainer = SentenceTransformerTrainer(
            model=model,
            args=arguments,
            train_dataset=Dataset.from_dict(
                {"anchor": [pair.text for pair in pairs], "positive": [pair.pair for pair in pairs]}
            ),
            loss=MultipleNegativesRankingLoss(model),
        )
        trainer.remove_callback(PrinterCallback)  # stdout is reserved for the result
        body: Any = model[0]
        with tuning(body.auto_model):
            trainer.train()


def set_of_pairs(pairs: Sequence[TextPair]) -> RetrievalSet:
    """Build a retrieval set from held-out pairs: each first text is a query for its second text."""
    numbers: dict[str, str] = {}
    queries, judged = {}, {}
    for place, pair in enumerate(pairs):
        document = numbers.setdefault(pair.pair, str(len(numbers)))
        queries[str(place)], judged[str(place)] = pair.text, {document: 1}
    return RetrievalSet(queries, {number: text for text, number in numbers.items()}, judged)


def scores_of(model: SentenceTransformer, examples: RetrievalSet, batch_size: int) -> Scores:
    """Rank the corpus for each judged query by cosine similarity, and score the rankings."""
    documents = list(examples.corpus)
    queries, corpus = (
        model.encode(texts, batch_size=batch_size, convert_to_tensor=True, show_progress_bar=False)
        for texts in ([examples.queries[query] for query in examples.judged], list(examples.corpus.values()))
    )
    found = util.semantic_search(queries, corpus, top_k=RANKED)
    ranked = {
        query: [documents[int(hit["corpus_id"])] for hit in hits]
        for query, hits in zip(examples.judged, found, strict=True)
    }
    return retrieval_scores(examples.judged, ranked)


def _judged(
    model: SentenceTransformer,
    task: Task,
    seed: int | None,
    dev: RetrievalSet | None,
    test: RetrievalSet,
    finished: Finished,
) -> SeedResult:
    epochs, size = 0 if seed is None else task.recipe.epochs, task.recipe.batch_size
    if not all(bool(torch.isfinite(weights).all()) for weights in model.parameters()):
        return SeedResult(seed=seed, scores={}, epochs=epochs, failure="its weights became no numbers")
    dev_score = None if dev is None else scores_of(model, dev, size)[task.main_metric]
    scores = scores_of(model, test, size)
    finished(dev_score or 0.0, model)
    logger.info("%s, seed %s: %s %.4f", task.name, seed, task.main_metric, scores[task.main_metric])
    return SeedResult(seed=seed, scores=scores, dev_score=dev_score, epochs=epochs)
