"""Admission to the control plane: limits on calls, applied before callers are authenticated.

These limits apply to the number, rate and duration of calls. `coordinator.control.door` limits
connections, and gRPC limits messages and streams per connection. gRPC would wait indefinitely for a
unary request, so unary calls are handled as streams of one message, with a timeout.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NoReturn

import grpc
from google.protobuf.message import DecodeError

from auth.errors import ManyhandsError, RequestError, UnreachableError
from coordinator.control.door import Door, DoorLimits
from coordinator.throttling.rate_limits import CallerPace, CallerPlaces, network_of
from peer.protocol.errors import metadata_of, status_of


class Doorkeeper(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no annotations
    """A gRPC interceptor that limits calls before their handlers run; used from one event loop."""

    def __init__(self, limits: DoorLimits, door: Door, clock: Callable[[], float]) -> None:
        self._limits, self._door = limits, door
        self._pace = CallerPace(limits.calls_per_minute, clock)
        self._places = CallerPlaces(limits.calls, limits.calls_per_caller)

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any | None:
        """Wrap a method's handler with the limits. Return None for an unknown method."""
        handler = await continuation(handler_call_details)
        return None if handler is None else self._bounded(handler)

    def _bounded(self, handler: Any) -> Any:
        async def one_answer(requests: AsyncIterator[Any], context: Any) -> Any:
            async with self._admitted(context):
                return await handler.unary_unary(await self._only(requests), context)

        async def many_answers(requests: AsyncIterator[Any], context: Any) -> None:
            async with self._admitted(context):
                async for answer in handler.unary_stream(await self._only(requests), context):
                    await self._in_time(context.write(answer), self._limits.reading_s, "The answer was not read")

        async def conversation(requests: AsyncIterator[Any], context: Any) -> None:
            async with self._admitted(context):
                await handler.stream_stream(requests, context)

        parse, serialize = handler.request_deserializer, handler.response_serializer
        if handler.unary_unary is not None:
            return grpc.stream_unary_rpc_method_handler(one_answer, _parsed(parse, _Malformed), serialize)
        if handler.unary_stream is not None:
            return grpc.stream_stream_rpc_method_handler(many_answers, _parsed(parse, _Malformed), serialize)
        empty = partial(parse, b"")  # replaces a malformed message; stream handlers reject empty messages
        return grpc.stream_stream_rpc_method_handler(conversation, _parsed(parse, empty), serialize)

    @asynccontextmanager
    async def _admitted(self, context: Any) -> AsyncIterator[None]:
        """Hold a slot during the block, or reject the call as retryable; no refusal is recorded."""
        try:
            caller = network_of(self._door.caller(context))
        except ManyhandsError as error:
            await _refuse(context, error)
        if not self._pace.allows(caller) or not self._places.enter(caller):
            await _refuse(
                context, UnreachableError("The coordinator is asked too much from this address: wait a little.")
            )
        try:
            self._door.welcome(context)
            yield
        except RequestError as error:  # raised by a limit; handlers report their own errors
            await _refuse(context, error)
        finally:
            self._places.leave(caller)

    async def _only(self, requests: AsyncIterator[Any]) -> Any:
        return await self._in_time(anext(requests), self._limits.first_message_s, "The request did not arrive")

    async def _in_time(self, action: Any, timeout_s: float, complaint: str) -> Any:
        try:
            result = await asyncio.wait_for(action, timeout_s)
        except asyncio.TimeoutError as error:
            raise RequestError(f"{complaint} within {timeout_s:g} s.") from error
        except StopAsyncIteration as error:
            raise RequestError("The call ended without a request.") from error
        if isinstance(result, _Malformed):
            raise RequestError("The request's bytes are no message of this protocol.")
        return result


class _Malformed:
    """A placeholder for a message that cannot be parsed."""


def _parsed(parse: Callable[[bytes], Any], malformed: Callable[[], Any]) -> Callable[[bytes], Any]:
    """Wrap a parser to return `malformed()` on a parse error, instead of gRPC's internal error."""

    def parse_or_note(data: bytes) -> Any:
        try:
            return parse(data)
        except DecodeError:
            return malformed()

    return parse_or_note


async def _refuse(context: Any, error: ManyhandsError) -> NoReturn:
    await context.abort(status_of(error), str(error), metadata_of(error))
    raise AssertionError("abort raises")
