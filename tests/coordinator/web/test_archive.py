"""A run's page as plain files: complete, of one moment, and only ever in place of itself."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from auth.errors import ConfigError
from coordinator.checkpoints.manifest import file_entry
from coordinator.cli.main import app
from coordinator.statistics.people import HardwareClass, LeaderboardPeriod, people
from coordinator.web.archive import MANIFEST, ArchiveManifest, Wish, questions, write_archive
from coordinator.web.state.frozen import Archive, answer_name
from dashboards import catalogs
from tests.support.clocks import Clock
from tests.support.served_page import FakeRun, fake_run

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FakeRun]:
    """A run of 102 steps with a hostile member, which no test changes."""
    with fake_run(tmp_path_factory.mktemp("filled"), Clock()) as made:
        made.add_member(HOSTILE)
        made.add_steps([9.0 - step / 50 for step in range(1, 103)])
        made.add_checkpoint(100)
        made.add_validation(100)
        yield made


@pytest.fixture(scope="module")
def archive(filled: FakeRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its archive."""
    made = tmp_path_factory.mktemp("made") / "archive"
    write_archive(filled.directory, Wish(made, "https://example.org/run/"), filled.services.clock())
    return made


def answer(archive: Path, name: str) -> dict[str, object]:
    """An answer of the API, from its file."""
    found: dict[str, object] = json.loads((archive / "api" / "v1" / name).read_text())
    return found


def test_every_view_is_there_in_every_language(archive: Path) -> None:
    """And each leads to the others as files; nothing in a page asks for what is not there."""
    pages = sorted(path.name for path in archive.glob("*.html"))
    assert {"index.html", "model.html", "history.html", "index.bn.html", "history.es.html"} <= set(pages)
    assert len(pages) % len(catalogs()) == 0
    for name in pages:
        text = (archive / name).read_text()
        assert 'data-archive="1800000000.0"' in text
        links = re.findall(r'(?:href|src)="([^"#?]+)"', text)
        assert links
        missing = [link for link in links if "://" not in link and not (archive / link).exists()]
        assert missing == []
        assert "<img src=x" not in text


def test_its_host_has_a_page_for_what_is_not_there(archive: Path, filled: FakeRun, tmp_path: Path) -> None:
    """Hosts show it at any path, so its links are whole addresses, where the archive's own is known."""
    text = (archive / "404.html").read_text()
    assert "There is no page at this address." in text
    links = re.findall(r'(?:href|src)="([^"#?]+)"', text)
    assert all(link.startswith("https://example.org/run/") for link in links)
    assert {"https://example.org/run/index.html", "https://example.org/run/404.es.html"} <= set(links)
    write_archive(filled.directory, Wish(tmp_path / "elsewhere"), filled.services.clock())
    assert 'href="index.html"' in (tmp_path / "elsewhere" / "404.html").read_text()


def test_it_says_what_the_page_would_ask(archive: Path) -> None:
    """The whole history in stretches, the curve as often as charts ask for it, and nobody who answers visitors."""
    assert [len(answer(archive, f"moments/{number}.json")["moments"]) for number in (0, 1)] == [100, 2]  # type: ignore[arg-type]
    assert not (archive / "api" / "v1" / "moments" / "2.json").exists()
    for name in ("curve,points=600.json", "curve,points=1000,smoothing=0.json", "curve,points=1000,smoothing=500.json"):
        assert len(answer(archive, name)["step"]) == 102  # type: ignore[arg-type]
    assert answer(archive, "trials.json")["on"] is False
    assert answer(archive, "overview.json")["taken_at"] == 1_800_000_000.0
    assert 'content="https://example.org/run/card.png"' in (archive / "index.html").read_text()


def test_it_tells_of_everybody(archive: Path) -> None:
    """A file for each member, by number; leaderboards of all days and hardware; the timeline up to its moment."""
    members = answer(archive, "participants.json")["participants"]
    assert [each["number"] for each in members] == [1]  # type: ignore[attr-defined]
    assert {path.name for path in (archive / "api" / "v1" / "participants").iterdir()} == {"1.json"}
    assert answer(archive, "participants/1.json")["steps"] == {
        "count": 102,
        "first": 1,
        "last": 102,
        "ranges": [[1, 102]],
    }
    boards = [path.name for path in (archive / "api" / "v1").glob("participants,*.json")]
    assert len(boards) == len(LeaderboardPeriod) * (1 + len(HardwareClass))
    assert "participants,kind=large-gpu,window=month.json" in boards
    stays = answer(archive, "stays,since=1799913600,until=1800000000.json")
    assert (stays["since"], stays["until"], stays["members"]) == (1_799_913_600.0, 1_800_000_000.0, {"1": HOSTILE})


