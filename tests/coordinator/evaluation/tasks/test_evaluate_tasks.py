"""Each kind of task on a tiny BERT, by the process's own function: it learns what can be learnt."""

from __future__ import annotations

import json
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForTokenClassification,
    AutoTokenizer,
    RobertaConfig,
    RobertaForMaskedLM,
)

from auth.errors import ConfigError, StorageError
from coordinator.evaluation.tasks.data import DataFolders
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.pretrained import Pretrained, cut
from coordinator.evaluation.tasks.running import run_apart
from coordinator.evaluation.tasks.worker import run_plan
from peer.config.evaluation import METRICS, Task
from tests.support.tiny_bert import save_tiny_bert
from tests.support.tiny_families import save_family

FAST = {"seeds": [0, 1], "epochs": 6, "batch_size": 8, "learning_rate": 0.01, "max_length": 32}


def plan(model: Path, folder: Path, **task: Any) -> Plan:
    """This task on the model, its files in the folder."""
    content = {"name": "try", "recipe": FAST, **task}
    return Plan(str(model), Task.model_validate(content), DataFolders(folder, folder / "cache"))


def write_ner(folder: Path) -> None:
    """People live in places, and the words say which is which."""
    rng = random.Random(0)
    for name, count in (("train", 60), ("test", 20)):
        lines = []
        for _ in range(count):
            who, where = rng.choice(["ada", "grace"]), rng.choice(["berlin", "paris"])
            lines += [f"{who}\tB-PER", "lives\tO", f"{rng.choice(['in', 'near'])}\tO", f"{where}\tB-LOC", ".\tO", ""]
        (folder / name).write_text("\n".join(lines), encoding="utf-8")


@pytest.mark.usefixtures("shared_with_the_group")
def test_entities_are_learnt_and_the_best_model_is_kept(model: Path, tmp_path: Path) -> None:
    """Both seeds converge; the kept folder, of the umask's modes, loads and tags by the names of the training set."""
    write_ner(tmp_path)
    asked = plan(model, tmp_path, kind="ner", metric="f1_without_misc", train="train", test="test")
    found = run_plan(replace(asked, save_to=str(tmp_path / "kept")))
    assert [seed.failure for seed in found.seeds] == ["", ""]
    assert found.mean() == found.mean("f1") == 1.0
    assert found.examples == 20
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kept").iterdir()} == {0o640}
    kept = AutoModelForTokenClassification.from_pretrained(tmp_path / "kept", use_safetensors=True)
    ids = AutoTokenizer.from_pretrained(tmp_path / "kept")("ada lives in paris", return_tensors="pt")
    tags = [kept.config.id2label[int(number)] for number in kept(**ids).logits[0].argmax(-1)]
    assert tags[1:5] == ["B-PER", "O", "O", "B-LOC"]


@pytest.mark.parametrize(("kind", "metric"), [("ner", "precision"), ("pos", "macro_f1")])
def test_a_task_is_compared_by_any_of_its_metrics(model: Path, tmp_path: Path, kind: str, metric: str) -> None:
    """All that are computed may be chosen."""
    write_ner(tmp_path)
    once = {**FAST, "seeds": [0], "epochs": 4}
    found = run_plan(plan(model, tmp_path, kind=kind, metric=metric, train="train", test="test", recipe=once))
    assert found.metrics[0] == metric
    assert set(found.metrics) == set(METRICS[kind])
    assert found.mean() == found.seeds[0].scores[metric] > 0


def test_the_same_seeds_give_the_same_scores(model: Path, tmp_path: Path) -> None:
    """Nothing but seed, data and checkpoint decides."""
    write_ner(tmp_path)
    once = {**FAST, "seeds": [3], "epochs": 1}
    asked = plan(model, tmp_path, kind="pos", train="train", test="test", recipe=once)
    assert run_plan(asked).seeds == run_plan(asked).seeds


def test_what_teaches_nothing_is_told_as_failed(model: Path, tmp_path: Path) -> None:
    """With a learning rate that moves nothing no entity is found, and there is no mean."""
    write_ner(tmp_path)
    still = {**FAST, "seeds": [0], "epochs": 1, "learning_rate": 1e-12}
    found = run_plan(plan(model, tmp_path, kind="ner", train="train", test="test", recipe=still))
    assert "no better than the commonest answer" in found.seeds[0].failure
    assert found.mean() is None


