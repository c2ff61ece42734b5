"""The APAR strategy: at a fork the parent goes on with the next item, the child writes its details.

A fork has no topic and no promised length, and no thread ever joins another: no thread sees the
text of its child. A fork is written with PASTA's opening promise piece, which every model with tag
pieces has, and is read by a grammar of its own (``Form.FORKED``).

Source: Liu et al. 2024, "APAR: LLMs Can Do Auto-Parallel Auto-Regressive Decoding",
arXiv 2401.06761, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

from pasta_lm.engines.request import Request, SamplingParams
from pasta_lm.interpreter.positions import PositionStrategy
from pasta_lm.language.parser import Form

NAME = "apar"
# A fork promises no length, so no gap can be computed: parent and child both count on from it.
POSITIONS = PositionStrategy.CONTINUE


def request(prompt: Sequence[int], params: SamplingParams) -> Request:
    return Request(
        prompt=prompt, params=params, positions=POSITIONS, form=Form.FORKED, strategy=NAME
    )
