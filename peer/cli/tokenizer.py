"""`manyhands tokenizer train | inspect`: train a tokenizer before creating a run, or inspect one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from tokenizers import Tokenizer

from auth.errors import ConfigError
from auth.files import new_directory
from peer.config.run import RunConfig
from peer.data.prepare import training_sample
from peer.data.selection.hashing import uniform
from peer.data.sources.documents import sample_documents
from peer.data.tokenization.inspection import Fit, describe, measure_fit, trace
from peer.data.tokenization.special_tokens import special_ids, special_names
from peer.data.tokenization.tokenizers import (
    check_tokenizer,
    load_tokenizer,
    read_tokenizer,
    read_tokenizer_config,
    save_tokenizer,
)
from peer.data.tokenization.training import train_tokenizer
from peer.runtime.console import say, say_facts, say_json, say_table

KEPT_SHARE = 0.02  # fraction of documents held out to measure the tokenizer
MAX_KEPT = 1_000  # maximum number of held-out documents, which are kept in memory
app = typer.Typer(name="tokenizer", no_args_is_help=True, help="Train or inspect a tokenizer.")
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


@app.command(epilog="Example: manyhands tokenizer train run.yaml my-tokenizer")
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="A run file with run, tokenizer and data sections.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder to create; it must be empty or not exist.")],
    as_json: Json = False,
) -> None:
    """Train a tokenizer on a run's documents, and measure it on documents held out from training."""
    run = RunConfig.from_yaml(config)
    if run.tokenizer.path is not None:
        raise ConfigError(f"{config}: `tokenizer.path` names a tokenizer to import: remove it to train one.")
    with new_directory(out) as folder, Console(stderr=True).status("Training the tokenizer"):
        documents = KeepSome(training_sample(run))
        tokenizer = train_tokenizer(run, documents)
        check_tokenizer(run, tokenizer, special_ids(tokenizer))
        save_tokenizer(tokenizer, run, folder)
    facts = {
        "tokenizer": str(out),
        "preset": run.tokenizer.preset,
        "algorithm": run.tokenizer.chosen_algorithm,
        "vocabulary": tokenizer.get_vocab_size(),
        "documents": documents.passed,
    }
    fit = _measure(out, documents.kept, run.run.language)
    if as_json:
        say_json({**facts, "fit": _fit_content(fit)})
    else:
        say_facts({**facts, **_fit_facts(fit)})


@app.command(epilog='Example: manyhands tokenizer inspect my-tokenizer "A text to cut into tokens."')
def inspect(
    tokenizer: Annotated[Path, typer.Argument(metavar="TOKENIZER", help="A tokenizer's folder or file.")],
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Text to tokenize.")] = None,
    corpus: Annotated[
        Path | None,
        typer.Option(
            help="Run file with documents to measure: unknown tokens, characters per "
            "token, tokens per word, and the share of split words."
        ),
    ] = None,
    text_file: Annotated[
        Path | None, typer.Option(help="Text file to measure the tokenizer on; an empty line ends a document.")
    ] = None,
    documents: Annotated[int, typer.Option(min=1, help="Maximum number of documents to measure on.")] = 1_000,
    as_json: Json = False,
) -> None:
    """Show the tokens of a text; or a tokenizer's parts, its strangest tokens, and its fit to a corpus."""
    if sum(choice is not None for choice in (text, corpus, text_file)) > 1:
        raise ConfigError("TEXT, --corpus and --text-file exclude each other: give one of them.")
    if text is not None:
        _show_tokens(read_tokenizer(tokenizer), text, as_json)
        return
    content = describe(read_tokenizer(tokenizer), read_tokenizer_config(tokenizer))
    run = _run_to_measure_by(corpus, text_file)
    fit = None if run is None else _measure(tokenizer, sample_documents(run, documents), run.run.language)
    if as_json:
        say_json({**content, "fit": None if fit is None else _fit_content(fit)})
        return
    _show_parts(content)
    if fit is not None:
        say()
        say_facts(_fit_facts(fit))