def test_a_loss_that_is_no_number_fails_its_seed(model: Path, tmp_path: Path) -> None:
    """And the process goes on to the next."""
    write_ner(tmp_path)
    wild = {**FAST, "learning_rate": 1e30}
    found = run_plan(plan(model, tmp_path, kind="ner", train="train", test="test", recipe=wild))
    assert [seed.failure for seed in found.seeds] == ["its loss became infinite or no number"] * 2


def test_pairs_are_classified(model: Path, tmp_path: Path) -> None:
    """Whether the second text says good or bad can be learnt; texts longer than the model are cut."""
    rng = random.Random(1)
    for name in ("train", "test"):
        rows = []
        for _ in range(60):
            label = rng.choice(["good", "bad"])
            rows.append({"a": "the film is", "b": f"very {label} " + "film " * rng.choice([1, 50]), "label": label})
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    places = {"train": "train", "test": "test", "columns": {"text": "a", "pair": "b"}}
    found = run_plan(plan(model, tmp_path, kind="classification", metric="matthews_correlation", **places))
    assert found.mean() == found.mean("accuracy") == found.mean("macro_f1") == 1.0


def test_pseudo_perplexity_is_what_masking_one_by_one_gives(model: Path, tmp_path: Path) -> None:
    """Equal to the plain computation, text by text and token by token."""
    texts = ["ada lives in paris .", "the film was good"]
    (tmp_path / "test").write_text("\n".join(texts))
    found = run_plan(plan(model, tmp_path, kind="fill-mask", test="test"))
    tokenizer = AutoTokenizer.from_pretrained(model)
    network = AutoModelForMaskedLM.from_pretrained(model, use_safetensors=True)
    losses, hits = [], 0
    for text in texts:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            hidden = ids.clone()
            hidden[0, place] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = network(hidden).logits[0, place]
            losses.append(float(functional.cross_entropy(logits, ids[0, place])))
            hits += int(logits.argmax() == ids[0, place])
    assert found.examples == len(losses) == 9
    assert found.mean() == pytest.approx(math.exp(sum(losses) / 9), rel=1e-5)
    assert found.mean("accuracy") == pytest.approx(hits / 9)
    assert found.std() is None


def test_probes_are_filled_side_by_side(model: Path, tmp_path: Path) -> None:
    """The likeliest words of each group with their shares; equal groups are no distance apart."""
    probes = [
        {"template": "{group} is a [MASK] .", "groups": ["he", "she"], "top": 3},
        {"template": "the {group} is a [MASK]", "groups": ["film", "film"]},
    ]
    (tmp_path / "test").write_text(json.dumps(probes))
    found = run_plan(plan(model, tmp_path, kind="bias", test="test"))
    first, second = found.probes
    assert [len(group) for group in first.fillings] == [3, 3]
    assert first.fillings[0][0].probability >= first.fillings[0][1].probability
    assert 0 < first.distance < 1
    assert second.distance == pytest.approx(0.0, abs=1e-6)
    assert found.mean() == pytest.approx((first.distance + second.distance) / 2)


def test_long_sentences_lose_no_word() -> None:
    """They are cut between words into windows that fit; a word without tokens is in none."""
    sentence = [f"w{number}" for number in range(10)] + [""]
    windows = list(cut([sentence], lambda word: [1] * len(word), 7))
    assert [place for window in windows for place in window.firsts] == list(range(10))
    assert max(len(window.tokens) for window in windows) <= 7
    assert windows[0].firsts == {0: 0, 1: 2, 2: 4}


def test_each_seed_of_a_random_start_has_a_body_of_its_own(model: Path) -> None:
    """One seed draws the same one again; a checkpoint's body is the same for all."""

    def body(seed: int, random_start: bool) -> torch.Tensor:
        found = Pretrained(str(model), random_start).model("AutoModelForTokenClassification", seed)
        return torch.cat([weights.flatten() for weights in found.base_model.parameters()])

    assert torch.equal(body(1, True), body(1, True))
    assert not torch.equal(body(1, True), body(2, True))
    assert torch.equal(body(1, False), body(2, False))


