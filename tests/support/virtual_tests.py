"""Tests that run in virtual time."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Coroutine
from functools import wraps
from inspect import Parameter, signature
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

from peer.transport.virtual_time import run_virtual

P = ParamSpec("P")
Given = TypeVar("Given")
Played: TypeAlias = Callable[[Callable[Concatenate[Given, P], Awaitable[None]]], Callable[P, None]]  # a decorator


def virtually(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop whose clock jumps to the next timer; work for threads takes no time."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_virtual(test(*args, **kwargs))

    return run


def run_heard(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine in virtual time, in which no task may fail unheard."""
    errors: list[Any] = []

    async def hear() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: errors.append(context))
        await main

    run_virtual(hear())
    gc.collect()  # tasks whose errors nobody has heard
    assert errors == []


def played_by(play: Callable[[Callable[[Given], Awaitable[None]]], Coroutine[Any, Any, None]]) -> Played[Given, P]:
    """Run tests as `run_heard` does; `play` gives each its first argument, as a rule a scene."""

    def decorated(test: Callable[Concatenate[Given, P], Awaitable[None]]) -> Callable[P, None]:
        @wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            run_heard(play(lambda given: test(given, *args, **kwargs)))

        show_fixtures(run, given=1)
        return run

    return decorated


def show_fixtures(run: Callable[..., None], *fixtures: str, given: int) -> None:
    """Let pytest see that a wrapped test takes these fixtures, and its own but for the `given` first ones."""
    own = list(signature(run).parameters.values())[given:]
    added = [Parameter(name, Parameter.POSITIONAL_OR_KEYWORD) for name in fixtures]
    run.__signature__ = signature(run).replace(parameters=[*added, *own])  # type: ignore[attr-defined]
