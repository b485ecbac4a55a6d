"""The form of every filter of documents, whatever it looks at: hashes, copies, lengths, perplexities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]  # (documents,), true for those that stay
DocumentFilter = Callable[[Sequence[str]], Mask]
