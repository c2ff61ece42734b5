"""Ways to answer a prompt; all use one engine and one kind of trace. Here, their names."""

from __future__ import annotations

from pasta_lm.engines import Prompt as Prompt
from pasta_lm.interpreter.positions import PositionStrategy

PASTA, SEQUENTIAL, APAR = "pasta", "sequential", "apar"
# A fork promises no length, so no gap can be computed: parent and child both count on from it.
APAR_POSITIONS = PositionStrategy.CONTINUE
