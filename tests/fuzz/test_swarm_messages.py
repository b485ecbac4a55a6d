"""What other peers send: records of the DHT and tensors; a bad one is dropped, and costs no more than its own size."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Sequence
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.compression import Float16Compression, NoCompression
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.validation import DHTRecord
from hivemind.p2p import PeerID
from hivemind.proto import averaging_pb2, runtime_pb2
from hivemind.utils.streaming import combine_from_streaming, split_for_streaming
from hivemind.utils.timed_storage import ValueWithExpiration
from hypothesis import given, strategies as st

from auth.credentials import Credentials
from auth.keys import AuthorityKey
from auth.swarm.authorizer import (
    MemberTokens,
    PeerRecordValidator,
    key_id,
    peers_key,
    record_subkey,
    token_subkey,
)
from auth.swarm.hivemind_patches import patch_hivemind
from auth.tokens import AccessToken
from peer.averaging.declarations import Declaration, DeclaredGroup, open_declaration
from peer.averaging.meetings import BEGIN, COUNT, DECLARE_S, FULL, GONE_ON, HOLDS, REPORT, Meetings
from peer.averaging.requirements import Requirements
from peer.node.quorum import CONFIRMED, VOID
from peer.progress.records import NewestRecords, PeerRecord, read_records
from peer.progress.view import SwarmCourse
from peer.reduction.compression import BLOCKWISE, decode, encode
from peer.reporting.suspicions import Suspicions
from peer.transport.lines import Line
from peer.transport.memory import MemoryNetwork
from peer.transport.virtual_time import run_virtual
from tests.support.inputs import ANY_TEXT, JSON, NUMBERS, inputs, spoilt, tuples_in_tuples
from tests.support.tokens import admitted

RUN, NOW = "run", 1_000.0
dumps = DHTProtocol.serializer.dumps
CODES = (NoCompression.compression_type, Float16Compression.compression_type, BLOCKWISE.compression_type)
DTYPES = st.sampled_from(("float32", "float64", "object", "U99999999", "bool", "complex128", "M8[ns]", "f4,f4", ""))


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    """A member's."""
    directory = tmp_path_factory.mktemp("device")
    return admitted(directory, AuthorityKey.generate(), RUN, issued_at=NOW, lasts_s=60.0)


def a_record() -> list[Any]:
    """A valid record's values."""
    return PeerRecord(
        step=3, samples=4, rate=1.5, time=NOW, training=True, client_mode=False, sketch=(0.5, -1.0)
    ).pack()


@inputs(300)
@given(data=st.data())
def test_records_on_their_way_into_the_dht(device: Credentials, data: st.DataObject) -> None:
    """The validator says yes or no, whatever the bytes of key, owner and value are."""
    patch_hivemind()  # as before any node
    subkey = data.draw(st.sampled_from((record_subkey, token_subkey)))
    owner = dumps(subkey(device.device_key.peer_id))
    value = data.draw(st.sampled_from((dumps(device.token_jwt), dumps([dumps(a_record()), bytes(256)]))))
    nested = b"".join(b"\xc7\xff\x40" for _ in range(data.draw(st.integers(0, 2000)))) + b"\xc0"
    record = DHTRecord(
        key_id(peers_key(RUN)),
        data.draw(spoilt(owner) | st.just(owner) | st.binary(max_size=64)),
        data.draw(spoilt(value) | st.binary(max_size=64) | st.just(nested) | st.just(tuples_in_tuples(2000))),
        NOW + 10,
    )
    tokens = MemberTokens(device, lambda: NOW)
    tokens.own_jwt()
    assert PeerRecordValidator(device, tokens, RUN).validate(record) in (True, False)


@inputs(300)
@given(data=st.data())
def test_records_that_the_dht_gives(device: Credentials, data: st.DataObject) -> None:
    """Each is looked at alone, and what follows from them is finite."""
    peer_id, others = device.device_key.peer_id, [PeerID(bytes([number] * 34)).to_base58() for number in range(4)]
    records: dict[Any, Any] = {record_subkey(peer_id): ValueWithExpiration(a_record(), NOW)}
    for other in others[: data.draw(st.integers(0, 4))]:
        values = a_record()
        values[data.draw(st.integers(0, len(values) - 1))] = data.draw(JSON | st.binary(max_size=20))
        records[record_subkey(other)] = data.draw(st.just(ValueWithExpiration(values, NOW)) | JSON)
    records |= {token_subkey(each): ValueWithExpiration(each, NOW) for each in (peer_id, *others)}
    found = read_records(
        records, lambda jwt: AccessToken("Ada", "device", jwt, "key", "trainer", RUN, NOW, NOW + 60, "a" * 64)
    )
    assert found[0].record.step == 3
    course = SwarmCourse(
        own_id=data.draw(st.sampled_from([peer_id, "other"])),
        is_keeper=data.draw(st.booleans()),
        silent_after_s=60.0,
        first_step_s=120.0,
        least_share=0.25,
        suspicions=Suspicions(lambda _: None, lambda: NOW),
    )
    view = course.look(NewestRecords(120.0).take(found, NOW), 32, NOW)
    assert 0 <= view.step <= 2**40
    assert 0 <= view.rate < float("inf")
    assert read_records(data.draw(JSON), lambda jwt: None) == []


