"""The model card: what the hub reads of it, who is named in it, and what of the operator's stays out."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from huggingface_hub import ModelCard, ModelCardData
from hypothesis import given, strategies as st

from coordinator.context.open_run import OpenRun
from coordinator.evaluation.tasks.results import SeedResult, result_of
from coordinator.ledger.sessions import open_session
from coordinator.members.credits import set_named, unnamed_members
from coordinator.members.erasure import erase
from coordinator.members.names import set_display_name
from coordinator.publishing.card_facts import CardFacts, facts_of_run
from coordinator.publishing.cards import card_files, escaped, task_card, write_card
from peer.config.evaluation import Task
from peer.config.run import RunConfig
from tests.support.ledgers import deliver
from tests.support.model_cards import facts, full_facts
from tests.support.receipts import keeper_confirms, key_of, pseudonym_of
from tests.support.reports import report
from tests.support.served_page import validation_row
from tests.support.small_run import TARGET_BATCH_SIZE
from tests.support.sound_checkpoints import add_sound_checkpoint

NAMES = ("alice", "bob", "carol", "dave")


@pytest.fixture
def run(opened_run: OpenRun) -> OpenRun:
    """A run to which four members have contributed a step."""
    samples = TARGET_BATCH_SIZE // len(NAMES)
    for seq, name in enumerate(NAMES, 1):
        (code,) = opened_run.membership.invite(name)
        pseudonym = pseudonym_of(name, opened_run.directory.config.run.name)
        grant = opened_run.membership.join(key_of(name).public_key, code, receipt_key=pseudonym)
        session = open_session(opened_run.database, grant.device_id, f"a <b>card</b> of {name}", "0", 1.0)
        assert deliver(opened_run.ledger, grant.device_id, session, seq, report(1, samples), 1.0).accepted
    keeper_confirms(
        opened_run.database, opened_run.membership, opened_run.ledger, opened_run.directory.config.run.name, 1
    )
    return opened_run


def front_matter(card: str) -> dict[str, object]:
    """What the hub reads."""
    content: dict[str, object] = yaml.safe_load(card.split("---\n")[1])
    return content


@pytest.mark.parametrize("terms", ["", "apache-2.0"])
def test_the_front_matter_is_what_the_hub_reads(terms: str) -> None:
    """Language, task, data sets and licence stand in it, the licence only if there is one."""
    config = RunConfig.from_mapping(
        {"run": {"language": "bn-IN"}, "data": {"sources": [{"kind": "hub", "path": "oscar/bn", "split": "train"}]}}
    )
    found = front_matter(write_card(facts(config, terms)))
    assert (found["language"], found["pipeline_tag"], found["datasets"]) == ("bn", "fill-mask", ["oscar/bn"])
    assert found.get("license", "") == terms


def test_a_discriminators_card_loads_both_models_and_names_no_pipeline(opened_run: OpenRun) -> None:
    """The hub has no pipeline for it, and its measures are those of the replaced tokens."""
    content = opened_run.directory.config.model_dump()
    model = {**content["model"], "architecture": "electra", "num_hidden_groups": None, "options": {}}
    config = RunConfig.from_mapping({**content, "model": model, "objective": {"name": "rtd"}})
    row = validation_row(5, detection_accuracy=0.9, detection_f1=0.6)
    facts = CardFacts(config, 5, "ab" * 32, "", None, (), {}, [row], [], 0)
    card = write_card(facts)
    front = yaml.safe_load(card.split("---")[1])
    assert "pipeline_tag" not in front
    metrics = front["model-index"][0]["results"][0]["metrics"]
    assert {metric["type"]: metric["value"] for metric in metrics} == {"accuracy": 0.9, "f1": 0.6}
    assert 'AutoModelForPreTraining.from_pretrained("DIR")' in card
    assert 'folder = Path("DIR")' in card
    assert 'load_file(folder / "generator.safetensors")' in card
    assert "fill-mask" not in card


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (
            {"objective": {"mask_probability": 0.3, "whole_words": True}},
            "| objective | `mlm+sop` |\n| mask probability | 0.3 |\n| masked units | whole words |\n"
            "| attention between documents of a sample | yes |\n",
        ),
        (
            {
                "model": {"architecture": "modernbert", "num_hidden_groups": None, "options": {}},
                "objective": {"name": "mlm"},
                "data": {"cross_document_attention": False},
            },
            "| objective | `mlm` |\n| mask probability | 0.15 |\n| masked units | single tokens |\n"
            "| attention between documents of a sample | no |\n",
        ),
        (
            {
                "model": {"architecture": "electra", "num_hidden_groups": None, "options": {}},
                "objective": {"name": "rtd", "discriminator_weight": 25.0, "generator_size": 0.5},
            },
            "| masked units | single tokens |\n| width of the generator | 0.5 of the discriminator's |\n"
            "| weight of the discriminator's loss | 25 |\n",
        ),
        (
            {
                "model": {"architecture": "gpt2", "num_hidden_groups": None, "options": {}},
                "objective": {"name": "clm"},
            },
            "| objective | `clm` |\n| attention between",
        ),
    ],
    ids=["mlm+sop", "mlm", "rtd", "clm"],
)
def test_the_hyperparameters_have_the_settings_of_the_objective(content: dict[str, object], told: str) -> None:
    """Those that apply to it, and no others."""
    assert told in write_card(facts(RunConfig.from_mapping(content)))


def test_phases_that_change_the_mask_probability_say_it() -> None:
    """Each with the one in force; phases that keep the run's do not repeat it."""
    longer = {"from_step": 10, "sequence_length": 128}
    changed = [longer, {"from_step": 20, "mask_probability": 0.05}]
    same = RunConfig.from_mapping({"phases": [longer]})
    card = write_card(facts(RunConfig.from_mapping({"phases": changed})))
    assert re.findall(r"mask probability ([\d.]+)", card.replace("\\", "")) == ["0.15", "0.15", "0.05"]
    assert "mask probability 0" not in write_card(facts(same))


