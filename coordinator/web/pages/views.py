"""The public pages, one per view, rendered in the reader's language with current numbers.

A view consists of an entry in `VIEWS`, a template, an ES module and a style of the same name, and
its texts in each language (CONTRIBUTING.md explains how to add a view). Templates escape all text
that users could have written. Other routes serve Plotly, the loss curve as SVG, health and metrics.
"""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache, partial
from importlib.resources import files
from itertools import groupby
from typing import Annotated, Any

from fastapi import APIRouter, Cookie, HTTPException, Query, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from prometheus_client import CONTENT_TYPE_LATEST
from sqlalchemy.exc import SQLAlchemyError

from coordinator.evaluation.evaluations import curves
from coordinator.ledger.keeper_status import KEEPER_SILENT_S, read_swarm_status
from coordinator.statistics.curve import Texts, draw_curve, told
from coordinator.statistics.milestones import milestones
from coordinator.statistics.people import HardwareClass
from coordinator.web.api import people
from coordinator.web.api.history import milestones_of
from coordinator.web.api.join import joining_of
from coordinator.web.api.run import SHOWN_CONTRIBUTIONS
from coordinator.web.api.trials import trial_of
from coordinator.web.http.answers import FOR_EVER, REVALIDATE, Encoded, answer, encode
from coordinator.web.http.headers import ARCHIVE_POLICY
from coordinator.web.pages.translations import Translation, choose_language, texts_of
from coordinator.web.state.frozen import Archive
from coordinator.web.state.overview import ValidationFacts, overview_of
from coordinator.web.state.snapshot import Snapshot
from coordinator.web.state.web_state import Web, WebState
from dashboards import WEB, catalogs, content_type, english, page_files, page_version
from peer.config.phases import all_phases
from peer.config.run import RunConfig

LANGUAGE_COOKIE = "manyhands-language"
SHOWN_PARTICIPANTS = 25  # number of rows shown until the script has loaded all participants
FEW_SAMPLES = 100  # number of held-out samples below which checkpoint_choice.js adds a caveat
A_YEAR_S = 365 * 86_400
VARY = "Accept-Language, Cookie"
router = APIRouter(include_in_schema=False)
templates = Environment(loader=FileSystemLoader(WEB), autoescape=True, undefined=StrictUndefined, trim_blocks=True)
# The pages' scripts reformat numbers and dates for the reader's language.
templates.filters["number"] = lambda value: f"{value:,}"
templates.filters["date"] = lambda at: datetime.fromtimestamp(at, timezone.utc).date().isoformat()
Language = Annotated[str | None, Query(max_length=16)]
Chosen = Annotated[str | None, Cookie(alias=LANGUAGE_COOKIE)]  # language cookie; unknown languages are ignored
HTML = "text/html; charset=utf-8"
ONE_DAY = "public, max-age=86400"
_COMPRESSING = threading.Lock()
# Example sentences for the model, by the run's language.
EXAMPLES = {
    "blanks": {
        "bn": "আমার সোনার বাংলা, আমি তোমায় ___ ।",
        "en": "Many hands make light ___.",
        "es": "Más vale ___ que nunca.",
        "id": "Bersatu kita ___, bercerai kita runtuh.",
    },
    "continuation": {"bn": "এক দেশে এক", "en": "Once upon a", "es": "Había una", "id": "Pada suatu"},
}


def overview_values(web: WebState, texts: Translation) -> dict[str, Any]:
    """Return the template variables of `overview.html`.

    `overview` is a live event's content, `given` lists members who have contributed or are online,
    `share_done` is the completed fraction of the run, and `joining` is the API's response.
    """
    snapshot = web.snapshot
    drawing = curve_of(snapshot, web.config, texts)
    overview = overview_of(snapshot, web.config, web.join_link, SHOWN_CONTRIBUTIONS)
    return {
        "overview": overview,
        "given": [row for row in overview.contributions if row.samples or row.averaged_bytes or row.online],
        "share_done": f"{min(1.0, overview.whole.step / overview.whole.total_steps):.1%}",
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes text
        "joining": joining_of(web, snapshot),
    }


def curve_of(snapshot: Snapshot, config: RunConfig, texts: Texts = english, alone: bool = False) -> str:
    """Draw the loss over global steps as SVG; if `alone`, as a standalone file with its style."""
    points = [(float(row.step), row.loss) for row in snapshot.steps if row.loss is not None]
    by_set = groupby(snapshot.validations, lambda row: row.set_sha256)  # one curve per validation set
    held_out = [[(float(row.step), row.loss) for row in rows if row.loss is not None] for _, rows in by_set]
    title = f"Loss of {config.run.name} over {len(points)} global steps"
    boundaries = {phase.from_step: texts("curve.phase", number=phase.number) for phase in all_phases(config)[1:]}
    reached = [told(each, texts) for each in milestones(snapshot.steps, snapshot.validations)]
    return draw_curve(points, title, boundaries, held_out, texts, alone, reached)


