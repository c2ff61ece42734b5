"""Models behind an OpenAI-compatible HTTP server: asked with retries, and played by a script."""

from __future__ import annotations
