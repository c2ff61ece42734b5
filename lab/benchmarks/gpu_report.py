"""Draw the results of ``gpu.py``, and fill the marked block of a document with tables.

    python lab/benchmarks/gpu_report.py RESULTS.json [--figure OUT.png] [--into PAGE.md]

The paper's figures (Gemma 7B, one H100) stand beside ours; they come from the package's own file.
"""

from __future__ import annotations

import argparse
import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT / "src" / "pasta_lm" / "measure" / "published.toml"
BEGIN, END = "<!-- gpu: begin -->", "<!-- gpu: end -->"

Sections = Mapping[str, Mapping[str, Any]]


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def number(value: float | None, digits: int = 2) -> str:
    """Return a number to read; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def text(sections: Sections) -> str:
    """Return the block of a document: conditions and every table that has figures."""
    parts = [_conditions(sections)]
    for name, write in WRITERS.items():
        section = sections.get(name, {})
        if section.get("status") == "failed":
            parts.append(f"Section `{name}` **failed**: `{section['error'].splitlines()[-1]}`.")
        elif found := write(section):
            cut = " (cut by its time limit)" if section.get("status") == "cut" else ""
            parts.append(found.replace("\n", f"{cut}\n", 1) if cut else found)
    return "\n\n".join(parts)


def _conditions(sections: Sections) -> str:
    first = sections.get("machine", {})
    machine = first.get("machine", {})
    names = ("gpu", "cpu", "python", "torch", "transformers", "commit")
    said = ", ".join(f"{name} {machine[name]}" for name in names if name in machine)
    bandwidth = number(first.get("read_bytes_per_s", 0) / 1e12)
    copying = number(first.get("copy_bytes_per_s", 0) / 1e12)
    return (
        f"Machine: {said or 'unknown'}. Memory: {bandwidth} TB/s read, {copying} TB/s copied "
        "(bytes read and written). Kind: `replayed`, `random-weights`, unless said otherwise."
    )


def _exactness(section: Mapping[str, Any]) -> str:
    found = section.get("architectures", {})
    rows = [
        (name, f"{one['float32_worst']:.1e}", number(one["bfloat16_over_noise"]))
        if isinstance(one, dict)
        else (name, f"**failed**: {one}", "")
        for name, one in found.items()
        if name != "tolerance_float32"
    ]
    head = ("architecture", "float32, worst difference", "bfloat16, error over its noise")
    return "Decoded logits against one masked pass:\n\n" + table(head, rows) if rows else ""


def _steps(section: Mapping[str, Any]) -> str:
    if "sequential_tokens_per_s" not in section:
        return ""
    said = (
        f"{section['model']}, {section['dtype']}: sequential "
        f"{number(section['sequential_tokens_per_s'], 1)} tokens/s, "
        f"{number(100 * section['bandwidth_share'], 0)} % of the bandwidth limit; "
        f"`generate` {number(section.get('generate_tokens_per_s'), 1)}."
    )
    steps = section.get("step_ms", {})
    counts = list(dict.fromkeys(count for line in steps.values() for count in line))
    rows = [(context, *(number(line.get(c), 3) for c in counts)) for context, line in steps.items()]
    if views := section.get("step_ms_views"):
        rows += [
            (f"{context}, no graphs", *(number(line.get(c), 3) for c in counts))
            for context, line in views.items()
        ]
    head = ("milliseconds a step, context", *(f"{count} rows" for count in counts))
    return f"{said}\n\n{table(head, rows)}" if rows else said


def _answers(section: Mapping[str, Any]) -> str:
    if not section.get("num_documents"):
        return ""
    keys = ("theoretical_speedup", "realised_speedup", "efficiency")
    head = ("", "theoretical", "realised", "efficiency")
    ours = f"ours, {section['num_documents']} annotated answers, {section['model']}"
    rows: list[Sequence[object]] = [(ours, *(number(section[key]) for key in keys))]
    for point in tomllib.loads(PUBLISHED.read_text("utf-8"))["points"]:
        if point["method"] == "PASTA":
            rows.append((f"paper, {point['name']}", *(number(point.get(key)) for key in keys)))
    return f"Annotated answers, sequentially and in parallel:\n\n{table(head, rows)}"


def _host(section: Mapping[str, Any]) -> str:
    rows = [
        (one["rows"], number(one["step_ms"], 3), number(one["device_ms"], 3),
         number(one["step_ms"] / one["device_ms"]))
        for one in section.get("steps", [])
    ]  # fmt: skip
    head = ("rows", "step, ms", "device, ms", "gain of a perfect overlap")
    return f"The host's share of a step:\n\n{table(head, rows)}" if rows else ""


def _load(section: Mapping[str, Any]) -> str:
    rows = [
        (
            one["requests"],
            *(number(one[name]["tokens_per_s"], 0) for name in ("sequential", "pasta")),
            *(number(one[name]["latency_s"]["p50"]) for name in ("sequential", "pasta")),
            number(one["speedup"]),
        )
        for one in section.get("loads", [])
    ]
    head = ("requests", "sequential, tokens/s", "PASTA", "sequential, p50 s", "PASTA", "speedup")
    return f"Under load, all at once:\n\n{table(head, rows)}" if rows else ""


def _small(section: Mapping[str, Any]) -> str:
    if not section.get("num_documents"):
        return ""
    return (
        f"{section['model']}, weights {section['weights']}, {section['dtype']}: sequential "
        f"{number(section['sequential_tokens_per_s'], 0)} tokens/s, `generate` "
        f"{number(section['generate_tokens_per_s'], 0)}; {section['num_documents']} answers: "
        f"theoretical {number(section['theoretical_speedup'])}, realised "
        f"{number(section['realised_speedup'])}, efficiency {number(section['efficiency'])}.\n"
    )


def _alternatives(section: Mapping[str, Any]) -> str:
    names, rows = ("triton", "flex", "gathered"), []
    for one in section.get("cases", []):
        num_rows, _, num_requests, *_ = one["bucket"]
        found = [one.get(name) for name in names]
        cells = (number(x["us"], 0) if isinstance(x, dict) else x or "-" for x in found)
        rows.append((f"{num_rows} rows, {num_requests} requests, {one['heads']} heads", *cells))
    head = ("", *names)
    return f"Attention of one layer, microseconds:\n\n{table(head, rows)}" if rows else ""


WRITERS = {
    "exactness": _exactness,
    "steps": _steps,
    "answers": _answers,
    "host": _host,
    "load": _load,
    "small": _small,
    "alternatives": _alternatives,
}


def fill(document: str, block: str) -> str:
    """Return a document with another text between its marks.

    Raises:
        ValueError: it has no marks.
    """
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document needs a line {BEGIN} and a line {END}")
    return f"{before}{BEGIN}\n{block}\n{END}{after}"


def draw(sections: Sections, path: Path) -> None:
    """Draw the time of a step by its rows, and each answer's realised and theoretical speedup."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4))
    for context, line in sections.get("steps", {}).get("step_ms", {}).items():
        left.plot([int(c) for c in line], list(line.values()), "o-", label=f"context {context}")
    left.set(xlabel="rows", ylabel="milliseconds a step", xscale="log", ylim=(0, None))
    found = sections.get("answers", {}).get("answers", [])
    x = [one["theoretical"] for one in found]
    right.plot(x, [one["sequential_s"] / one["parallel_s"] for one in found], "o", label="answers")
    most = max(x, default=2.0)
    right.plot([1, most], [1, most], "-", color="grey", label="efficiency 1")
    right.set(xlabel="theoretical speedup", ylabel="realised speedup")
    for axes in (left, right):
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--figure", type=Path)
    parser.add_argument("--into", type=Path)
    args = parser.parse_args()
    sections = json.loads(args.results.read_text("utf-8"))["sections"]
    block = text(sections)
    if args.figure is not None:
        draw(sections, args.figure)
    if args.into is None:
        print(block)
    else:
        args.into.write_text(fill(args.into.read_text("utf-8"), block), encoding="utf-8")


if __name__ == "__main__":
    main()
