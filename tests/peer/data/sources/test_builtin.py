"""The prose that every Python carries."""

from __future__ import annotations

from peer.data.sources.builtin import MIN_DOCSTRING_CHARACTERS, builtin_documents, long_docstrings

LONG = "word " * (MIN_DOCSTRING_CHARACTERS // 5 + 1)


def test_the_corpus_is_large_and_holds_each_document_once() -> None:
    """There is enough prose for a demo: more than a million characters in different documents."""
    documents = builtin_documents()
    assert sum(map(len, documents)) > 1_000_000
    assert len(set(documents)) == len(documents)


def test_the_order_is_the_same_every_time() -> None:
    """Reading the library again gives the same documents in the same order, so that a place in it keeps its meaning."""
    assert builtin_documents.__wrapped__() == builtin_documents()


def test_docstrings_of_modules_classes_and_functions_are_found() -> None:
    """Every kind of docstring counts, nested ones included, cleaned of its indentation."""
    source = f'"""M {LONG}"""\nclass C:\n    """C {LONG}"""\n    async def f(self):\n        """F\n        {LONG}"""\n'
    assert [text[:3] for text in long_docstrings(source.encode())] == ["M w", "C w", "F\nw"]


def test_short_docstrings_and_other_strings_are_no_documents() -> None:
    """Labels and data are left out."""
    source = f'"""Short."""\nDATA = """{LONG}"""\n'
    assert list(long_docstrings(source.encode())) == []


def test_a_module_that_does_not_parse_is_left_out() -> None:
    """A template among the library's files spoils nothing."""
    assert list(long_docstrings(b'"""doc"""\ndef broken(:')) == []


def test_nothing_is_imported_to_read_it() -> None:
    """A module that would fail on import is read like any other."""
    source = f'"""{LONG}"""\nraise SystemExit\n'
    assert len(list(long_docstrings(source.encode()))) == 1
