"""The figures of a run, and the one rule of comparisons.

The clocks of two runs are divided only if both decoded the same text to its end with the same
model. Otherwise each has its own tokens a second, and a run that a limit cut says where.
"""

from __future__ import annotations

from hashlib import sha256

from pasta_lm.interpreter.trace import Kind, Role, Trace

Figures = dict[str, str | int | float | None]


def cut_at(trace: Trace) -> int | None:
    """Return the number of content tokens at which a limit cut the answer; None: it is whole."""
    return None if trace.finish_reason == "stop" else trace.num_content_tokens


def comparison_key(trace: Trace) -> str | None:
    """Return a key that is equal for runs whose clocks may be divided; None: no other's may."""
    if cut_at(trace) is not None:
        return None
    text = "".join(token.text for token in trace.in_reading_order() if token.role is not Role.TOPIC)
    clock = "simulated" if trace.kind is Kind.SIMULATED else "wall"
    facts = "\0".join([trace.model or "", trace.engine or "", clock, text])
    return sha256(facts.encode("utf-8", "replace")).hexdigest()[:16]


def speed_figures(trace: Trace, num_text_tokens: int) -> Figures:
    """Return the figures of one run.

    Args:
        trace: The run.
        num_text_tokens: Tokens of its text without tags.
    """
    rate = trace.tokens_per_s
    return {
        "critical_path_tokens": trace.critical_path,
        "parallelism": round(trace.parallelism, 4),
        "theoretical_speedup": round(trace.speedup_over_text(num_text_tokens), 4),
        "tokens_per_s": None if rate is None else round(rate, 2),
        "wall_s": round(trace.wall_s, 6),
        "cut_at": cut_at(trace),
    }
