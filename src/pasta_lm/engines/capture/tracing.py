"""Trace a model's forward pass into a flat list of operations, without its modules' overhead.

``rewrite`` shortens the list. Its logits are compared with those of the model before it is used;
if they differ, or if the model cannot be traced, the model runs as it is. Small models are bound
by dispatch, not by arithmetic, so most of their speed comes from here.
"""

from __future__ import annotations

import logging
from functools import cache

import torch
import transformers
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from pasta_lm.engines.capture.patterns import Argument, attend_joined, split_heads
from pasta_lm.engines.capture.rewrite import rewrite
from pasta_lm.engines.cpu.attention import Heads
from pasta_lm.engines.cpu.kernels import MAX_COPIED_ELEMENTS
from pasta_lm.engines.passes.attention import LayerCall, Pass, is_plain
from pasta_lm.engines.passes.runner import CachedPass, KeyRecorder, plain_logits
from pasta_lm.models.load import matrix_of

logger = logging.getLogger(__name__)

# Placeholders for the sizes N and W while tracing: primes that no model has as a size of its own,
# so that ``rewrite`` can tell them apart from the model's constants.
TRACED_TOKENS = 61
TRACED_WANTED = 53
CHECKED_TOKENS = (1, 2, 7, 40)  # for a large model, the first and the last
TOLERANCES = {torch.float32: 2e-4, torch.bfloat16: 6e-2, torch.float16: 2e-2}
"""Largest difference from the model itself, relative to the largest logit."""

# Legend: N tokens of the pass, W wanted rows, V vocabulary, H query heads, G key/value heads.


@cache
def _attend_operation() -> Argument:
    @torch.library.custom_op("pasta_lm::attend", mutates_args=())
    def attend(q_HND: Tensor, k_GND: Tensor, v_GND: Tensor, layer: int) -> Tensor:
        raise AssertionError("the traced operation is replaced before it runs")

    @attend.register_fake
    def _(q_HND: Tensor, k_GND: Tensor, v_GND: Tensor, layer: int) -> Tensor:
        return q_HND.new_empty(q_HND.shape[0], q_HND.shape[1], v_GND.shape[-1])

    return torch.ops.pasta_lm.attend.default


class TracingPass:
    """A pass that records an operation instead of attention, and keeps each layer's settings."""

    def __init__(self) -> None:
        self.calls: dict[int, LayerCall] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        self.calls[call.layer] = call
        out: Tensor = _attend_operation()(q_HND, k_GND, v_GND, call.layer)
        return out


class CapturedModel:
    """A model's forward pass as a flat list of operations."""

    def __init__(self, graph: fx.GraphModule, calls: dict[int, LayerCall]) -> None:
        self._calls = calls
        self._pass: Pass | None = None
        targets = {_attend_operation(): self._attend, attend_joined: self._attend_joined}
        for node in graph.graph.nodes:
            node.target = targets.get(node.target, node.target)
            node.meta.clear()  # found while tracing, of the weights as they were
        graph.recompile()
        self.graph = graph

    def _attend(self, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor, layer: int) -> Tensor:
        assert self._pass is not None
        return self._pass.attend(self._calls[layer], q_HND, k_GND, v_GND)

    def _attend_joined(
        self, joined_1NC: Tensor, rotation: tuple[Tensor, Tensor] | None, layer: int, *shape: int
    ) -> Tensor:
        run, call = self._pass, self._calls[layer]
        if isinstance(run, CachedPass) and run.is_on_cpu and is_plain(call):
            heads = Heads.joined(joined_1NC[0], *shape)
            return run.attend_compiled(call, heads, rotation)[None]
        assert run is not None
        q_HND, k_GND, v_GND = split_heads(joined_1NC, rotation, *shape)
        out_HND = run.attend(call, q_HND, k_GND, v_GND)
        return out_HND.transpose(0, 1).flatten(1)[None]

    def __call__(
        self, tokens_N: Tensor, positions_N: Tensor, wanted_W: Tensor, run: Pass
    ) -> Tensor:
        """Return the logits of the wanted rows, dtype of the model, [W, V]."""
        self._pass = run
        try:
            out: Tensor = self.graph(tokens_N, positions_N, wanted_W)
        finally:
            self._pass = None
        return out


def capture(model: transformers.PreTrainedModel) -> CapturedModel | None:
    """Return a faster function with the logits of a model, or None if there is no exact one.

    The model must be in evaluation mode, with ``pasta_attention``.
    """
    try:
        captured = _trace(model)
        is_large = model.num_parameters() > MAX_COPIED_ELEMENTS
        sizes = CHECKED_TOKENS[:: len(CHECKED_TOKENS) - 1 if is_large else 1]
        difference = max(_difference(model, captured, num) for num in sizes)
        if not difference <= TOLERANCES.get(model.dtype, 0.0):
            raise ValueError(f"differs by {difference:.2g}")
    except Exception as exc:  # a foreign architecture may do anything: it runs as it is then
        logger.info("%s runs uncaptured: %s", type(model).__name__, exc)
        return None
    return captured


def _trace(model: transformers.PreTrainedModel) -> CapturedModel:
    tracing = TracingPass()
    # It raises what it reports: an operation, such as one of experts, that cannot be traced.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

    def forward(tokens_N: Tensor, positions_N: Tensor, wanted_W: Tensor) -> Tensor:
        return plain_logits(model, tokens_N, positions_N, wanted_W, tracing)

    sizes = (TRACED_TOKENS, TRACED_TOKENS, TRACED_WANTED)
    inputs = [torch.zeros(size, dtype=torch.int64, device=model.device) for size in sizes]
    with torch.no_grad():
        graph = make_fx(forward, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        rewrite(graph, TRACED_TOKENS, TRACED_WANTED, _attend_operation())
    return CapturedModel(graph, tracing.calls)


def _difference(
    model: transformers.PreTrainedModel, captured: CapturedModel, num_tokens: int
) -> float:
    generator = torch.Generator().manual_seed(num_tokens)
    num_rows = len(matrix_of(model.get_input_embeddings()))
    tokens = torch.randint(num_rows, (num_tokens,), generator=generator).to(model.device)
    positions = torch.arange(num_tokens, device=model.device) + 5
    wanted = torch.arange(0, num_tokens, 2, device=model.device)
    with torch.inference_mode():
        expected = plain_logits(model, tokens, positions, wanted, KeyRecorder()).float()
        logits = captured(tokens, positions, wanted, KeyRecorder()).float()
    return float((logits - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