def history_values(web: WebState, texts: Translation) -> dict[str, Any]:
    """Return the template variables of `history.html`."""
    snapshot = web.snapshot
    drawing = curve_of(snapshot, web.config, texts)
    return {
        "last": snapshot.last_step,
        "curve": Markup(drawing),  # noqa: S704  # `draw_curve` escapes text
        "milestones": milestones_of(snapshot).milestones,
    }


def model_values(web: WebState, _texts: Translation) -> dict[str, Any]:
    """Return the template variables of `model.html`."""
    snapshot, config = web.snapshot, web.config
    trial = trial_of(config, snapshot)
    language = config.run.language.split("-")[0].lower()
    newest = max(snapshot.validations, key=lambda row: row.evaluated_at, default=None)
    return {
        "trial": {
            **trial.model_dump(),
            "enabled": config.dashboard.try_it,
            "example": EXAMPLES[trial.kind].get(language, ""),
        },
        "is_rough": newest is not None and newest.samples < FEW_SAMPLES,
        "evaluations": [ValidationFacts(**row.facts) for row in snapshot.validations],
        "tasks": curves(config.evaluation.tasks, snapshot.evaluations),
        "checkpoints": snapshot.checkpoints,
    }


def participants_values(web: WebState, _texts: Translation) -> dict[str, Any]:
    """Return the template variables of `participants.html`; `hardware` counts bubbles by kind."""
    everybody = people.participants_of(web)
    bubbles = Counter(row.hardware for row in everybody.participants if row.samples or row.active)
    return {
        "everybody": everybody,
        "first": [row for row in everybody.participants if row.rank is not None][:SHOWN_PARTICIPANTS],
        "kinds": [kind.value for kind in HardwareClass],
        "hardware": {kind.value: bubbles[kind] for kind in HardwareClass if bubbles[kind]},
    }


def join_values(web: WebState, _texts: Translation) -> dict[str, Any]:
    """Return the template variables of `join.html`; `joining` is the API's response."""
    return {"joining": joining_of(web, web.snapshot)}


@dataclass(frozen=True)
class View:
    """One page of the dashboard."""

    name: str  # name of the view, and of its template, module and style
    path: str  # path below the root; without slashes, because pages use relative links
    in_navigation: bool = True
    values: Callable[[WebState, Translation], Mapping[str, Any]] = lambda _web, _texts: {}  # template variables
    in_archive: bool = False  # True if archives include the page and the API responses that its script requests
    is_live: bool = True  # True if the page has a module, a style and a connection status


OVERVIEW = View("overview", "", values=overview_values, in_archive=True)
MODEL = View("model", "model", values=model_values, in_archive=True)
HISTORY = View("history", "history", values=history_values, in_archive=True)
PARTICIPANTS = View("participants", "participants", values=participants_values, in_archive=True)
MEMBER = View("member", "member", in_navigation=False, in_archive=True)
JOIN = View("join", "join", values=join_values)
VIEWS = (OVERVIEW, PARTICIPANTS, MEMBER, MODEL, HISTORY, JOIN)
MISSING = View("404", "404", in_navigation=False, in_archive=True, is_live=False)  # the page for unknown paths


def draw_page(view: View, language: str, web: WebState, root: str = "") -> bytes:
    """Render a page as HTML; `root` is the relative path from the page to the run's root."""
    texts, snapshot, archive = texts_of(language), web.snapshot, web.archive
    values = {
        "view": view,
        "views": [each for each in VIEWS if each.in_archive or not archive],
        "t": texts,
        "languages": {name: catalog["name"] for name, catalog in catalogs().items()},
        "version": page_version(),
        "root": root,
        "files": f"{root}static/{page_version()}/",
        "archive": archive,
        "has_guide": web.guide.is_built,
        "archive_policy": ARCHIVE_POLICY,
        "site": archive.address if archive else web.services.web_address,
        "link": partial(page_link, archive, language, root=root),
        "pages": {each.name: page_link(archive, language, each) for each in VIEWS},
        "language_link": partial(language_link, archive, view, root=root),
        "run": web.config.run,
        "is_stale": snapshot.stale and snapshot.swarm is not None and not archive,  # must match live.js
    }
    return templates.get_template(f"{view.name}.html").render(**values, **view.values(web, texts)).encode()


def page_link(archive: Archive | None, language: str, view: View, root: str = "") -> str:
    """Return the link from any page to a view."""
    return root + (archive.page_name(view.name, language) if archive else view.path or "./")


def language_link(archive: Archive | None, view: View, language: str, root: str = "") -> str:
    """Return the link from a page to its version in another language."""
    return root + archive.page_name(view.name, language) if archive else f"?lang={language}"


