"""What a member changes to reduce falsely, or to make others look so: it claims the fattest line, and says anything.

Patches in its own process only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import torch
from hivemind.proto import averaging_pb2, runtime_pb2

from peer.averaging.reducer import ATTESTED, Messages, Reducer
from peer.reduction.attestation import SignedAttestation, digest_of, digest_of_all
from peer.reduction.audit import Drawn, Evidence
from peer.reduction.combine import PartReducer, ReducedPart
from peer.reduction.compression import decode, encode
from tests.support.peer_processes import Orders

FALSE_AVERAGES: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {  # given to all
    "flipped": torch.neg,
}


def return_false_averages(orders: Orders) -> None:
    """From now on let this process, and what it forks, reduce falsely while it is told to; call it before joining."""
    honest, honest_answer = PartReducer.accumulate_part, Reducer.answer

    async def accumulate_part(reducer: PartReducer, *args: Any, **kwargs: Any) -> ReducedPart:
        reduced = await honest(reducer, *args, **kwargs)
        falsify = FALSE_AVERAGES.get(orders.told)
        return replace(reduced, average=falsify(reduced.average)) if falsify else reduced

    async def answer(
        reducer: Reducer, caller: str, messages: Messages
    ) -> AsyncGenerator[averaging_pb2.AveragingData, None]:
        digests: list[bytes] = []
        async with aclosing(honest_answer(reducer, caller, messages)) as answers:
            async for message in answers:
                if orders.told in ("unlike", "two accounts") and reducer.peers.index(caller) % 2:
                    yield _other_answer(reducer, message, digests, orders.told == "two accounts")
                else:
                    yield message

    PartReducer.accumulate_part = accumulate_part  # type: ignore[method-assign]
    Reducer.answer = answer  # type: ignore[method-assign]


def _other_answer(
    reducer: Reducer, answer: averaging_pb2.AveragingData, digests: list[bytes], attests: bool
) -> averaging_pb2.AveragingData:
    """The negative of an average, and where it `attests` that, an attestation of these."""
    wire = answer.tensor_part
    if answer.code == ATTESTED:
        key = reducer.terms.attesting.key
        opened = SignedAttestation(wire.buffer).opened(key.public_key)
        other = opened.model_copy(update={"averages": digest_of_all(digests).hex()})
        content = SignedAttestation.sign(key, other).content if attests else wire.buffer
        return averaging_pb2.AveragingData(code=ATTESTED, tensor_part=runtime_pb2.Tensor(buffer=content))
    negative = encode(-decode(wire), wire.compression)
    digests.append(digest_of(negative))
    return averaging_pb2.AveragingData(code=answer.code, tensor_part=negative, weight=answer.weight)


def show_false_inputs(orders: Orders) -> None:
    """From now on let this process show after a round what it has not sent in it, while it is told to frame others."""
    honest = Evidence.sent

    def sent(evidence: Evidence, drawn: Drawn) -> tuple[runtime_pb2.Tensor, list[bytes]] | None:
        kept = honest(evidence, drawn)
        if kept is None or orders.told != "frames":
            return kept
        return encode(-decode(kept[0]), kept[0].compression), kept[1]

    Evidence.sent = sent  # type: ignore[method-assign]
