"""Products of a few rows with weights of eight bits on a GPU, by a Triton kernel.

Decoding reads each weight once for all rows, so a byte instead of two is up to half of the time.
The codes become numbers of the activations' dtype in registers, which holds them exactly; sums are
float32. Rows are padded to what a product in Triton takes at least, and do not see each other.
"""

from __future__ import annotations

import torch
from torch import Tensor

from pasta_lm.engines.cpu.eight_bits import MAX_FLOAT8_ROWS
from pasta_lm.engines.gpu.float8_kernel import product

_BLOCK_OUTPUTS = 16  # small: many instances for few outputs
_BLOCK_INPUTS = 256

# Legend: R rows, I inputs, O outputs.


class Float8Linear:
    """A linear layer that reads codes of eight bits.

    Args:
        codes: float8_e4m3fn [O, I], contiguous.
        scales: float32 [O].
        bias: [O], or None.
    """

    def __init__(self, codes: Tensor, scales: Tensor, bias: Tensor | None) -> None:
        self._codes, self._scales, self._bias = codes, scales, bias

    def __call__(self, x: Tensor, residual: Tensor | None) -> Tensor:
        """Return the product of x [1, R, I] plus residual [1, R, O]: [1, R, O]; R up to 16."""
        (num_outputs, num_inputs), num_rows = self._codes.shape, x.shape[1]
        x = x.contiguous()
        residual = None if residual is None else residual.contiguous()
        out = torch.empty((1, num_rows, num_outputs), dtype=x.dtype, device=x.device)
        product[(-(-num_outputs // _BLOCK_OUTPUTS),)](
            x, self._codes, self._scales, self._scales if self._bias is None else self._bias,
            x if residual is None else residual, out, num_rows, num_inputs, num_outputs,
            HAS_BIAS=self._bias is not None, HAS_RESIDUAL=residual is not None,
            BLOCK_R=MAX_FLOAT8_ROWS, BLOCK_O=_BLOCK_OUTPUTS, BLOCK_I=_BLOCK_INPUTS,
        )  # fmt: skip
        return out
