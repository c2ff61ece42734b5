"""The card of a model that ``pasta teach`` taught: its making, its measures and their gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

Facts = Mapping[str, Any]
ROWS = {
    "theoretical speedup": "theoretical_speedup",
    "realised speedup, of the prompts that were timed": "realised_speedup",
    "parallelism": "parallelism",
    "answers that fork": "forks",
    "length against the baseline": "length_ratio",
    "well formed": "well_formed",
}


def model_card(facts: Facts, report: Facts) -> str:
    """Return the card as Markdown.

    Args:
        facts: The run's ``model``, ``version``, journal ``rows``, ``config``, ``cuts``,
            ``trains_all``, ``mixed_in``, ``amounts`` of stage one, and ``hours``.
        report: The JSON of its run of ``instructions``.
    """
    model = facts["model"]
    name = Path(model).name if Path(model).exists() else model
    tags = ["pasta-lang", "parallel-decoding", *([] if facts["trains_all"] else ["lora"])]
    front = f"---\nlibrary_name: pasta-lm\nbase_model: {name}\ntags: [{', '.join(tags)}]\n---"
    mixed = f" and those of {', '.join(facts['mixed_in'])}" if facts["mixed_in"] else ""
    about = (
        f"{name}, taught by `pasta teach` of pasta-lm {facts['version']} to decide which parts of "
        "an answer are decoded at the same time.\nThe licence of the base applies; the answers it "
        f"learned from are its own{mixed}."
    )
    ending = (
        "Definitions: `docs/evaluation.md` of pasta-lm. All figures and answers of this run: "
        "`06-measures/report.md` and `answers.html` in its folder."
    )
    parts = [
        *(front, f"# {name}, taught PASTA-LANG", about, _list(_making(facts))),
        *("## Measured", *_measured(report)),
        *("## Not measured", _list(_lacking(report)), ending),
    ]
    return "\n\n".join(parts) + "\n"


def _list(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _making(facts: Facts) -> list[str]:
    rows, config = facts["rows"], facts["config"]
    plan, answered = rows["plan"], rows["answers"]
    adapters = f"adapters of rank {config.train.rank} and the rows of the tag pieces"
    learned = "all weights" if facts["trains_all"] else adapters
    counts = {key: count for key, count in answered["counts"].items() if key != "usable"}
    unusable = "".join(f", {count} {reason}" for reason, count in counts.items())
    rounds = [
        f"round {number} {'kept' if one['is_kept'] else 'not kept'} (score "
        f"{_number(one['before']['score'], 3)} -> {_number(one['after']['score'], 3)} on "
        f"{one['num_prompts']} development prompts)"
        for number, one in enumerate(rows["preference"]["rounds"], start=1)
    ]
    cuts = f"; cut by a budget: {'; '.join(facts['cuts'])}" if facts["cuts"] else ""
    return [
        f"**Base**: {facts['model']}, {plan['num_weights'] / 1e6:.0f} million weights.",
        f"**Trained**: {learned}; {plan['dtype']}, positions `{config.train.positions}`.",
        f"**Own answers**: {answered['num_answers']} answers of the base, "
        f"{answered['counts'].get('usable', 0)} usable{unusable}.",
        f"**Annotation**: `{config.annotation.annotator}`; nobody has read the annotated answers.",
        f"**Stage one**: {facts['amounts'].passes} passes of at most {config.data.max_tokens} "
        "tokens, and as many for the sequential baseline on the same answers without tags.",
        f"**Stage two**: {'; '.join(rounds) or 'none'}.",
        f"**Time**: {facts['hours']:.2f} hours{cuts}.",
    ]


def _measured(report: Facts) -> list[str]:
    sets: Mapping[str, Facts] = report["sets"]
    places = [", ".join(report[key]) for key in ("hardware", "dtype")]
    unanswered = f" **{report['num_unanswered']} prompts are not answered.**"
    about = (
        f"{'; '.join(places)}. `{report['kind']}`, greedy, at most {report['max_tokens']} tokens; "
        "95 % intervals over prompts.\nAgainst the sequential answers of the baseline of the same "
        f"run.{unanswered if report['num_unanswered'] else ''}"
    )
    rows = {
        "prompts": [one["num_prompts"] for one in sets.values()],
        "prompts that were timed": [one["num_timed"] for one in sets.values()],
        **{title: [one[key] for one in sets.values()] for title, key in ROWS.items()},
        "prompts for several parts that fork": _of_parts(sets, "several", "forks"),
        "prompts for one thing that do not fork": _of_parts(sets, "one", "stays_sequential"),
        "repetition, less the baseline": _of_text(sets, "repetition"),
        "coverage, less the baseline": _of_text(sets, "coverage"),
    }
    table = [f"| | {' | '.join(sets)} |", f"|---|{'---|' * len(sets)}"]
    table += [f"| {title} | {' | '.join(map(_figure, row))} |" for title, row in rows.items()]
    found = [about, "\n".join(table)]
    if references := report["references"]:
        cost, num = _figure(references["cost"]), references["num_answers"]
        found.append(
            f"Cost of not seeing: {cost} nats a token, over {num} answers that stage one did not "
            "read."
        )
    checked = (one["ifeval"] for one in sets.values() if one["ifeval"])
    return found + [
        f"IFEval, strict by prompt, less the baseline: {_figure(one['prompt_strict_difference'])}."
        for one in checked
    ]


def _of_parts(sets: Mapping[str, Facts], parts: str, key: str) -> list[Facts | None]:
    return [one["parts"].get(parts, {}).get(key) for one in sets.values()]


def _of_text(sets: Mapping[str, Facts], key: str) -> list[Facts | None]:
    return [one["text"][key]["difference"] for one in sets.values()]


def _lacking(report: Facts) -> list[str]:
    """Return the measures that the run does not have."""
    sets = report["sets"].values()
    measured = {
        "quality by a judge: no answer was compared by a judge or by a person": False,
        "quality under another model: no other model read the answers": report["readers"],
        "instructions that can be checked (IFEval)": any(one["ifeval"] for one in sets),
        "speed: no prompt was timed": any(one["num_timed"] for one in sets),
        "the cost of not seeing": report["references"],
        "facts, safety and bias: the base's, and nothing was done about them": False,
    }
    return [text for text, has_figures in measured.items() if not has_figures]


def _figure(figure: Any) -> str:
    if isinstance(figure, Mapping):
        return f"{figure['mean']:.3f} [{figure['low']:.3f}, {figure['high']:.3f}]"
    return str(figure) if isinstance(figure, int) else _number(figure, 4)


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
