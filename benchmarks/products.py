"""Time the products of a model's layers for several rows, kernel by kernel.

    python benchmarks/products.py [--rows 1,2,4,8,16] [--layers 12]

Random weights in the shapes of SmolLM2-135M's layers, one thread. Prints JSON: milliseconds for 30
layers, the least of seven runs, by dtype, kernel and rows. int8 is ``torch._weight_int8pack_mm``
with activations of the dtype; compiled kernels are those of the engine, from C.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from pasta_lm.engines.cpu.huge_pages import HugePages
from pasta_lm.engines.cpu.kernels import PACKED_ROWS, Linear
from pasta_lm.engines.cpu.linear import CompiledLinear, fits
from pasta_lm.machine import describe_machine
from pasta_lm.models.eight_bits import INT8

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))  # outputs and inputs of a layer
NUM_LAYERS = 30
NUM_RUNS = 7

Product = Callable[[Tensor], Tensor]


def int8(weight: Tensor) -> Product:
    """Return the product with a weight rounded to 8 bits, one scale a row."""
    scales = weight.float().abs().amax(1) / 127
    rounded = (weight.float() / scales[:, None]).round().to(torch.int8)
    scales = scales.to(weight.dtype)
    return lambda x: torch._weight_int8pack_mm(x[0], rounded, scales)


def packed(weight: Tensor) -> Product:
    """Return oneDNN's product with a weight in its own layout."""
    layout = torch.ops.mkldnn._reorder_linear_weight(weight, PACKED_ROWS)
    return lambda x: torch.ops.mkldnn._linear_pointwise(x, layout, None, "none", [], "")


def compiled(weight: Tensor, pages: HugePages) -> Product:
    """Return the engine's product with a weight as it lies in memory."""
    return partial(CompiledLinear(pages.copy(weight), None, None, weight.dtype), residual=None)


def compiled_int8(weight: Tensor, pages: HugePages) -> Product:
    """Return the engine's product with a weight rounded to 8 bits."""
    codes, scales = INT8.quantise(weight.float())
    return partial(CompiledLinear(pages.copy(codes), None, scales, weight.dtype), residual=None)


KERNELS: dict[str, Callable[[Tensor], Product]] = {
    "default": lambda weight: lambda x: F.linear(x, weight),
    "packed": packed,
    "int8": int8,
    "compiled": partial(compiled, pages=HugePages()),
    "compiled int8": partial(compiled_int8, pages=HugePages()),
    "chosen": lambda weight: Linear([weight], [None]),
}


def least_ms(products: list[list[Product]], inputs: list[Tensor]) -> float:
    """Return the milliseconds of all layers, scaled to those of the model."""
    spent = []
    for _ in range(NUM_RUNS):
        began = time.perf_counter()
        for layer in products:
            for product, x in zip(layer, inputs, strict=True):
                product(x)
        spent.append(time.perf_counter() - began)
    return 1e3 * min(spent) * NUM_LAYERS / len(products)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", default="1,2,4,8,16")
    parser.add_argument("--kernels", default=",".join(KERNELS))
    parser.add_argument("--layers", type=int, default=12, help="more than the processor's cache")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = [int(count) for count in args.rows.split(",")]
    found: dict[str, dict[str, dict[int, float]]] = {}
    for dtype in (torch.float32, torch.bfloat16):
        weights = [
            [0.02 * torch.randn(shape).to(dtype) for shape in SHAPES] for _ in range(args.layers)
        ]
        kernels = found[str(dtype).removeprefix("torch.")] = {}
        for name, kernel in KERNELS.items():
            if name not in args.kernels.split(","):
                continue
            if name.startswith("compiled") and not fits(weights[0][0]):
                continue  # no C compiler
            products = [[kernel(weight) for weight in layer] for layer in weights]
            kernels[name] = {
                count: round(
                    least_ms(products, [torch.randn(1, count, i).to(dtype) for _, i in SHAPES]), 2
                )
                for count in rows
            }
    print(json.dumps({"machine": describe_machine(), "layers_ms": found}, indent=1))


if __name__ == "__main__":
    main()
