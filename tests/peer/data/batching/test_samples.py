"""Special tokens, segments and labels around packed tokens."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import example, given, strategies as st

from peer.config.run import RunConfig
from peer.data.batching.samples import (
    IGNORED,
    ContiguousPacker,
    PairPacker,
    Samples,
    cut_pieces,
    join_samples,
    open_packer,
)
from peer.data.tokenization.encoding import EncodedChunk
from peer.data.tokenization.special_tokens import SpecialIds

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
FIRST_TOKEN = 10  # the ids before it are special
Document = list[int]  # the number of tokens of each sentence
DOCUMENTS = st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), max_size=12)


def packer_of(capacity: int, swap_probability: float, seed: int = 0) -> PairPacker:
    """A packer of samples with so many tokens of text."""
    return PairPacker(capacity + PairPacker.special_places, SPECIAL, np.random.default_rng(seed), swap_probability)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_pair_has_a_separator_after_each_segment(swapped: bool) -> None:
    """[CLS] A [SEP] B [SEP], with B and its separator marked as the second segment; label 1 is a swapped pair."""
    samples = packer_of(4, float(swapped)).pack(chunk_of([[1, 3]]))
    assert samples.token_type_ids is not None
    assert samples.sop_labels is not None
    first, second = ([11, 12, 13], [10]) if swapped else ([10], [11, 12, 13])
    assert samples.input_ids.tolist() == [[2, *first, 3, *second, 3]]
    assert samples.token_type_ids.tolist() == [[0] * (len(first) + 2) + [1] * (len(second) + 1)]
    assert samples.sop_labels.tolist() == [int(swapped)]
    dtypes = samples.input_ids.dtype, samples.token_type_ids.dtype, samples.sop_labels.dtype
    assert dtypes == (np.int32, np.int8, np.int64)


def test_a_text_of_its_own_has_one_segment_and_no_label() -> None:
    """[CLS] text [SEP], for masked language modelling alone."""
    run = {"objective": {"name": "mlm"}, "data": {"sequence_length": 16}}
    samples = open_packer(RunConfig.from_mapping(run), SPECIAL, np.random.default_rng(0)).pack(chunk_of([[14]]))
    assert samples.input_ids.tolist() == [[2, *range(10, 24), 3]]
    assert samples.input_ids.dtype == np.int32
    assert samples.token_type_ids is samples.sop_labels is None


@pytest.mark.parametrize(
    ("architecture", "objective", "first", "last", "special_places"),
    [
        ("albert", "mlm+sop", SPECIAL.cls, SPECIAL.sep, 3),
        ("albert", "mlm", SPECIAL.cls, SPECIAL.sep, 2),
        ("roberta", "mlm", SPECIAL.cls, SPECIAL.sep, 2),
        ("gpt2", "clm", 10, None, 0),
    ],
)
def test_the_family_says_what_stands_around_a_text(
    architecture: str, objective: str, first: int, last: int | None, special_places: int
) -> None:
    """Encoders read between [CLS] and [SEP]; GPT-2 reads text and nothing else, up to the last place."""
    run = {"model": {"architecture": architecture}, "objective": {"name": objective}, "data": {"sequence_length": 32}}
    packer = open_packer(RunConfig.from_mapping(run), SPECIAL, np.random.default_rng(0))
    ends = np.array([20, 40])
    samples = packer.pack(EncodedChunk(np.arange(10, 50, dtype=np.int32), ends, np.array([40])))
    assert packer.special_places == special_places
    assert samples.input_ids.shape == (1, 32)
    assert samples.input_ids[0, 0] == first
    assert samples.input_ids[0, -1] == (41 if last is None else last)
    assert len(packer.carried) == 40 + (objective != "mlm+sop") - (32 - special_places)
    assert (samples.sop_labels is not None) == (objective == "mlm+sop")


@pytest.mark.parametrize("objective", ["mlm+sop", "mlm"])
def test_samples_can_be_divided_and_joined(objective: str) -> None:
    """Two parts of the same samples, joined, are those samples again, without segments and labels if they had none."""
    run = {"objective": {"name": objective}, "data": {"sequence_length": 16}}
    samples = open_packer(RunConfig.from_mapping(run), SPECIAL, np.random.default_rng(0)).pack(chunk_of([[9, 9, 30]]))
    joined = join_samples(samples[:1], samples[1:])
    assert len(joined) == len(samples) > 1
    for name, array in vars(samples).items():
        assert np.array_equal(getattr(joined, name), array)


def chunk_of(documents: list[Document], first_token: int = FIRST_TOKEN) -> EncodedChunk:
    """Documents whose tokens are numbered through, so that each token says where it came from."""
    sentences = [length for document in documents for length in document]
    total = sum(sentences)
    return EncodedChunk(
        tokens=np.arange(first_token, first_token + total, dtype=np.int32),
        sentence_ends=np.array(list(accumulate(sentences)), np.int64),
        document_ends=np.array(list(accumulate(map(sum, documents))), np.int64),
    )


def segments(samples: Samples, row: int) -> tuple[list[int], list[int]]:
    """A sample's two segments, without the special tokens."""
    assert samples.token_type_ids is not None
    ids, types = samples.input_ids[row], samples.token_type_ids[row]
    return ids[types == 0][1:-1].tolist(), ids[types == 1][:-1].tolist()


