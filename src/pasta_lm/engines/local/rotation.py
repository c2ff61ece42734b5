"""Move cached keys to other positions by the difference of their rotary angles.

Which frequencies a layer uses is found by probing, not by reading configurations: one token alone
at two positions must give keys that differ by exactly the rotation that is claimed. A layer whose
keys do not change with position has none; a layer that fits nothing makes ``rotate`` unavailable.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from pasta_lm.engines.local.attention import LayerCall, attend
from pasta_lm.errors import UnsupportedModelError

# Legend: G key/value heads, K keys, D head size, F frequencies (rotary dimensions / 2).

PROBE_POSITIONS = (3, 20)  # far enough apart to turn every frequency visibly in float32
PROBE_TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 4e-2, torch.float16: 5e-3}
"""Largest difference of keys, relative to the largest, that is rounding; a wrong angle gives 1."""


@dataclass(frozen=True, slots=True)
class Rotation:
    """The rotation of one layer's keys with position."""

    frequencies_F: Tensor  # float32 [F], radians per position
    is_interleaved: bool  # pairs (0, 1), (2, 3) ... instead of halves (0, F), (1, F + 1)

    def turn(self, keys_GKD: Tensor, offsets_K: Tensor) -> Tensor:
        """Return keys [G, K, D] moved by int64 [K] positions each; computed in float32."""
        angles_KF = offsets_K[:, None].float() * self.frequencies_F
        cos, sin = angles_KF.cos(), angles_KF.sin()
        num_rotary = 2 * len(self.frequencies_F)
        rotary, rest = keys_GKD[..., :num_rotary].float(), keys_GKD[..., num_rotary:]
        if self.is_interleaved:
            a, b = rotary[..., 0::2], rotary[..., 1::2]
            turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
        else:
            a, b = rotary.chunk(2, dim=-1)
            turned = torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)
        return torch.cat((turned.to(keys_GKD.dtype), rest), dim=-1)


class KeyRecorder:
    """A pass that attends causally over its own tokens and keeps each layer's keys and values."""

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}

    def attend(self, call: LayerCall, q_HND: Tensor, k_GND: Tensor, v_GND: Tensor) -> Tensor:
        """Attend causally, and keep the keys and values of the layer."""
        self.keys[call.layer], self.values[call.layer] = k_GND, v_GND
        length = q_HND.shape[1]
        causal = torch.ones(length, length, device=q_HND.device).tril().bool()
        mask = torch.zeros(length, length, dtype=q_HND.dtype, device=q_HND.device)
        return attend(call, q_HND, k_GND, v_GND, mask.masked_fill(~causal, -1e4))


def probe(model: nn.Module, token: int, position: int) -> KeyRecorder:
    """Return the keys and values [G, 1, D] of one token that stands alone at a position."""
    device = next(model.parameters()).device
    recorder = KeyRecorder()
    with torch.inference_mode():
        model(
            input_ids=torch.tensor([[token]], device=device),
            position_ids=torch.tensor([[position]], device=device),
            use_cache=False,
            pasta_pass=recorder,
        )
    return recorder


def find_rotations(model: nn.Module) -> dict[int, Rotation | None]:
    """Return the rotation of each layer's keys with position, or None for a layer without one.

    Raises:
        UnsupportedModelError: a layer whose keys fit none of the model's own frequencies.
    """
    first, second = PROBE_POSITIONS
    before, after = (probe(model, 1, position).keys for position in (first, second))
    candidates: list[Rotation | None] = [None, *_candidates(model)]
    offset = torch.tensor([second - first], device=next(iter(before.values())).device)
    rotations: dict[int, Rotation | None] = {}
    for layer, key in before.items():
        errors = [_error(candidate, key, after[layer], offset) for candidate in candidates]
        if min(errors) > PROBE_TOLERANCES[key.dtype]:
            raise UnsupportedModelError(
                f"positions 'rotate' are not exact for layer {layer} of {type(model).__name__}: "
                "its keys do not turn with position by any of the model's frequencies",
                hint="use --positions predict or continue",
            )
        rotations[layer] = candidates[errors.index(min(errors))]
    return rotations


def _error(rotation: Rotation | None, before: Tensor, after: Tensor, offset: Tensor) -> float:
    if rotation is None:
        moved = before
    elif 2 * len(rotation.frequencies_F) > before.shape[-1]:
        return float("inf")
    else:
        moved = rotation.turn(before, offset)
    scale = after.abs().max().clamp_min(1e-6)
    return float((moved.float() - after.float()).abs().max() / scale)


def _candidates(model: nn.Module) -> Iterator[Rotation]:
    for name, buffer in model.named_buffers():
        if name.endswith("inv_freq") and buffer.dim() == 1:
            for is_interleaved in (False, True):
                yield Rotation(buffer.float(), is_interleaved)