def test_sources_are_named_without_the_operators_own(tmp_path: Path) -> None:
    """Neither folders of the machine nor queries of addresses, which may be logins, leave it."""
    sources = [
        {"kind": "text", "path": "/home/op/private/texts.txt"},
        {"kind": "text", "path": "private/more.txt"},
        {"kind": "text", "path": "https://example.org/t.txt?token=abc"},
        {"kind": "hub", "path": "/home/op/private/set"},
    ]
    card = write_card(facts(RunConfig.from_mapping({"data": {"sources": sources}})))
    assert "`texts.txt`" in card
    assert "https://example.org/t.txt" in card
    assert "private" not in card
    assert "abc" not in card


def test_everybody_is_named_who_did_not_ask_not_to_be(run: OpenRun) -> None:
    """By the name that the public may know; the erased and those who asked are counted only."""
    set_display_name(run.database, "bob", "Night [Owl](http://x)")
    set_named(run.database, "carol", named=False)
    erase(run.database, run.membership, "dave")
    stored = add_sound_checkpoint(run.directory, run.database, 5)
    files = card_files(facts_of_run(run.directory, run.database, stored))
    contributors = files["README.md"].partition("## Contributors")[2]
    assert f"- alice: {TARGET_BATCH_SIZE // len(NAMES):,} samples" in contributors
    assert "Night \\[Owl\\]\\(http" in contributors
    assert "2 more who are not named" in contributors
    assert not any(name in contributors for name in ("bob", "carol", "dave", "erased"))
    assert "<b>" not in files["README.md"]
    assert files["loss.svg"].startswith("<svg")
    set_named(run.database, "carol", named=True)
    assert "carol" not in unnamed_members(run.database)


def test_huggingface_hub_reads_the_card() -> None:
    """Its own class parses the metadata without a complaint, and finds each measure of the model index."""
    found = ModelCard(write_card(full_facts()), ignore_metadata_errors=False).data
    assert (found.language, found.license, found.pipeline_tag) == ("bn", "apache-2.0", "fill-mask")
    assert (found.library_name, found.model_name) == ("transformers", "ours")
    measures = {(each.dataset_type, each.metric_type): each.metric_value for each in found.eval_results or []}
    assert measures["held-out", "perplexity"] == pytest.approx(math.exp(measures["held-out", "loss"]), abs=1e-4)
    assert measures["held-out", "sentence_order_accuracy"] == 0.75
    assert measures["us/names", "f1"] == 0.75
    told = ModelCardData(**found.to_dict(), ignore_metadata_errors=False)
    assert told.to_dict() == found.to_dict()


def test_two_tasks_on_one_dataset_keep_their_scores_apart() -> None:
    """Named entities and parts of speech of the same sentences are the same kind of task to the hub."""
    given = full_facts()
    names = given.evaluations[0]
    result = names.result.model_copy(update={"task": "pos", "kind": "pos", "metric": "accuracy"})
    tasks = [*given.config.evaluation.tasks]
    tasks.append(tasks[0].model_copy(update={"name": "pos", "kind": "pos"}))
    config = given.config.model_copy(update={"evaluation": given.config.evaluation.model_copy(update={"tasks": tasks})})
    two = replace(given, config=config, evaluations=[names, replace(names, result=result)])
    index = yaml.safe_load(write_card(two).split("---")[1])["model-index"][0]["results"]
    measures = [(each["dataset"]["name"], [metric["type"] for metric in each["metrics"]]) for each in index[1:]]
    assert measures == [("ner", ["f1", "accuracy"]), ("pos", ["accuracy", "f1"])]