def tokens_of(samples: Samples) -> list[list[int]]:
    """Each sample's tokens of text."""
    return [first + second for first, second in (segments(samples, row) for row in range(len(samples)))]


def is_swapped(samples: Samples) -> np.ndarray:
    """(samples,) whether the second passage comes first."""
    return samples.sop_labels == 1


def pack_all(chunks: list[list[Document]], capacity: int, seed: int) -> tuple[list[Samples], PairPacker, int]:
    """Pack chunk after chunk; what came out, the packer, and the number of tokens that went in."""
    packer = packer_of(capacity, 0.5, seed)
    packed, tokens = [], 0
    for documents in chunks:
        chunk = chunk_of(documents, first_token=FIRST_TOKEN + tokens)
        tokens += len(chunk.tokens)
        packed.append(packer.pack(chunk))
    return packed, packer, tokens


@given(chunks=st.lists(DOCUMENTS, max_size=4), capacity=st.integers(2, 50), seed=st.integers(0, 9))
def test_every_token_comes_out_once(chunks: list[list[Document]], capacity: int, seed: int) -> None:
    """In either segment, of which none is empty, but for fewer than one sample that wait; and nothing is padding."""
    packed, packer, count = pack_all(chunks, capacity, seed)
    pairs = [segments(samples, row) for samples in packed for row in range(len(samples))]
    assert all(map(all, pairs))
    out = Counter(token for first, second in pairs for token in first + second)
    out.update(packer.carried.tolist())
    assert out == Counter(range(FIRST_TOKEN, FIRST_TOKEN + count))
    assert len(packer.carried) < capacity


@given(documents=DOCUMENTS, capacity=st.integers(2, 50), seed=st.integers(0, 9))
def test_a_swapped_pair_is_consecutive_text_of_one_document(
    documents: list[Document], capacity: int, seed: int
) -> None:
    """What stands first in a swapped sample follows, in its document, on what stands second."""
    chunk = chunk_of(documents)
    packed = packer_of(capacity, 1.0, seed).pack(chunk)
    ends = chunk.document_ends + FIRST_TOKEN
    for row in np.flatnonzero(is_swapped(packed)):
        later, rest = segments(packed, int(row))
        assert later == list(range(later[0], later[-1] + 1))
        earlier = rest[: rest.index(later[0] - 1) + 1]
        assert earlier == list(range(earlier[0], later[0]))
        assert len(set(np.searchsorted(ends, earlier + later, "right").tolist())) == 1


def test_pairs_break_between_sentences_and_end_with_one() -> None:
    """Both passages are whole sentences in either order, so that where they begin and end betrays nothing."""
    documents = [[7, 9, 6, 8, 5]] * 40
    chunk = chunk_of(documents)
    packed = packer_of(24, 0.5).pack(chunk)
    starts = {FIRST_TOKEN, *(chunk.sentence_ends + FIRST_TOKEN).tolist()}
    for row in range(len(packed)):
        first, second = segments(packed, row)
        assert first[0] in starts
        assert second[0] in starts
        assert first[-1] + 1 in starts
    assert 0.3 < is_swapped(packed).mean() < 0.7


def test_a_short_document_shares_a_sample_with_filler() -> None:
    """Leftovers fill samples whose pair is from another document, after the pair."""
    packed = packer_of(10, 0.0).pack(chunk_of([[2], [4, 4], [2]]))
    assert len(packed) == 1
    assert segments(packed, 0) == ([12, 13, 14, 15], [16, 17, 18, 19, 10, 11])


