"""Fields of documents: JSON mode against parts that are decoded at the same time."""
