"""Chat models behind OpenAI-compatible servers: requests, retries, pace, cost limits, one pool."""