def test_what_does_not_fit_starts_the_next_samples() -> None:
    """The tokens left over come first in the filler of the next chunk."""
    packer = packer_of(10, 0.0)
    packer.pack(chunk_of([[4, 4], [5]]))
    assert packer.carried.tolist() == [20, 21, 22]
    following = packer.pack(chunk_of([[4, 3]], first_token=30))
    assert tokens_of(following) == [[*range(30, 37), 20, 21, 22]]


def test_a_sentence_longer_than_a_sample_is_cut() -> None:
    """Each full sample of it is a piece of its own, and the rest goes on with the next sentence."""
    starts, ends = cut_pieces(chunk_of([[25, 3, 4], [6]]), 10, np.array([10, 10]))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 10), (10, 20), (20, 28), (28, 32), (32, 38)]


def test_a_sentence_that_does_not_fit_after_the_first_begins_a_piece() -> None:
    """The first sentence of all is a piece, too."""
    starts, ends = cut_pieces(chunk_of([[3, 6]]), 8, np.array([8]))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 3), (3, 9)]


def test_a_limit_of_first_pieces_moves_the_others() -> None:
    """A first sentence above its document's limit is no reason to cut it."""
    chunk = chunk_of([[3, 3, 3, 3, 3], [5, 4, 4]])
    starts, ends = cut_pieces(chunk, 9, np.array([7, 2]))
    assert list(zip(starts.tolist(), ends.tolist(), strict=True)) == [(0, 6), (6, 15), (15, 24), (24, 28)]


def test_each_pass_over_a_long_document_has_other_pieces() -> None:
    """So pairs begin at every sentence in the end, but for the last ones."""
    packer, chunk = packer_of(24, 0.0), chunk_of([[5] * 40])
    begun = {tokens[0] for _ in range(60) for tokens in tokens_of(packer.pack(chunk))}
    assert begun >= set(range(FIRST_TOKEN, FIRST_TOKEN + 150, 5))


def test_documents_are_cut_apart_from_each_other() -> None:
    """Each has a draw of its own."""
    packer = packer_of(24, 0.0)
    draws = [packer._draw_first_limits(np.array([200, 400])).tolist() for _ in range(20)]
    assert any(first != second for first, second in draws)


def test_a_short_document_is_one_piece_in_each_pass() -> None:
    """It fits into a sample as a whole."""
    packer, chunk = packer_of(24, 0.0), chunk_of([[8, 8, 8]])
    assert {tuple(tokens_of(packer.pack(chunk))[0]) for _ in range(20)} == {tuple(range(FIRST_TOKEN, FIRST_TOKEN + 24))}


def test_a_piece_of_two_sentences_goes_before_one_of_a_single_sentence() -> None:
    """Of equally long pieces the one that can be broken between sentences is broken."""
    packer = packer_of(8, 0.0)
    anchors = packer._choose_anchors(np.array([0, 8]), np.array([8, 16]), np.array([8, 12, 16]), samples=1)
    assert (anchors.starts.tolist(), anchors.breaks.tolist()) == ([8], [4])


@given(documents=DOCUMENTS, seed=st.integers(0, 9))
@example(documents=[[1], [1, 1, 17, 30, 2, 1]], seed=0)  # the drawn place is the anchor's first token
def test_an_anchor_breaks_at_the_sentence_end_nearest_to_a_place_in_its_middle(
    documents: list[Document], seed: int
) -> None:
    """One inside the anchor, the earlier of two equally near; where there is none, at the place itself."""
    chunk = chunk_of(documents)
    starts, ends = cut_pieces(chunk, 50, np.full(len(documents), 50))
    breaks = packer_of(50, 0.5, seed)._choose_breaks(starts, ends - starts, chunk.sentence_ends)
    shares = np.random.default_rng(seed).uniform(0.25, 0.75, len(starts))
    for start, end, share, found in zip(starts.tolist(), ends.tolist(), shares.tolist(), breaks.tolist(), strict=True):
        place = start + int(share * (end - start))
        inner = [sentence_end for sentence_end in chunk.sentence_ends.tolist() if start < sentence_end < end]
        within = min(max(place, start + 1), max(start + 1, end - 1))
        assert start + found == min(inner, key=lambda inside: (abs(inside - place), inside), default=within)


