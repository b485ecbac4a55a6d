"""What a request of a wrong shape hears: where and why, and nothing of what it said, which may be a secret.

In ASCII, because what came need not be Unicode that can be sent.
"""

from __future__ import annotations

import json

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError

NAMES = ("type", "loc", "msg")


async def refuse_shape(_request: Request, error: Exception) -> Response:
    """As FastAPI answers (422), without the input."""
    assert isinstance(error, RequestValidationError)
    detail = [{name: found[name] for name in NAMES} for found in error.errors()]
    return Response(json.dumps({"detail": detail}), 422, media_type="application/json")