@pytest.mark.usefixtures("three_steps")
def test_who_joins_meanwhile_has_a_page(run: FakeRun) -> None:
    """The members are looked for when everything that could name them has been asked."""
    asked = questions(run.services.database, 3, run.services.clock())
    assert next(asked) == ("overview", {})
    run.add_member("grace")
    numbers = [person.number for person in people(run.services.database, run.services.clock())]
    assert len(numbers) == 2
    assert [path for path, _ in asked][-2:] == [f"participants/{number}" for number in numbers]


def test_its_manifest_names_every_file(archive: Path) -> None:
    """With sizes and digests."""
    manifest = ArchiveManifest.model_validate_json((archive / MANIFEST).read_bytes())
    there = {path.relative_to(archive).as_posix(): path for path in archive.rglob("*") if path.is_file()}
    assert set(manifest.files) == set(there) - {MANIFEST}
    assert all(file_entry(there[name]) == entry for name, entry in manifest.files.items())
    assert (manifest.run, manifest.step) == ("test-run", 102)


def test_a_web_hosts_user_can_read_it(filled: FakeRun, tmp_path: Path) -> None:
    """Also where the operator's files are nobody else's."""
    before = os.umask(0o077)
    try:
        write_archive(filled.directory, Wish(tmp_path / "archive"), filled.services.clock())
    finally:
        os.umask(before)
    paths = [tmp_path / "archive", *(tmp_path / "archive").rglob("*")]
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_dir()} == {0o755}
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {0o644}


def test_nothing_secret_is_in_it(archive: Path, filled: FakeRun) -> None:
    """Neither keys nor places on the operator's disk, nor what is for administrators."""
    texts = [path.read_bytes() for path in archive.rglob("*") if path.suffix in {".html", ".json"}]
    for word in (str(filled.directory.path).encode(), b"checkpoints/step", b"BEGIN"):
        assert not any(word in text for text in texts)


@pytest.mark.usefixtures("three_steps")
def test_only_an_archive_of_the_same_run_is_replaced(run: FakeRun, tmp_path: Path) -> None:
    """And only where that is wanted; what else is in the way stays."""
    archive = tmp_path / "archive"
    write_archive(run.directory, Wish(archive), run.services.clock())
    again = Wish(archive, overwrite=True)
    with pytest.raises(ConfigError, match="not empty"):
        write_archive(run.directory, Wish(archive), run.services.clock())
    run.add_step(4, 6.0)
    assert write_archive(run.directory, again, run.services.clock()).step == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archive", "run"]
    phases = [{"from_step": 9, "target_batch_size": 200}]  # so that its keys are not this run's
    with fake_run(tmp_path / "other", phases=phases) as other, pytest.raises(ConfigError, match="another run"):
        write_archive(other.directory, again, other.services.clock())
    shutil.rmtree(archive / "api")
    (archive / MANIFEST).unlink()
    with pytest.raises(ConfigError, match="no archive"):
        write_archive(run.directory, again, run.services.clock())
    assert (archive / "index.html").exists()


def test_a_run_that_has_not_begun_can_be_archived(tmp_path: Path) -> None:
    """It has no stretches."""
    with fake_run(tmp_path, Clock()) as run:
        made = write_archive(run.directory, Wish(tmp_path / "archive"), run.services.clock())
    assert made.step == 0
    assert not any(name.startswith("api/v1/moments") for name in made.files)
    assert "og:image" not in (tmp_path / "archive" / "index.html").read_text()


@pytest.mark.usefixtures("three_steps")
def test_the_command_says_what_it_wrote(run: FakeRun, tmp_path: Path) -> None:
    """For people and for scripts; a wrong address is refused before anything is written."""
    target = str(tmp_path / "out")
    runner, place = CliRunner(), str(run.directory.path)
    refused = runner.invoke(app, ["archive", place, target, "--address", "ftp://example.org"])
    assert isinstance(refused.exception, ConfigError)
    assert not (tmp_path / "out").exists()
    told = runner.invoke(app, ["archive", place, target])
    assert "`test-run` as of step 3" in " ".join(told.output.split())
    facts = json.loads(runner.invoke(app, ["archive", place, target, "--overwrite", "--json"]).output)
    assert (facts["run"], facts["step"], facts["files"] > 50) == ("test-run", 3, True)


@pytest.mark.parametrize(
    ("path", "parameters", "name"),
    [
        ("overview", {}, "overview.json"),
        ("moments/12", {}, "moments/12.json"),
        ("curve", {"smoothing": 0, "points": 600}, "curve,points=600,smoothing=0.json"),
        ("members/Ärger & <b>", {"window": "7d,x"}, "members/~c3~84rger~20~26~20~3cb~3e,window=7d~2cx.json"),
    ],
)
def test_answers_have_names_that_every_host_serves(path: str, parameters: dict[str, str | int], name: str) -> None:
    """The same for the same question, with nothing in it that a host would treat in its own way."""
    assert answer_name(path, parameters) == name


def test_pages_have_names() -> None:
    """The run's language needs none."""
    archive = Archive(0.0, "", "bn")
    assert archive.page_name("overview", "bn") == "index.html"
    assert archive.page_name("history", "en") == "history.en.html"