@pytest.mark.parametrize(("length", "places"), [(1, {1}), (2, {1}), (3, {1, 2}), (100, set(range(25, 75)))])
def test_a_single_sentence_breaks_anywhere_in_its_middle(length: int, places: set[int]) -> None:
    """Both parts hold tokens, unless there is one token only."""
    starts = np.arange(0, 2000 * length, length)
    packer = packer_of(max(2, length), 0.5)
    assert set(packer._choose_breaks(starts, np.full(2000, length), starts + length).tolist()) == places


def test_only_what_has_two_sentences_has_an_order_and_is_swapped() -> None:
    """The halves of one sentence would betray theirs: it begins with a capital and ends with a full stop."""
    packer, ends = packer_of(4, 1.0), np.array([1, 3, 6, 10])
    anchors = packer._choose_anchors(np.array([0, 1, 3, 6]), ends, np.array([1, 2, 3, 6, 9, 10]), samples=4)
    assert anchors.lengths.tolist() == [1, 2, 3, 4]
    assert anchors.has_order.tolist() == anchors.swapped.tolist() == [False, True, False, True]
    packed = packer_of(12, 0.5).pack(chunk_of([[8]] * 40 + [[5, 6]] * 40))
    has_order = packed.sop_labels != IGNORED
    for row in range(len(packed)):
        first, _ = segments(packed, row)
        assert has_order[row] == (min(first) >= FIRST_TOKEN + 8 * 40)
    assert 0.3 < is_swapped(packed)[has_order].mean() < 0.7


def test_without_swapping_every_pair_is_in_order() -> None:
    """A packer that is told to swap nothing leaves all tokens in their order."""
    packed = packer_of(8, 0.0).pack(chunk_of([[4, 4]] * 20))
    assert not is_swapped(packed).any()
    assert (np.diff(tokens_of(packed), axis=1) == 1).all()


def test_the_same_seed_packs_the_same_samples() -> None:
    """Randomness comes from the generator that is passed in, and from nowhere else."""
    one, two, other = (pack_all([[[5, 6, 7]] * 30], 16, seed)[0][0] for seed in (1, 1, 2))
    assert (one.input_ids == two.input_ids).all()
    assert (one.input_ids != other.input_ids).any()


def test_a_sample_needs_room_for_two_segments() -> None:
    """A capacity of one token is the caller's mistake."""
    with pytest.raises(ValueError, match="two tokens"):
        packer_of(1, 0.5)


SEPARATOR = -1


def contiguous_packer(capacity: int, seed: int = 0) -> ContiguousPacker:
    """A packer without sentence order: a plain run of text without a frame, cut into full samples."""
    return ContiguousPacker(capacity, SPECIAL, np.random.default_rng(seed), framed=False, between=(SEPARATOR,))


def first_token(row: list[int]) -> float:
    """Where a sample stands in the text; one that begins with a separator stands just before its first token."""
    return row[0] if row[0] != SEPARATOR else row[1] - 0.5 if len(row) > 1 else 0.0


@given(chunks=st.lists(st.lists(st.integers(1, 30), max_size=8), max_size=5), capacity=st.integers(2, 40))
def test_samples_laid_end_to_end_are_the_text(chunks: list[list[int]], capacity: int) -> None:
    """Every document's tokens come out once and in order, a separator after each; what waits would fill no sample."""
    packer, rows, expected, tokens = contiguous_packer(capacity), list[list[int]](), list[int](), 0
    for lengths in chunks:
        chunk = chunk_of([[length] for length in lengths], tokens)
        rows += sorted(packer.pack(chunk).input_ids.tolist(), key=first_token)
        for length in lengths:
            expected += [*range(tokens, tokens + length), SEPARATOR]
            tokens += length
    assert [token for row in rows for token in row] + packer.carried.tolist() == expected
    assert {len(row) for row in rows} <= {capacity}
    assert len(packer.carried) < capacity


def test_samples_of_one_text_do_not_follow_each_other() -> None:
    """A microbatch is mixed: the samples come in random order, by the generator that is passed in."""
    orders = []
    for seed in (0, 0, 1):
        orders.append(contiguous_packer(10, seed).pack(chunk_of([[1000]])).input_ids[:, 0].tolist())
    assert orders[0] == orders[1] != orders[2]
    assert orders[0] != sorted(orders[0])
