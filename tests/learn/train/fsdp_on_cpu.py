"""Run ``pasta`` as one of several processes on CPUs whose weights FSDP spreads over them.

accelerate turns FSDP on for accelerators alone. Here it is told that a CPU is one; all else is what
``accelerate launch --use_fsdp`` does.
"""

from __future__ import annotations

from typing import Any

from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from pasta_lm.cli import main

_begin = AcceleratorState.__init__


def _begin_sharded(self: AcceleratorState, *args: Any, **kwargs: Any) -> None:
    _begin(self, *args, **kwargs)
    plugin = kwargs.get("fsdp_plugin")
    if plugin is not None and self.distributed_type is DistributedType.MULTI_CPU:
        self.distributed_type = DistributedType.FSDP
        self.fsdp_plugin = plugin
        PartialState._shared_state["distributed_type"] = DistributedType.FSDP


if __name__ == "__main__":
    AcceleratorState.__init__ = _begin_sharded  # type: ignore[method-assign]
    main()
