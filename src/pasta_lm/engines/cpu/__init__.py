"""Faster execution of a model with the same logits; without this package everything still works.

``capture`` is the only entrance. Inside, the code depends on private names of torch (ATen
operations, oneDNN layouts), which may change with a release: whatever does not trace or does not
give the model's own logits is not used, and the model runs as it is.
"""

from pasta_lm.engines.cpu.tracing import capture

__all__ = ["capture"]
