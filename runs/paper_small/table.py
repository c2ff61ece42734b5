"""Tables of Markdown, and how a figure stands in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping


def table(header: Iterable[str], rows: Iterable[Iterable[str]]) -> Iterator[str]:
    """Yield a table's lines."""
    names = list(header)
    yield f"| {' | '.join(names)} |"
    yield "|---" * len(names) + "|"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(figure: Mapping[str, float] | None) -> str:
    """Return an estimate with its interval."""
    if figure is None:
        return "-"
    return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