def save_tiny_roberta(folder: Path) -> Path:
    """A RoBERTa with the tiny BERT's tokenizer, 32 positions and the padding's id 1: places begin at 2."""
    save_tiny_bert(folder)
    config = RobertaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        pad_token_id=1,
    )
    RobertaForMaskedLM(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("task", ["fill-mask", "classification"])
def test_a_length_beyond_the_positions_is_one_sentence(tmp_path: Path, task: str) -> None:
    """RoBERTa's places begin after the padding's, so it takes 30 tokens of 32; the default length is cut to that."""
    rows = [json.dumps({"text": f"{label} film " * 40, "label": label}) for label in ("good", "bad")]
    (tmp_path / "test").write_text("\n".join(rows * 4))
    model, asked = save_tiny_roberta(tmp_path / "roberta"), {"kind": task, "test": "test"}
    asked |= {"train": "test"} if task == "classification" else {}
    for length, wanted in ((600, None), (31, None), (30, 30), (128, 30)):
        recipe = {"seeds": [0], "epochs": 1, "max_test": 1, "max_length": length}
        if wanted is None:
            with pytest.raises(ConfigError, match=rf"`max_length` \({length}\) .* at most 30 tokens are possible"):
                run_plan(plan(model, tmp_path, recipe=recipe, **asked))
        else:
            assert run_plan(plan(model, tmp_path, recipe=recipe, **asked)).examples in {1, wanted - 2}


@pytest.mark.parametrize(
    ("family", "said"),
    [
        ("reformer", "trains only on sequences of exactly 32 tokens: it cannot be fine-tuned for this task"),
        ("reformer with plain positions", "chunks of 8 tokens: set `max_length` to 8 or less"),
    ],
)
def test_a_reformer_that_cannot_train_on_the_texts_is_one_sentence(tmp_path: Path, family: str, said: str) -> None:
    """Texts that fit into a chunk tune one with plain positions."""
    rows = [json.dumps({"text": f"{label} film " * 6, "label": label}) for label in ("good", "bad")]
    (tmp_path / "train").write_text("\n".join(rows * 4))
    model = save_family(family, tmp_path / "model")
    asked, recipe = {"kind": "classification", "train": "train", "test": "train"}, {**FAST, "seeds": [0], "epochs": 1}
    with pytest.raises(ConfigError, match=rf"model is a Reformer.* {said}"):
        run_plan(plan(model, tmp_path, **asked, recipe=recipe))
    if "plain" in family:
        found = run_plan(plan(model, tmp_path, **asked, recipe={**recipe, "max_length": 8}))
        assert math.isfinite(found.seeds[0].scores["accuracy"])


def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    """Neither an empty folder nor one that is not what its manifest says is evaluated."""
    (tmp_path / "test").write_text("ada")
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match=r"cannot be loaded by transformers \(tokenizer: .* \.\.\.\): name a"):
        run_plan(plan(tmp_path / "none", tmp_path, kind="fill-mask", test="test"))
    (tmp_path / "none" / "manifest.json").write_text("{}")
    with pytest.raises(StorageError):
        run_plan(plan(tmp_path / "none", tmp_path, kind="fill-mask", test="test"))


def test_a_family_that_cannot_do_the_task_is_one_sentence(tmp_path: Path) -> None:
    """GPT-2 has no head that fills masks."""
    (tmp_path / "test").write_text("ada")
    asked = plan(save_family("gpt2", tmp_path / "model"), tmp_path, kind="fill-mask", test="test")
    with pytest.raises(ConfigError, match="is a model of the family gpt2, which cannot fill masks"):
        run_plan(asked)


@pytest.mark.usefixtures("forked")
def test_it_runs_in_a_process_of_its_own(model: Path, tmp_path: Path) -> None:
    """Which returns the sentence, where there is no result, and ends when told to."""
    (tmp_path / "test").write_text("ada lives in paris .")
    asked = plan(model, tmp_path, kind="fill-mask", test="test")
    with pytest.raises(ConfigError, match="Cannot read the examples"):
        run_apart(plan(model, tmp_path, kind="fill-mask", test="nowhere"))
    assert run_apart(asked, lambda: True) is None