class KeepSome:
    """An iterable of training documents; a hash of the text selects documents to hold out."""

    def __init__(self, documents: Iterable[str], max_kept: int = MAX_KEPT) -> None:
        self._documents, self._max_kept = documents, max_kept
        self.kept: list[str] = []
        self.passed = 0

    def __iter__(self) -> Iterator[str]:
        for document in self._documents:
            if len(self.kept) < self._max_kept and uniform(document, "tokenizer") < KEPT_SHARE:
                self.kept.append(document)
            else:
                self.passed += 1
                yield document


def _run_to_measure_by(corpus: Path | None, text_file: Path | None) -> RunConfig | None:
    if text_file is not None:
        return RunConfig.from_mapping({"data": {"sources": [{"kind": "text", "path": str(text_file)}]}})
    return None if corpus is None else RunConfig.from_yaml(corpus)


def _measure(path: Path, documents: Iterable[str], language: str) -> Fit:
    """Load a tokenizer in the same way as for training, and measure its fit to documents."""
    tokenizer = load_tokenizer(path)
    names = special_names(tokenizer, read_tokenizer_config(path))
    unknown = tokenizer.token_to_id(names["unk"]) if "unk" in names else None
    return measure_fit(tokenizer, documents, language, unknown)


def _fit_content(fit: Fit) -> dict[str, Any]:
    return {**vars(fit), **fit.summary()}


def _fit_facts(fit: Fit) -> dict[str, object]:
    """Format a fit's figures for printing; a figure is None if there was no text to measure."""
    summary = fit.summary()
    shares = {name: summary[name] for name in ("unknown_rate", "split_words", "words_cut_at_marks")}
    percent = {name: None if share is None else f"{share:.3%}" for name, share in shares.items()}
    return {
        "measured on": f"{fit.documents:,} documents, {fit.characters:,} characters",
        "unknown tokens": percent["unknown_rate"],
        "characters per token": summary["characters_per_token"],
        "tokens per word": summary["tokens_per_word"],
        "words split": percent["split_words"],
        "words cut at marks": percent["words_cut_at_marks"],
    }


def _show_tokens(tokenizer: Tokenizer, text: str, as_json: bool) -> None:
    tokens = trace(tokenizer, text.encode("utf-8", "replace").decode())  # TEXT may contain invalid UTF-8
    if as_json:
        say_json({"tokens": [vars(token) for token in tokens]})
        return
    rows = [(token.token, str(token.id), token.start, token.end, repr(token.text)) for token in tokens]
    say_table(("token", "id", "from", "to", "text"), rows)


def _show_parts(content: Mapping[str, Any]) -> None:
    steps = {kind: ", ".join(map(_format_step, content[kind])) or None for kind in ("normalizers", "pre_tokenizers")}
    say_facts({"vocabulary": content["vocabulary"], "model": content["model"], **steps})
    say()
    special = sorted((token["id"], role, token["token"]) for role, token in content["special_tokens"].items())
    say_table(("id", "special token", "role"), [(str(number), token, role) for number, role, token in special])
    say()
    kinds = content["tokens"].items()
    rows = [(kind, found["count"], "  ".join(map(repr, found["examples"]))) for kind, found in kinds]
    say_table(("tokens", "how many", "such as"), rows)


def _format_step(step: Mapping[str, Any]) -> str:
    """Format a step of the tokenizer, such as `Digits(individual_digits=True)`."""
    parameters = {name: value for name, value in step.items() if name != "type"}
    for name, value in parameters.items():
        if isinstance(value, dict):
            parameters[name] = next(iter(value.values()))
    listed = ", ".join(f"{name}={value!r}" for name, value in parameters.items())
    return f"{step['type']}({listed})" if listed else str(step["type"])
