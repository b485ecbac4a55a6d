"""The common type of all document filters: by hash, duplication, length or perplexity."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]  # (documents,), True for kept documents
DocumentFilter = Callable[[Sequence[str]], Mask]
