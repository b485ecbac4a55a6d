"""The outermost interceptor of the control plane: counts every call that reaches a method, refused ones included."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from coordinator.telemetry import Telemetry


class CallCounter(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # gRPC has no annotations
    """Stands before the doorkeeper, which takes every call as a stream of requests."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: Any
    ) -> Any | None:
        """The handler of a call, counted; None where there is no such method, so that names are ours alone."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method.rpartition("/")[2]
        behaviour = handler.stream_unary or handler.stream_stream

        async def counted(requests: AsyncIterator[Any], context: Any) -> Any:
            with self._telemetry.call(method, context):
                return await behaviour(requests, context)

        wrap = grpc.stream_unary_rpc_method_handler if handler.stream_unary else grpc.stream_stream_rpc_method_handler
        return wrap(counted, handler.request_deserializer, handler.response_serializer)
