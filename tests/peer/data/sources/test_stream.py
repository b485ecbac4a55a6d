"""A source whose parts fail: they are tried again, left out or waited for, and what can be read is never lost."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from auth.errors import ConfigError
from peer.config.data import Source
from peer.config.run import RunConfig
from peer.data.sources.documents import MixedDocuments, open_documents, open_units
from peer.data.sources.faults import Pauses
from tests.support.units_of_text import ShortPauses
from tests.support.web_files import WebFiles, serve_files

FILES, LINES = 6, 40


@pytest.fixture
def web() -> Iterator[WebFiles]:
    """Six files of forty documents each."""
    with serve_files() as server:
        for number in range(FILES):
            server.files[f"{number}.jsonl"] = lines(number)
        yield server


def lines(number: int) -> bytes:
    return "".join(json.dumps({"text": f"{number} {line}"}) + "\n" for line in range(LINES)).encode()


def everything(*without: int) -> list[str]:
    return sorted(f"{number} {line}" for number in range(FILES) if number not in without for line in range(LINES))


def opened(web: WebFiles, reports: list[str], position: Any = None, pauses: Pauses | None = None) -> MixedDocuments:
    paths = [web.url(f"{number}.jsonl") for number in range(FILES)]
    source = {"kind": "jsonl", "path": paths}
    config = RunConfig.from_mapping({"data": {"sources": [source], "shuffle_buffer": 16, "validation": {"share": 0.0}}})
    return open_documents(config, 1, position, report=reports.append, pauses=pauses or ShortPauses())


def epoch_of(stream: MixedDocuments) -> list[str]:
    """All documents up to the end of the epoch, one more than which is read."""
    epoch, found = stream.epoch, []
    while True:
        document = next(stream)
        if stream.epoch > epoch:
            return sorted(found)
        found.append(document)


def test_errors_of_a_server_are_waited_out(web: WebFiles) -> None:
    """Some refused answers cost time, no document, and are not worth a word."""
    for name in web.files:
        web.failures[name] = 1
    reports: list[str] = []
    with opened(web, reports) as stream:
        assert epoch_of(stream) == everything()
    assert reports == []
    assert not any(web.failures.values())


def test_a_connection_that_breaks_is_taken_up_at_the_record_where_it_broke(web: WebFiles) -> None:
    """No document is left out, and none comes twice."""
    for name in web.files:
        web.without_ranges.add(name)
        web.cut[name] = 2
    reports: list[str] = []
    with opened(web, reports) as stream:
        assert epoch_of(stream) == everything()
    assert reports == []


def test_a_file_that_is_gone_is_left_out_until_the_source_begins_anew(web: WebFiles) -> None:
    """It is reported by its address, with the reason; when it is back, it is read again."""
    content = web.files.pop("3.jsonl")
    reports: list[str] = []
    with opened(web, reports) as stream:
        assert epoch_of(stream) == everything(3)
        assert any(web.url("3.jsonl") in report and "left out until" in report for report in reports)
        web.files["3.jsonl"] = content
        epoch_of(stream)  # may have been begun without it
        assert len(epoch_of(stream)) == len(everything()) - 1  # the first one was taken by the epoch before


def test_a_server_that_is_away_is_waited_for(web: WebFiles) -> None:
    """Nothing is given up: the source rests, goes back to what failed first, and goes on when the server is back."""
    reports: list[str] = []

    class Until(ShortPauses):
        def __call__(self, seconds: float) -> None:
            if seconds > 60:  # a rest: meanwhile the server comes back
                web.files.update(away)
            super().__call__(seconds)

    with opened(web, reports, pauses=Until()) as stream:
        first = [next(stream) for _ in range(3)]
        away = dict(web.files)
        web.files.clear()
        rest = epoch_of(stream)
    assert sorted(first + rest) == everything()
    assert any("trying again in 2 minutes" in report for report in reports)


def test_damaged_records_are_passed_over_and_counted(web: WebFiles) -> None:
    """A line that is no JSON, or has no text, takes nothing else with it."""
    web.files["2.jsonl"] = b'{broken\n{"title": "no text"}\n\n{"text": 7}\n' + lines(2)
    reports: list[str] = []
    with opened(web, reports) as stream:
        assert epoch_of(stream) == everything()
    assert any("damaged records" in report and "text_field" in report for report in reports)


def test_a_place_in_a_source_that_has_changed_begins_its_next_epoch(tmp_path: Path) -> None:
    """With other files the old place means nothing; nothing fails, and what was read last is not read again at once."""
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(lines(0))
    source = {"kind": "jsonl", "path": [str(path)]}
    config = RunConfig.from_mapping({"data": {"sources": [source], "validation": {"share": 0.0}}})
    with open_documents(config, 1) as stream:
        next(stream)
        position = json.loads(json.dumps(stream.position()))
    position["streams"][0]["units"] = 7
    with open_documents(config, 1, position) as stream:
        next(stream)
        assert stream.epoch == 1


def test_a_server_that_never_was_there_is_one_clear_error() -> None:
    """As nothing else can be read; who watches hears that it is tried again."""
    source = {"kind": "jsonl", "path": "http://127.0.0.1:9/corpus.jsonl"}
    config = RunConfig.from_mapping({"data": {"sources": [source], "validation": {"share": 0.0}}})
    message = r"Cannot open `http://127\.0\.0\.1:9/corpus\.jsonl` .*; trying again in 2 minutes"
    with (
        open_documents(config, 1, report=print, pauses=ShortPauses()) as stream,
        pytest.raises(ConfigError, match=message),
    ):
        next(stream)


def test_of_a_packed_file_that_breaks_off_all_before_the_break_is_read(tmp_path: Path) -> None:
    """Though it is unpacked in large pieces."""
    rng = random.Random(0)
    text = "\n".join(json.dumps({"text": f"{number} {rng.random()}"}) for number in range(4000))
    packed = gzip.compress(text.encode())
    (tmp_path / "corpus.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    source = Source.model_validate({"kind": "jsonl", "path": str(tmp_path / "corpus.jsonl.gz")})
    with closing(open_units(source, whole=True).open(0, None)) as unit:
        assert len(list(islice(unit, 1900))) == 1900
        with pytest.raises(EOFError):
            list(unit)


def test_text_from_elsewhere_is_counted_and_waited_for(web: WebFiles, tmp_path: Path) -> None:
    """Each block's bytes are told, and the thread waits as long as it is told; text from this machine costs nothing."""
    told: list[int] = []

    def reserve(size_bytes: int) -> float:
        told.append(size_bytes)
        return 77.0

    here = tmp_path / "here.jsonl"
    here.write_bytes(lines(0))
    for path, counted in ((web.url("0.jsonl"), True), (str(here), False)):
        told.clear()
        source = {"kind": "jsonl", "path": path}
        config = RunConfig.from_mapping(
            {"data": {"sources": [source], "shuffle_buffer": LINES, "validation": {"share": 0.0}}}
        )
        pauses = ShortPauses()
        with closing(open_documents(config, 0, pauses=pauses, reserve=reserve)) as documents:
            size_bytes = sum(len(next(documents).encode()) for _ in range(LINES))
            for _ in range(2 * LINES):
                next(documents)
        assert sum(told[:1]) == (size_bytes if counted else 0)
        assert (pauses.asked[77.0] > 0) is counted
