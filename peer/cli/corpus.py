"""`manyhands corpus sample`: sample a large corpus by perplexity before creating a run.

The figures (PNG and an HTML page) show the distribution of perplexities before and after sampling,
like figures 2 to 6 of the BERTIN paper. matplotlib is imported only to draw the figures.
"""

from __future__ import annotations

import html
import io
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import numpy as np
import typer
import yaml
from rich.console import Console

from auth.errors import ConfigError
from auth.files import new_directory
from peer.config.data import Duplicates, Method, Sampling, ScorerConfig
from peer.config.run import RunConfig
from peer.data.corpus.sampling import (
    NAMES,
    Packing,
    Survey,
    Target,
    open_writer,
    plan,
    read_blocks,
    sources_of,
    survey,
    train_scorer,
    write_kept,
)
from peer.data.prepare import ORDER_DOCUMENTS, single_sentences
from peer.data.selection.kenlm import train_kenlm
from peer.data.selection.perplexity import PerplexityTally
from peer.data.selection.scoring import open_scorer
from peer.runtime.console import say, say_facts, say_json, say_table
from peer.runtime.software import how_to_add

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PARTS = ("up to Q1", "Q1 to Q2", "Q2 to Q3", "above Q3")
COLUMNS = ("quartile", "documents", "kept", "kept of it", "share of the kept")
app = typer.Typer(name="corpus", no_args_is_help=True, help="Prepare a corpus by sampling it.")
app.callback()(lambda: None)  # otherwise, typer would drop the name of a single command (`sample`)
GREY, BLUE, RED, INK = "#9aa3ad", "#2563a8", "#c0392b", "#222222"
SMOOTHING = np.array([1, 2, 3, 2, 1]) / 9  # kernel that smooths the curves of small corpora
STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
svg{width:100%;height:auto}table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .9rem;text-align:right;
border-bottom:1px solid #ddd}td:first-child,th:first-child{text-align:left;padding-left:0}
pre{background:#f4f5f7;padding:1rem;overflow:auto;border-radius:6px}
"""


@app.command(epilog="Example: manyhands corpus sample web.jsonl.gz --out sampled --target 10% --method gaussian")
def sample(
    sources: Annotated[list[str], typer.Argument(metavar="SOURCES...", help="A run file, or files with documents.")],
    out: Annotated[Path, typer.Option(help="The folder to create; it must be empty or not exist.")],
    target: Annotated[
        str,
        typer.Option(
            help="Expected number of documents to keep, such as 250000 or 250,000, or their share, such as 10% or 0.1."
        ),
    ],
    method: Annotated[
        str, typer.Option(help="random, stepwise (weights for quartiles) or gaussian (a bell curve around the median).")
    ] = "gaussian",
    factors: Annotated[
        str | None,
        typer.Option(
            help="For stepwise: weights of the quartiles, such as 0.2,1,0.5,0.01; "
            "default: BERTIN's, the inverse of each quartile's width."
        ),
    ] = None,
    width: Annotated[
        float | None,
        typer.Option(
            help="For gaussian: BERTIN's width (4.5 there); default: the quartiles get half of the maximum weight."
        ),
    ] = None,
    kenlm: Annotated[str | None, typer.Option(help="Score with this KenLM model (a path or an address).")] = None,
    normalize: Annotated[
        bool,
        typer.Option(help="Normalize text first, for a --kenlm model of normalized words, such as --clean trains."),
    ] = False,
    clean: Annotated[
        str | None,
        typer.Option(help="Score with a KenLM model that KenLM's lmplz trains on this file of clean documents."),
    ] = None,
    order: Annotated[int, typer.Option(min=2, max=6, help="Order (n) of the n-grams of the --clean model.")] = 5,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            help="Score with the pieces of this Unigram tokenizer; default: the run file's "
            "tokenizer, else one trained on a sample of the corpus."
        ),
    ] = None,
    duplicates: Annotated[
        str, typer.Option(help="Drop duplicates first: none, exact, or near (which share most runs of five words).")
    ] = "none",
    sample_documents: Annotated[
        int, typer.Option(min=4, help="Number of documents, evenly drawn, to estimate scorer, quartiles and scale.")
    ] = 50_000,
    text_field: Annotated[str, typer.Option(help="Field of the JSON Lines that holds the text.")] = "text",
    packing: Annotated[
        str, typer.Option(help="Compression of the output: none, gz or zst (smaller and faster).")
    ] = "gz",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the sample used for estimates.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Select the documents of a corpus that a language model finds neither too easy nor too unusual."""
    chosen = cast(Method, _one_of("--method", method, get_args(Method)))
    unwanted = cast(Duplicates, _one_of("--duplicates", duplicates, get_args(Duplicates)))
    packed = cast(Packing, _one_of("--packing", packing, get_args(Packing)))
    wanted, weights = Target.parse(target), _parse_factors(factors, width, chosen)
    if sum(choice is not None for choice in (kenlm, clean, tokenizer)) > 1:
        raise ConfigError("--kenlm, --clean and --tokenizer exclude each other: give one of them.")
    config = sources_of(sources, text_field)
    with new_directory(out) as folder, Console(stderr=True).status("Reading the corpus") as status:
        found = survey(read_blocks(config), unwanted, sample_documents, np.random.default_rng(seed))
        status.update("Preparing the scorer")
        described = _prepare_scorer(config, found, folder, (kenlm, clean, tokenizer), normalize, order, text_field)
        scorer = open_scorer(described, None)
        described = _as_named_later(described, folder, out)
        sampling, tally = plan(found, scorer, described, chosen, wanted, weights, width)
        status.update("Scoring every document")
        with open_writer(folder, packed) as write:
            write_kept(read_blocks(config), found, scorer, sampling, tally, write)
        fragment = _fragment(sampling, unwanted)
        (folder / "sampling.yaml").write_text(fragment, encoding="utf-8")
        status.update("Drawing")
        _draw(folder, chosen, tally, fragment)
    single = single_sentences(config, found.sample[:ORDER_DOCUMENTS])
    facts = {
        "documents": str(out / NAMES[packed]),
        "read": found.read,
        "duplicates dropped": found.read - found.documents,
        "kept": tally.kept,
        "expected": round(float(tally.parts["expected"].sum())),
    }
    if as_json:
        share = None if single is None else single.share
        content = {"quartiles": _quartile_content(tally), "sampling": _plain(sampling), "single_sentences": share}
        say_json({**facts, **content})
        return
    say_facts({**facts, "pictures": f"{out / 'distributions.png'}, {out / 'report.html'}"})
    say()
    say_table(COLUMNS, _rows(tally))
    say()
    if single is not None:
        say(str(single))
        say()
    say("To sample while a run streams these sources, write under each of its `data.sources`:")
    say(fragment.rstrip())


def _one_of(option: str, value: str, allowed: tuple[str, ...]) -> str:
    if value not in allowed:
        raise ConfigError(f"{option} ({value}) must be one of {', '.join(allowed)}.")
    return value


def _parse_factors(factors: str | None, width: float | None, method: Method) -> list[float] | None:
    if (factors is not None and method != "stepwise") or (width is not None and method != "gaussian"):
        raise ConfigError(
            f"--factors is for stepwise and --width for gaussian sampling, not for {method}: leave it out."
        )
    if width is not None and not 0 < width < float("inf"):
        raise ConfigError(f"--width ({width}) must be a number above 0.")
    if factors is None:
        return None
    try:
        weights = [float(factor) for factor in factors.split(",")]
    except ValueError:
        weights = []
    if len(weights) != 4 or not all(0 <= weight <= 1e9 for weight in weights) or not any(weights):
        raise ConfigError(f"--factors ({factors}) must be four numbers from 0 on, such as 0.2,1,0.5,0.01.")
    return weights


def _prepare_scorer(
    config: RunConfig,
    found: Survey,
    folder: Path,
    models: tuple[str | None, str | None, str | None],
    normalize: bool,
    order: int,
    text_field: str,
) -> ScorerConfig:
    """Return the scorer selected by the options; train one in `folder` if no model is given."""
    kenlm, clean, tokenizer = models
    if kenlm is not None:
        return _scorer(kind="kenlm", model=kenlm, text="words" if normalize else "raw")
    if clean is not None:
        path = folder / "model.arpa"
        train_kenlm(chain.from_iterable(read_blocks(sources_of([clean], text_field))), path, order)
        return _scorer(kind="kenlm", model=str(path), text="words")
    given = tokenizer or config.tokenizer.path
    if given is not None:
        return _scorer(model=given)
    train_scorer(found.sample, config, folder / "scorer.json")
    return _scorer(model=str(folder / "scorer.json"))


def _scorer(**content: str) -> ScorerConfig:
    try:
        return ScorerConfig.model_validate(content)
    except ValueError as error:
        raise ConfigError(f"The model cannot be used: `{content['model']}` is no path or address of a file.") from error


def _as_named_later(described: ScorerConfig, folder: Path, out: Path) -> ScorerConfig:
    """Return the scorer with its model's path as it will be once `folder` is renamed to `out`."""
    path = Path(described.model or "")
    return described.model_copy(update={"model": str(out.absolute() / path.name)} if path.parent == folder else {})


def _fragment(sampling: Sampling, duplicates: Duplicates) -> str:
    """Return the YAML that applies the same sampling to a source in a run file."""
    extra = {} if duplicates == "none" else {"duplicates": duplicates}
    return yaml.safe_dump({**extra, "sampling": _plain(sampling)}, sort_keys=False, allow_unicode=True)


def _plain(sampling: Sampling) -> dict[str, Any]:
    return sampling.model_dump(mode="json", exclude_none=True)


def _draw(folder: Path, method: Method, tally: PerplexityTally, fragment: str) -> None:
    title = f"{method.capitalize()} sampling: {tally.kept:,} of {tally.documents:,} documents"
    table = [COLUMNS, *[[str(value) for value in row] for row in _rows(tally)]]
    _write_page(folder / "report.html", title, _write_pictures(tally, title, folder), table, fragment)


def _quartile_content(tally: PerplexityTally) -> list[dict[str, Any]]:
    counts = zip(tally.parts["before"].tolist(), tally.parts["kept"].tolist(), strict=True)
    bounds = (*tally.quartiles, None)
    return [
        {"below": bound, "documents": int(documents), "kept": int(kept)}
        for bound, (documents, kept) in zip(bounds, counts, strict=True)
    ]


def _rows(tally: PerplexityTally) -> list[tuple[str, int, int, str, str]]:
    return [
        (
            name,
            part["documents"],
            part["kept"],
            _percent(part["kept"], part["documents"]),
            _percent(part["kept"], tally.kept),
        )
        for name, part in zip(PARTS, _quartile_content(tally), strict=True)
    ]


def _percent(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else "-"


def _write_pictures(tally: PerplexityTally, title: str, folder: Path) -> str:
    """Write `distributions.png`; return its SVG. Raises `ConfigError` without matplotlib."""
    figure = _figure_of(tally, title)
    figure.savefig(folder / "distributions.png", dpi=130)
    vector = io.StringIO()
    figure.savefig(vector, format="svg")
    return vector.getvalue()[vector.getvalue().index("<svg") :]


def _write_page(path: Path, title: str, picture: str, table: Sequence[Sequence[str]], fragment: str) -> None:
    """Write an HTML page with the figure, the table (headings first) and the YAML."""
    rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in table[1:]]
    head = "".join(f"<th>{html.escape(cell)}</th>" for cell in table[0])
    path.write_text(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style><h1>{html.escape(title)}</h1>'
        f"{picture}<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"
        "<p>To draw the same documents while a run streams the corpus, write this in its run file:</p>"
        f"<pre>{html.escape(fragment)}</pre></html>\n",
        encoding="utf-8",
    )


def _figure_of(tally: PerplexityTally, title: str) -> Figure:
    try:
        from matplotlib.backends.backend_svg import FigureCanvasSVG
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError(
            f"Drawing needs the package matplotlib, which is not installed: {how_to_add('corpus')}."
        ) from error
    figure = Figure(figsize=(10, 7), layout="constrained")
    FigureCanvasSVG(figure)
    figure.suptitle(title, fontsize=13)
    densities, shares = figure.subplots(2, 1, height_ratios=(3, 1))
    _draw_densities(densities, tally)
    _draw_shares(shares, tally)
    return figure


def _draw_densities(axes: Axes, tally: PerplexityTally) -> None:
    middles = (tally.edges[1:] + tally.edges[:-1]) / 2
    before, expected, kept = (_smooth(tally.density(name)) for name in ("before", "expected", "kept"))
    axes.fill_between(middles, before, color=GREY, alpha=0.45, linewidth=0, label=f"all {tally.documents:,} documents")
    axes.fill_between(middles, kept, color=BLUE, alpha=0.35, linewidth=0, label=f"the {tally.kept:,} that are kept")
    axes.plot(middles, kept, color=BLUE, linewidth=1.6)
    axes.plot(middles, expected, color=INK, linewidth=1, linestyle=":", label="as expected")
    top = max(before.max(), kept.max(), expected.max()) * 1.12
    for number, bound in enumerate(tally.quartiles, 1):
        axes.axvline(bound, color=RED, linewidth=1)
        axes.annotate(f" Q{number} {bound:,.4g}", (bound, top * (1.005 - 0.05 * number)), color=RED, fontsize=9)
    axes.set(xlim=(tally.edges[0], tally.edges[-1]), ylim=(0, top), xlabel="perplexity", ylabel="density", yticks=[])
    axes.legend(frameon=False, loc="upper right")
    axes.spines[["top", "right", "left"]].set_visible(False)


def _draw_shares(axes: Axes, tally: PerplexityTally) -> None:
    for offset, name, colour in ((-0.2, "before", GREY), (0.2, "kept", BLUE)):
        share = tally.parts[name] / max(tally.parts[name].sum(), 1)
        bars = axes.bar(np.arange(4) + offset, share, 0.38, color=colour, alpha=0.8)
        axes.bar_label(bars, [f"{value:.1%}" for value in share], fontsize=9, padding=2)
    axes.set(xticks=range(4), xticklabels=PARTS, yticks=[], ylabel="share of documents")
    axes.margins(y=0.2)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _smooth(values: np.ndarray[tuple[int], np.dtype[np.float64]]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    reach = len(SMOOTHING) // 2
    return np.convolve(np.pad(values, reach, mode="edge"), SMOOTHING, mode="valid")
