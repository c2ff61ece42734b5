"""Products of a few rows with weights of eight bits on a GPU, by a Triton kernel.

Decoding reads each weight once for all rows, so a byte instead of two is up to half of the time.
The codes become numbers of the activations' dtype in registers, exactly; sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from pasta_lm.engines.cpu.eight_bits import MAX_FLOAT8_ROWS

_BLOCK_OUTPUTS = 16  # small: many instances for few outputs
_BLOCK_INPUTS = 256

# Legend: R rows, I inputs, O outputs.


@triton.jit(do_not_specialize=["num_rows"])
def product(
    x, codes, scales, bias, residual, out, num_rows, num_inputs, num_outputs,
    HAS_BIAS: tl.constexpr, HAS_RESIDUAL: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_O: tl.constexpr, BLOCK_I: tl.constexpr,
):  # fmt: skip
    """Write [R, O] = x [R, I] times codes [O, I] transposed, scaled; one instance a block of O."""
    o, r = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O), tl.arange(0, BLOCK_R)
    is_row, is_output = r < num_rows, o < num_outputs
    total = tl.zeros((BLOCK_R, BLOCK_O), tl.float32)
    for start in range(0, num_inputs, BLOCK_I):
        i = start + tl.arange(0, BLOCK_I)
        is_input = i < num_inputs
        at_x, at_code = r[:, None] * num_inputs + i[None, :], i[:, None] + o[None, :] * num_inputs
        values = tl.load(x + at_x, mask=is_row[:, None] & is_input[None, :], other=0.0)
        code = tl.load(codes + at_code, mask=is_input[:, None] & is_output[None, :], other=0.0)
        total += tl.dot(values, code.to(values.dtype), input_precision="ieee")
    total *= tl.load(scales + o, mask=is_output, other=0.0)[None, :]
    if HAS_BIAS:
        total += tl.load(bias + o, mask=is_output, other=0.0).to(tl.float32)[None, :]
    at, is_out = r[:, None] * num_outputs + o[None, :], is_row[:, None] & is_output[None, :]
    result = total.to(out.dtype.element_ty)
    if HAS_RESIDUAL:
        result += tl.load(residual + at, mask=is_out, other=0.0)
    tl.store(out + at, result, mask=is_out)


class Float8Linear:
    """A linear layer that reads codes float8_e4m3fn [O, I], scales float32 [O] and a bias [O]."""

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
