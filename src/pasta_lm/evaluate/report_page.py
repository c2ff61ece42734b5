"""One page of an evaluation: each number with its n, its interval and where it comes from.

A single HTML file without scripts or links to elsewhere; it opens offline and prints as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from pasta_lm.evaluate.paper_figures import paper_figures

Figures = Mapping[str, Any]
CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:64rem;margin:2rem auto;padding:0 1rem}
table{border-collapse:collapse;margin:.6rem 0 1.4rem}
th,td{border-bottom:1px solid #ccc;padding:.25rem .8rem .25rem 0;text-align:left}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}
p.where{font-size:13px;color:#444;margin:.2rem 0}
p.label{border:2px solid #222;padding:.5rem .8rem;font-weight:600}
svg{max-width:100%;height:auto;margin:.6rem 0}
"""


class Number(NamedTuple):
    """What the page says of one figure."""

    title: str
    key: str
    interval: str | None
    """The figure that has its interval; None: the figure has it itself."""
    counted: str
    """The figure that says over how many prompts."""
    unit: str = ""


JUDGED = (
    Number(
        "length-controlled win rate",
        "length_controlled_winrate",
        "length_controlled_interval",
        "n_total",
        " %",
    ),
    Number("win rate", "win_rate", "win_rate_interval", "n_total", " %"),
    Number("win rate, missing verdicts lost", "win_rate_missing_lost", "", "num_prompts", " %"),
)
SPEED = (
    Number("theoretical speedup", "theoretical_speedup", None, "num_prompts", "x"),
    Number("realised speedup", "realised_speedup", None, "num_timed", "x"),
    Number("realised / theoretical", "efficiency", None, "num_timed"),
    Number("parallelism", "parallelism", None, "num_prompts"),
    Number("length ratio, characters", "length_ratio", None, "num_prompts"),
    Number(
        "theoretical speedup, arithmetic mean",
        "theoretical_speedup_arithmetic",
        None,
        "num_prompts",
        "x",
    ),
    Number(
        "realised speedup, arithmetic mean", "realised_speedup_arithmetic", None, "num_timed", "x"
    ),
)


def report_page(report: Figures) -> str:
    """Return the page of what ``alpaca_report`` computed."""
    systems: Mapping[str, Figures] = report["systems"]
    drawn = paper_figures(systems, None if _is_check(report) else systems)
    parts = [
        "<h1>Answers to instructions: quality and speed</h1>",
        f'<p class="label">{escape(str(report["comparability"]))}</p>',
        _setting(report),
        *(_system(name, figures, report) for name, figures in systems.items()),
        "<h2>Figures</h2>",
        *drawn.values(),
        _meaning(),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>pasta evaluate alpaca</title><style>{CSS}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _is_check(report: Figures) -> bool:
    return any("pipeline_check" in figures for figures in report["systems"].values())


def _setting(report: Figures) -> str:
    judge = report["judge"]
    rows = [
        ("instructions", f"{report['num_instructions']} of {report['instructions']}"),
        ("answers", f"greedy, {report['max_tokens']} tokens at most"),
        ("baseline of quality", report["baseline"]),
        ("baseline of speed", report["speed_baseline"]),
    ]
    if judge:
        replied = ", ".join(f"{name} ({count})" for name, count in judge["replied_as"].items())
        tokens = judge["usage"]
        rows += [
            ("judge", f"{judge['model']} at {judge['url']}, which replied as {replied or '-'}"),
            ("template", f"{judge['template']}, {judge['template_sha256']}, {judge['method']}"),
            (
                "replies kept",
                f"{judge['num_replies']}; {tokens['prompt_tokens']} tokens read, "
                f"{tokens['completion_tokens']} written",
            ),
        ]
    return _table([(escape(key), escape(str(value))) for key, value in rows])


def _system(name: str, figures: Figures, report: Figures) -> str:
    where = _where(figures, report)
    head = f'<h2>{escape(name)}</h2>\n<p class="where">{escape(where)}</p>'
    parts = [head, _figures(figures, where)]
    parts += [f"<p>{escape(said)}</p>" for said in _notes(figures)]
    for dataset, own in figures["datasets"].items():
        parts.append(f"<h3>{escape(name)}, {escape(dataset)}</h3>")
        parts.append(_figures(own, where))
    return "\n".join(parts)


def _where(figures: Figures, report: Figures) -> str:
    """Return in a line what every number of a system depends on."""
    judge = report["judge"]
    made = figures["provenance"]
    facts = {
        "judge": judge["model"] if judge else "none",
        "template": f"{judge['template']} ({judge['template_sha256']})" if judge else "none",
        "baseline": f"{report['baseline']} (speed: {report['speed_baseline']})",
        "kind": ", ".join(figures["kinds"]),
        **made,
    }
    return " · ".join(f"{key}: {value}" for key, value in facts.items())


def _notes(figures: Figures) -> list[str]:
    """Return what is to be said beside the numbers."""
    said = [figures[key] for key in ("pipeline_check", "refused") if key in figures]
    for problem, found in figures.get("problems", {}).items():
        names = ", ".join(found["instructions"])
        said.append(f"No verdict, {problem}: {found['count']} comparisons, of {names}")
    if figures.get("order_agreement") is not None:
        said.append(
            f"Both orders agree on {figures['order_agreement']:.1%}; the first place gets "
            f"{figures['first_place_share']:.1%}"
        )
    return said


def _figures(figures: Figures, where: str) -> str:
    rows: list[Sequence[str]] = [
        ("<b>figure</b>", "<b>value</b>", "<b>95 % interval</b>", "<b>n</b>")
    ]
    for number in (*JUDGED, *SPEED):
        cells = _cells(number, figures, where)
        rows += [cells] if cells else []
    return _table(rows)


def _cells(number: Number, figures: Figures, where: str) -> tuple[str, ...] | None:
    """Return a row of the table; None of a figure that is not there."""
    value = figures.get(number.key)
    if value is None:
        return None
    span = value if number.interval is None else figures.get(number.interval)
    mean = value["mean"] if isinstance(value, Mapping) else value
    count = figures[number.counted]
    bounds = f"{span['low']:.2f} to {span['high']:.2f}" if span else "-"
    told = escape(f"n = {count} · 95 % interval {bounds} · {where}", quote=True)
    shown = f'<data value="{mean}" title="{told}">{mean:.2f}{number.unit}</data>'
    return escape(number.title), shown, bounds, str(count)


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [
        "<tr>" + "".join(f'<td class="n">{cell}</td>' for cell in row) + "</tr>" for row in rows
    ]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _meaning() -> str:
    return (
        "<h2>What the numbers mean</h2><p>Speedups are against the speed baseline's own answer to "
        "the same prompt, decoded by the same engine on the same machine; geometric means, "
        "percentile bootstrap over prompts. A win rate is the mean preference over both orders; "
        "equal answers are a draw. The interval of the length-controlled one fits every draw "
        "again. Every number is computed from the records in this folder: "
        "<code>pasta evaluate alpaca --out FOLDER --offline</code>.</p>"
    )
