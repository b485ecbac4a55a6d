"""The sampling section of a source: what fits together, and what is refused in one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from peer.config.data import Sampling

QUARTILES = [100.0, 200.0, 400.0]


@pytest.mark.parametrize(
    "content",
    [
        {"method": "random", "scale": 0.1},
        {"method": "stepwise", "scale": 0.1, "quartiles": QUARTILES, "factors": [0.2, 1.0, 0.5, 0.0]},
        {
            "method": "gaussian",
            "scale": 0.78,
            "quartiles": QUARTILES,
            "width": 4.5,
            "scorer": {"kind": "kenlm", "model": "https://example.org/es.arpa.bin"},
        },
    ],
)
def test_each_method_takes_its_own_parameters(content: dict[str, Any]) -> None:
    """A section reads back as it was written."""
    section = Sampling.model_validate(content)
    assert Sampling.model_validate(section.model_dump()) == section


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": "random"}, "takes no `quartiles`"),
        ({"quartiles": None}, "needs `quartiles`"),
        ({"width": None}, "needs `width`"),
        ({"factors": [1, 1, 1, 1]}, "takes no `factors`"),
        ({"method": "stepwise", "width": None, "factors": [0, 0, 0, 0]}, "are all 0"),
        ({"quartiles": [2.0, 1.0, 3.0]}, "must rise"),
        ({"scale": 0.0}, "greater than 0"),
        ({"scorer": {"kind": "kenlm"}}, "needs a `model`"),
        ({"scorer": {"kind": "kenlm", "model": "ssh://host/model"}}, "must be a local path, or one of"),
        ({"scorer": {"model": "zip://a::https://b"}}, "must be a local path, or one of"),
        ({"scorer": {"text": "words"}}, "`text` is for scorers of kind `kenlm`"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], sentence: str) -> None:
    """The message names the key and what is allowed."""
    content = {"method": "gaussian", "scale": 1.0, "quartiles": QUARTILES, "width": 1.0} | change
    with pytest.raises(ValidationError, match=sentence):
        Sampling.model_validate({key: value for key, value in content.items() if value is not None})