def decoded(message: runtime_pb2.Tensor) -> torch.Tensor | None:
    """The tensor, in no graph and of the claimed shape, or None where it is refused."""
    try:
        tensor = decode(message)
    except ValueError:
        return None
    assert tensor.shape == tuple(message.size)
    assert not tensor.requires_grad
    assert tensor.numel() * tensor.element_size() <= 8 * max(1, len(message.buffer))
    return tensor


@inputs(300)
@given(data=st.data())
def test_tensors_with_spoilt_bytes(data: st.DataObject) -> None:
    """Whatever bytes arrive as a message: it is refused, or is the tensor that it claims to be."""
    wire = encode(torch.linspace(-1, 1, 12).reshape(3, 4), data.draw(st.sampled_from(CODES)))
    message = averaging_pb2.AveragingData(code=averaging_pb2.PART_FOR_AVERAGING, tensor_part=wire, weight=1.0)
    content = data.draw(spoilt(message.SerializeToString()))
    try:
        arrived = averaging_pb2.AveragingData.FromString(content)
    except Exception:  # noqa: BLE001 - no message at all: the transport's to refuse
        return
    decoded(arrived.tensor_part)


@inputs(300)
@given(
    st.sampled_from((*CODES, 2, 3, 4, 99)),
    DTYPES | ANY_TEXT.filter(lambda text: text.isascii()),
    st.lists(st.sampled_from((0, 1, 3, 128, 2**16, 2**31 - 1, 2**32 - 1)) | st.integers(0, 2**32 - 1), max_size=40),
    st.binary(max_size=600),
    st.booleans(),
    st.integers(0, 2**31 - 1),
)
def test_tensors_that_lie(
    code: int, dtype: str, size: list[int], buffer: bytes, requires_grad: bool, chunks: int
) -> None:
    """Sizes that lie, dtypes that unfold, codes that nobody speaks."""
    decoded(
        runtime_pb2.Tensor(
            compression=code, dtype=dtype, size=size, buffer=buffer, requires_grad=requires_grad, chunks=chunks
        )
    )


@inputs(150)
@given(data=st.data())
def test_a_state_in_pieces(data: st.DataObject) -> None:
    """Pieces that are missing, repeated or out of order make no tensor other than of the claimed size."""
    wire = encode(torch.arange(64, dtype=torch.float32), CODES[0])
    pieces = list(split_for_streaming(wire, 32))
    chosen = data.draw(st.lists(st.sampled_from(pieces), min_size=1, max_size=20))
    tensor = decoded(combine_from_streaming(chosen))
    assert tensor is None or tensor.numel() in (0, 64)


@inputs(150)
@given(NUMBERS)
def test_a_weight_of_any_kind_arrives_as_a_number(weight: Any) -> None:
    """A message holds a 64-bit float: nothing else can arrive as a weight."""
    try:
        message = averaging_pb2.AveragingData(weight=float(weight))
    except OverflowError:
        return
    assert isinstance(averaging_pb2.AveragingData.FromString(message.SerializeToString()).weight, float)


class Everybody:
    """Takes everybody for a member."""

    def token_of(self, peer: str) -> AccessToken:
        """A token of a peer's."""
        return AccessToken("Ada", "device", peer, "key", "trainer", RUN, NOW, NOW + 60, "a" * 64)

    async def admitted(self, peers: Collection[str], _roles: object) -> set[str]:
        """The members among the peers."""
        return set(peers)


ADA, MALLORY = (PeerID(name).to_base58() for name in (b"ada", b"mallory"))
SAID = Declaration(run=RUN, era=0, step=0, compression="none", powersgd_rank=0, patience_s=1.0)


