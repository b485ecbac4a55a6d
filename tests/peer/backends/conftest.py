"""Rules of this folder: the tests of GPUs are collected only where there is one, so that none is ever skipped."""

from __future__ import annotations

import torch

collect_ignore = [] if torch.cuda.is_available() else ["test_cuda.py"]
