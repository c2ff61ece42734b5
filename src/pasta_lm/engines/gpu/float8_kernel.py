"""The Triton kernel of products with weights of eight bits, for the few rows of a decoding pass."""

from __future__ import annotations

import triton
import triton.language as tl

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