def meet(word: bytes, requests: Sequence[bytes], public_key: str) -> None:
    """Let Ada follow Mallory, who says this word, while Mallory follows Ada with these messages."""
    unhandled: list[Any] = []

    async def lead(_caller: str, _requests: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
        yield word

    async def said() -> AsyncIterator[bytes]:
        for request in requests:
            yield request
            await asyncio.sleep(1.0)

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unhandled.append(context))
        network = MemoryNetwork(random.Random(0))
        ada, mallory = (network.join(name, Line(1e7, 1e7, 0.01)) for name in (ADA, MALLORY))
        directory: Any = Everybody()
        meetings = Meetings(
            ada,
            "meet",
            directory,
            lambda gathered, _: open_declaration(gathered, public_key, RUN),
            lambda _: b"signature",
            lambda _: True,
        )
        await mallory.serve("meet", lead)
        await meetings.serve()
        meetings.want(Requirements(leaders=(MALLORY, ADA)))
        meetings.declare((0, 0), b"")
        search = asyncio.create_task(meetings.look_for_group(asyncio.Event()))
        async with aclosing(mallory.stream(ADA, "meet", said())) as words:
            with suppress(asyncio.TimeoutError):
                assert (await asyncio.wait_for(anext(words, b""), DECLARE_S))[:1] in (b"", COUNT)
        await asyncio.wait({search}, timeout=DECLARE_S)
        if search.done():
            group = search.result()
            assert set(group.peers) >= {ADA, MALLORY}
            assert len(set(group.peers)) == len(group.peers) == len(group.declared)
        search.cancel()
        await asyncio.wait({search})

    run_virtual(main())
    assert unhandled == []


@inputs(50)
@given(data=st.data())
def test_what_a_leader_and_its_followers_say(device: Credentials, data: st.DataObject) -> None:
    """A word is a group with both of them, or the leader is passed over; a follower is heard, or gets no answer."""
    patch_hivemind()  # as before any node
    nested = tuples_in_tuples(data.draw(st.integers(0, 2000)))
    word = DeclaredGroup(
        data.draw(st.binary(max_size=30)),
        (ADA, MALLORY, *data.draw(st.lists(st.text(max_size=40), max_size=2))),
        tuple(data.draw(st.lists(st.binary(max_size=20), min_size=2, max_size=4))),
    ).message()
    declared = SAID.signed(device.device_key.sign)
    tag = st.sampled_from([b"", REPORT, FULL, HOLDS, HOLDS + bytes(52)])
    reports = [
        data.draw(tag) + said for said in data.draw(st.lists(st.binary(max_size=40) | st.just(nested), max_size=2))
    ]
    begins = data.draw(st.sampled_from([b"", BEGIN, BEGIN, BEGIN, COUNT, GONE_ON, CONFIRMED, VOID]))
    declares = data.draw(spoilt(declared) | st.just(declared) | st.binary(max_size=200) | st.just(nested))
    meet(
        begins + data.draw(spoilt(word) | st.just(word) | st.binary(max_size=200)),
        data.draw(st.sampled_from([[declares, *reports], [*reports, declares]])),
        device.device_key.public_key.decode(),
    )


@inputs(300)
@given(data=st.data())
def test_reports_that_followers_send(data: st.DataObject) -> None:
    """Each is a record, or is refused."""
    patch_hivemind()  # as before any node
    nested = tuples_in_tuples(data.draw(st.integers(0, 2000)))
    report = PeerRecord.unpack(a_record()).report()
    with suppress(ValueError):
        found = PeerRecord.read_report(data.draw(spoilt(report) | st.binary(max_size=64) | st.just(nested)))
        assert found.samples >= 0


HUGE = """
import resource
from hivemind.proto import runtime_pb2
from peer.reduction.compression import ROOTS, decode
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20),) * 2)
for code in (0, 1, 2, 3, 4, 5, 16, 17):
    for dtype in ("float32", "float64", "U99999999", "S999999999", "object", "V99999999"):
        for size in ([2**31], [2**32 - 1] * 8, [2**16, 2**16, 4], [1], [100]):
            for buffer in (b"", b"\\0" * 200, b"\\0" * 400):
                try:
                    decode(runtime_pb2.Tensor(compression=code, dtype=dtype, size=size, buffer=buffer), ROOTS)
                except ValueError:
                    pass
print("bounded")
"""


def test_what_a_tensor_claims_costs_no_memory() -> None:
    """Tensors that declare themselves huge are refused by a process that has 256 MB left."""
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run([sys.executable, "-c", HUGE], capture_output=True, text=True, cwd=root, check=False)
    assert ended.stdout == "bounded\n", ended.stderr[-2000:]
