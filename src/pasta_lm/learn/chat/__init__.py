"""Chat models behind OpenAI-compatible servers: requests, retries, pace, one pool."""
