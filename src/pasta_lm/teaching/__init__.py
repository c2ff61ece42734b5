"""``pasta teach``: a model learns PASTA-LANG from its own annotated answers."""

from pasta_lm.teaching.run import teach

__all__ = ["teach"]
