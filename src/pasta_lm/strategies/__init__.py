"""Ways to answer: one engine, one kind of trace, one file a strategy."""