def test_a_tasks_card_is_read_by_huggingface_hub_too() -> None:
    """With the base model and the task's scores."""
    given = full_facts()
    task = given.config.evaluation.tasks[0]
    text = task_card(given, task, given.evaluations[0].result)
    found = ModelCard(text, ignore_metadata_errors=False).data
    assert (found.base_model, found.license, found.pipeline_tag) == ("us/ours", "apache-2.0", "token-classification")
    assert {each.metric_type: each.metric_value for each in found.eval_results or []} == {"f1": 0.75, "accuracy": 0.9}
    assert "| PER | 0.5000 | 0.2500 | 0.3333 | 8 |" in text


def retrieval_card() -> str:
    """The card of a model that is tuned on pairs of texts, from a base with volunteers, licence and sources."""
    content = {"name": "find", "kind": "retrieval", "train": "pairs.jsonl", "test": "test.tsv"}
    places = {"queries": "queries.jsonl", "corpus": "corpus.jsonl", "recipe": {"max_length": 64, "patience": 3}}
    task = Task.model_validate({**content, **places})
    seed = SeedResult(seed=0, scores={"ndcg_at_10": 0.5}, dev_score=0.5)
    return task_card(full_facts(), task, result_of(task, [seed], 10, 1.0))


def test_a_retrieval_models_card_tells_where_it_comes_from_and_what_it_is_not_for() -> None:
    """As the card of untuned embeddings: language, limits, data, bias, licence, contributors and citation."""
    card = retrieval_card()
    front = front_matter(card)
    assert (front["language"], front["license"], front["library_name"]) == ("bn", "apache-2.0", "sentence-transformers")
    assert "languages other than `bn`" in card
    assert "Texts of more than 64 tokens are truncated to the first 64 tokens." in card
    assert " / ".join(re.findall(r"^## (.*)$", card, re.MULTILINE)) == (
        "Use / Intended use and limits / Training data / Examples / Scores / Recipe / Bias / Compute and energy / "
        "Contributors / Licence / Citation"
    )


def test_a_recipe_names_a_patience_only_where_it_ends_training() -> None:
    """Training on pairs takes all epochs."""
    assert "| epochs | 10 |" in retrieval_card()
    given = full_facts()
    task = given.config.evaluation.tasks[0]
    words = task_card(given, task, given.evaluations[0].result)
    assert "| epochs | 10 at most, with a patience of 3 |" in words
    assert "similarities" not in words


def test_the_held_out_table_has_the_perplexity_of_the_loss_beside_it() -> None:
    """The sentence order's loss is a column of its own, where the objective has one."""
    card = write_card(full_facts())
    assert "| token loss | perplexity | token accuracy | sentence-order loss | sentence-order accuracy |" in card
    assert f"| 2.0000 | {math.exp(2.0):.2f} | 0.1250 | 0.5000 | 0.7500 |" in card
    assert "chance gives a sentence-order accuracy of 0.5" in card
    assert "have a loss of **2.5000** (the sum of the masked-token loss and the sentence-order loss)" in card
    alone = replace(full_facts(), validations=[validation_row(5, 2.0, sop_loss=None, sop_accuracy=None)])
    assert "sentence-order accuracy" not in write_card(alone)


def test_a_visitor_finds_what_the_model_is_for() -> None:
    """Size, length, intended use, limits, bias, licences of the data, energy and the line that loads the model."""
    card = write_card(full_facts())
    assert "with 1,234,567 parameters for the language `bn`" in card
    assert 'model = AutoModelForMaskedLM.from_pretrained("us/ours")' in card
    assert 'folder = Path(snapshot_download("us/ours"))' in card
    assert "The model takes at most 512 tokens, and was trained on sequences of up to 128" in card
    assert "- text: `blogs.txt`, weight 1; licence: CC\\-BY\\-4\\.0" in card
    assert "licence: PSF-2.0" in card
    assert "No bias probes were run" in card
    assert "trained for 10.0 hours in total" in card
    assert "at 30 to 300 W for each device, it was 0.3 to 3.0 kWh" in card
    assert "was 0.00023 to 0.0023 kWh" in write_card(replace(full_facts(), device_hours=0.0076))
    assert "lists the pooler and the sentence-order head as `UNEXPECTED`" in card
    assert "| PER | 0.5000 | 0.2500 | 0.3333 | 8 |" in card
    assert "`DIR` stands for the folder of this file." in write_card(replace(full_facts(), repository=""))


@given(st.text(max_size=80))
def test_nobodys_words_are_markup(text: str) -> None:
    """Every mark that Markdown knows is escaped, and there is one line."""
    shown = escaped(text)
    assert "\n" not in shown
    for mark in "<[`*_#|":
        assert shown.count(mark) == shown.count(f"\\{mark}")
