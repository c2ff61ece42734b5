"""Where tests run Triton kernels: on a GPU if there is one, else in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch

from pasta_lm.engines.gpu.attention import has_triton

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

needs_kernels = pytest.mark.skipif(
    not has_triton() or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="needs Triton (pip install triton, Linux) and a GPU or its interpreter",
)
