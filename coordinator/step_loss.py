"""A step's loss out of what its devices report: the mean over samples, in which no single word weighs too much.

Losses are not receipted: nobody sees another's. But devices of one step have the same parameters and samples of the
same kind, so their losses lie close to each other, and what lies far from most of the samples is moved to the edge.
"""

from __future__ import annotations

from collections.abc import Sequence

SPREAD = 0.25  # of the median, either way: microbatches of few samples differ by some percent
LEAST_SPREAD = 0.05  # where the loss itself is close to nothing


def loss_sums(reported: Sequence[tuple[float, int]], before: float | None) -> tuple[float, int]:
    """The sum of losses times samples and the samples it is over, of (loss, samples); (0.0, 0) if there are none.

    `before` is the loss of the step before, if known: it decides where the samples are divided in equal halves.
    """
    reported = [(loss, samples) for loss, samples in reported if samples > 0]
    if not reported:
        return 0.0, 0
    middle = _median(sorted(reported), before)
    spread = SPREAD * middle + LEAST_SPREAD
    return sum(min(max(loss, middle - spread), middle + spread) * samples for loss, samples in reported), sum(
        samples for _, samples in reported
    )


def _median(ordered: Sequence[tuple[float, int]], before: float | None) -> float:
    """The loss that half of the samples lie below; of two such the one nearer to `before`, or the lower."""
    half, passed = sum(samples for _, samples in ordered) / 2, 0
    for place, (loss, samples) in enumerate(ordered):
        passed += samples
        if passed == half and before is not None:
            return min(loss, ordered[place + 1][0], key=lambda middle: abs(middle - before))
        if passed >= half:
            return loss
    raise AssertionError("half of the samples are passed before the last loss")
