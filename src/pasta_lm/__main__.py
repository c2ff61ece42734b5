"""Run the command ``pasta`` as ``python -m pasta_lm``."""

from __future__ import annotations

from pasta_lm.cli import main

if __name__ == "__main__":
    main()
