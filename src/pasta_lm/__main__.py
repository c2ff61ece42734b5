"""Let ``python -m pasta_lm`` be the command ``pasta``."""

from __future__ import annotations

from pasta_lm.cli import main

if __name__ == "__main__":
    main()