def missing_page(web: WebState, request: Request) -> Response:
    """Render the 404 page in the browser's language, with links that work from any path."""
    wanted = request.query_params.get("lang") or request.cookies.get(LANGUAGE_COOKIE)
    language = choose_language(wanted, request.headers.get("accept-language", ""))
    if web.archive:  # a web host shows this page for any missing path, so links must be absolute
        root = f"{web.archive.address}/" if web.archive.address else ""
    else:
        root = "../" * (request.url.path.count("/") - 1)
    headers = {"Cache-Control": REVALIDATE, "Vary": f"Accept, {VARY}"}
    return HTMLResponse(draw_page(MISSING, language, web, root), 404, headers)


async def require_member(request: Request, web: Web, number: str = "") -> None:
    """Raise 404 unless `?number=` in the URL is a member's number."""
    if not re.fullmatch(r"[1-9][0-9]{0,9}", number) or int(number) >= 2**31:
        raise HTTPException(404, "A member's page needs the member's number, such as `?number=1`.")
    await people.member(request, web, int(number))  # also caches the response for the page's script


def offer(view: View) -> None:
    """Register a view's route; `?lang=`, a cookie or the browser sets the page's language."""

    @router.get(f"/{view.path}")
    async def page(
        request: Request, web: Web, lang: Language = None, chosen: Chosen = None, number: str = ""
    ) -> Response:
        if view is MEMBER and not web.archive:  # in an archive, the script reports unknown members
            await require_member(request, web, number)
        language = choose_language(lang or chosen, request.headers.get("accept-language", ""))
        make = partial(draw_page, view, language, web)
        question, version = ("page", view.name, language), web.live.current.version
        response = answer(request, await web.answers.get(question, version, make, HTML), REVALIDATE, VARY)
        if lang == language:
            secure = request.url.scheme == "https"
            response.set_cookie(LANGUAGE_COOKIE, language, A_YEAR_S, secure=secure, httponly=True, samesite="lax")
        return response


for _view in VIEWS:
    offer(_view)


@cache
def page_file(name: str) -> Encoded | None:
    """Return the encoded file at a path below `dashboards/web`, or None if there is none."""
    file = page_files().get(name)
    return None if file is None else encode(file.read_bytes(), content_type(name))


@router.get("/static/{name:path}")
def static_file(request: Request, name: str) -> Response:
    """Serve the pages' styles, modules and texts; versioned URLs can be cached indefinitely."""
    version, _, rest = name.partition("/")
    is_versioned = re.fullmatch(r"[0-9a-f]{12}", version) is not None
    found = page_file(rest if is_versioned else name)
    if found is None:
        raise HTTPException(404, "There is no such file.")
    return answer(request, found, FOR_EVER if version == page_version() else REVALIDATE)


def plotly_script() -> Encoded:
    """Return Plotly's JavaScript from its wheel, compressed once (in 0.5 s) for all requests."""
    with _COMPRESSING:
        return compressed_plotly()


@cache
def compressed_plotly() -> Encoded:
    """Return Plotly's JavaScript, compressed; the caller must hold the lock `_COMPRESSING`."""
    script = files("plotly") / "package_data" / "plotly.min.js"
    return encode(script.read_bytes(), "text/javascript; charset=utf-8")


@router.get("/plotly.min.js")
def plotly(request: Request) -> Response:
    """Serve the chart library (1.5 MB compressed); pages load it last, and browsers cache it."""
    return answer(request, plotly_script(), FOR_EVER if request.url.query else ONE_DAY)


@router.get("/curve.svg")
async def curve(request: Request, web: Web) -> Response:
    """Serve the loss over global steps as an SVG file."""
    snapshot = web.snapshot

    def make() -> bytes:
        return curve_of(snapshot, web.config, alone=True).encode()

    return answer(request, await web.answers.get("curve.svg", snapshot.curve_version, make, "image/svg+xml"))


@router.get("/healthz")
async def healthz() -> dict[str, str]:
    """Report that the process is alive; `/readyz` covers failures that a restart would not fix."""
    return {"status": "ok"}


@router.get("/readyz")
def readyz(web: Web) -> Response:
    """Respond with 200 if the store responds and the keeper has reported recently, else 503."""
    try:
        status = read_swarm_status(web.database)
    except SQLAlchemyError:
        return _not_ready("the store does not answer")
    if status is None:
        return _not_ready("the keeper has not reported yet")
    silent_s = web.services.clock() - status.updated_at
    if silent_s > KEEPER_SILENT_S:
        return _not_ready(f"the keeper has been silent for {silent_s:.0f} s")
    return JSONResponse({"status": "ok"})


def _not_ready(reason: str) -> Response:
    return JSONResponse({"status": reason}, 503)


@router.get("/metrics")
def metrics(web: Web) -> Response:
    """Serve the metrics in the Prometheus text format."""
    return Response(web.metrics(), media_type=CONTENT_TYPE_LATEST)
