"""Retrieval: files in BEIR's layout, trec_eval's scores, contrastive tuning, a model for sentence-transformers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from sentence_transformers import SentenceTransformer

from auth.errors import ConfigError
from coordinator.evaluation.tasks.data import DataFolders
from coordinator.evaluation.tasks.examples import TextPair, read_documents, read_judgements
from coordinator.evaluation.tasks.metrics import retrieval_scores
from coordinator.evaluation.tasks.plan import Plan
from coordinator.evaluation.tasks.pretrained import Pretrained
from coordinator.evaluation.tasks.retrieval import embedder, save_checked, set_of_pairs
from coordinator.evaluation.tasks.worker import run_plan
from peer.config.architectures import ARCHITECTURES
from peer.config.evaluation import Task
from tests.support.tiny_families import LENGTH, save_family

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # sentence-transformers' own
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
PLACES = {"queries": "queries.jsonl", "corpus": "corpus.jsonl", "test": "test.tsv"}


BEHIND_TEN, BEHIND_HUNDRED = [f"x{n}" for n in range(10)], [f"x{n}" for n in range(100)]
TWELVE = {f"d{n}": 1 for n in range(12)}


@pytest.mark.parametrize(
    ("grades", "ranked", "ndcg", "mrr", "recall"),
    [
        ({"a": 2, "b": 1}, ["a", "b"], 1.0, 1.0, 1.0),
        ({"a": 3, "b": 1, "c": 0}, ["c", "b", "a"], (1 / math.log2(3) + 3 / 2) / (3 + 1 / math.log2(3)), 1 / 2, 1.0),
        ({"a": 1, "b": 1}, [*BEHIND_TEN[:9], "a"], 1 / math.log2(11) / (1 + 1 / math.log2(3)), 1 / 10, 1 / 2),
        ({"a": 1}, [*BEHIND_TEN, "a"], 0.0, 0.0, 1.0),
        ({"a": 1}, [*BEHIND_HUNDRED, "a"], 0.0, 0.0, 0.0),
        (TWELVE, list(TWELVE), 1.0, 1.0, 1.0),
    ],
    ids=["ideal", "graded", "the tenth", "behind the tenth", "behind the hundredth", "more than ten"],
)
def test_rankings_are_scored_by_the_definitions(
    grades: dict[str, int], ranked: list[str], ndcg: float, mrr: float, recall: float
) -> None:
    """Grades are gains; a query of which nothing is found halves the means."""
    scores = {"ndcg_at_10": ndcg, "mrr_at_10": mrr, "recall_at_100": recall}
    assert retrieval_scores({"q": grades}, {"q": ranked}) == pytest.approx(scores)
    found = retrieval_scores({"q": grades, "none": {"elsewhere": 2}}, {"q": ranked, "none": ["x"]})
    assert found == pytest.approx({name: score / 2 for name, score in scores.items()})


def test_files_in_beirs_layout_are_read() -> None:
    """Titles precede texts; queries without a relevant document are left out; `limit` takes the first ones."""
    corpus = read_documents('{"_id": "d1", "title": "Berlin", "text": "a city"}\n{"_id": 2, "text": "x"}', "corpus")
    assert corpus == {"d1": "Berlin a city", "2": "x"}
    table = "query-id\tcorpus-id\tscore\nq1\td1\t0\nq2\t2\t2\nq3\td1\t1\n"
    found = read_judgements(table, "test", {"q1": "a", "q2": "b", "q3": "c"}, corpus, 1)
    assert found.judged == {"q2": {"2": 2}}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("q9\td1\t1", "test, line 2 names the query 'q9'"),
        ("q1\td9\t1", "test, line 2 names the document 'd9'"),
        ("q1\td1\tgood", "test, line 2 has a `score` that is no whole number"),
        ("q1\td1\t0", "names no relevant document"),
    ],
)
def test_a_judgement_that_cannot_be_used_is_one_sentence(row: str, said: str) -> None:
    """It has the line and the id."""
    with pytest.raises(ConfigError) as caught:
        read_judgements(f"query-id\tcorpus-id\tscore\n{row}\n", "test", {"q1": "a"}, {"d1": "b"}, None)
    assert said in str(caught.value)
    with pytest.raises(ConfigError, match=r"no `score` \(its columns: query-id, corpus-id\): each row needs it"):
        read_judgements("query-id\tcorpus-id\nq1\td1\n", "test", {"q1": "a"}, {"d1": "b"}, None)
    with pytest.raises(ConfigError, match="repeats the `_id` 'd1'"):
        read_documents('{"_id": "d1", "text": "a"}\n{"_id": "d1", "text": "b"}', "corpus")


def write_retrieval(folder: Path) -> None:
    """A query names a person by one word, and its document by another one: only tuning can find it."""
    pairs = {"ada": "doctor", "grace": "nurse", "berlin": "film", "paris": "near"}
    queries = [{"_id": name, "text": f"where is {name} ?"} for name in pairs]
    corpus = [{"_id": name, "title": "", "text": f"the {text} was very good"} for name, text in pairs.items()]
    (folder / "queries.jsonl").write_text("\n".join(map(json.dumps, queries)))
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, reversed(corpus))))
    (folder / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(f"{n}\t{n}\t1\n" for n in pairs))
    rows = [{"query": f"who is {name}", "positive": f"a {text}"} for name, text in pairs.items()]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows * 5)))


def retrieval_plan(model: Path, folder: Path, save_to: str = "", **task: Any) -> Plan:
    """This task on the model."""
    recipe = {"seeds": [0], "epochs": 8, "batch_size": 4, "learning_rate": 0.01, "max_length": 16}
    content = {"name": "find", "kind": "retrieval", "recipe": recipe, **PLACES, **task}
    return Plan(str(model), Task.model_validate(content), DataFolders(folder, folder), save_to=save_to)


@pytest.mark.usefixtures("shared_with_the_group")
def test_tuning_on_pairs_finds_what_the_checkpoint_does_not(model: Path, tmp_path: Path) -> None:
    """The checkpoint alone is scored without seeds; the tuned model is one that sentence-transformers loads."""
    write_retrieval(tmp_path)
    bare = run_plan(retrieval_plan(model, tmp_path, dev="test.tsv"))
    assert [seed.seed for seed in bare.seeds] == [None]
    assert bare.examples == 4
    assert bare.dev_mean() == bare.mean() < 1.0
    tuned = run_plan(retrieval_plan(model, tmp_path, str(tmp_path / "kept"), train="train.jsonl"))
    assert tuned.mean() == tuned.mean("mrr_at_10") == 1.0
    assert tuned.seeds[0].dev_score is not None
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "kept").rglob("*.*")} == {0o640}
    kept = SentenceTransformer(str(tmp_path / "kept"), device="cpu", local_files_only=True)
    assert kept.max_seq_length == 16
    asked = kept.encode(["where is ada ?"])
    documents = kept.encode(["the nurse was very good", "the doctor was very good"])
    assert kept.similarity(asked, documents).argmax() == 1


FAMILIES = [name for name in ARCHITECTURES if name not in ("albert", "gpt2")]  # the run of `export` has an ALBERT


@pytest.mark.parametrize("family", FAMILIES)
def test_each_family_that_masks_has_embeddings(family: str, tmp_path: Path) -> None:
    """A checkpoint is saved and loaded with the same embedding, and a random start has one of that size."""
    folder = save_family(family, tmp_path / "checkpoint")
    width = save_checked(Pretrained(str(folder)), tmp_path / "saved", "ada lives in berlin .", LENGTH)
    fresh = embedder(Pretrained(str(folder), random_start=True), LENGTH, 0)
    assert fresh.encode(["ada lives in berlin .", "grace"]).shape == (2, width)


def test_tuning_prints_nothing(model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Only the command's result may stand on stdout, where scripts read it as JSON."""
    write_retrieval(tmp_path)
    run_plan(retrieval_plan(model, tmp_path, train="train.jsonl"))
    assert capfd.readouterr().out == ""


def test_a_reformer_that_cannot_train_on_the_texts_is_one_sentence(tmp_path: Path) -> None:
    """Its axial positions fit sequences of one length."""
    model = save_family("reformer", tmp_path / "model")
    write_retrieval(tmp_path)
    with pytest.raises(ConfigError, match=r"model is a Reformer with axial positions, .* exactly 32 tokens"):
        run_plan(retrieval_plan(model, tmp_path, train="train.jsonl"))


def test_held_out_pairs_are_a_retrieval_set() -> None:
    """Equal second texts are one document."""
    found = set_of_pairs([TextPair("a", "x"), TextPair("b", "y"), TextPair("c", "x")])
    assert found.corpus == {"0": "x", "1": "y"}
    assert found.judged == {"0": {"0": 1}, "1": {"1": 1}, "2": {"0": 1}}
