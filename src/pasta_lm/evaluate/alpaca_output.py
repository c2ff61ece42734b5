"""What a run on instructions leaves for others: the report, its page, and files of AlpacaEval.

``alpaca_eval/SYSTEM.json`` is what AlpacaEval's own program reads as a model's outputs;
``judgements.jsonl`` is what ``pasta evaluate lc-winrate`` reads. A scripted judge leaves no
judgements.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pasta_lm.errors import PastaError
from pasta_lm.evaluate.alpaca_report import judgements_of, stored_row
from pasta_lm.evaluate.alpaca_run import AlpacaRun
from pasta_lm.evaluate.instructions import alpaca_eval_rows
from pasta_lm.evaluate.report_page import report_page

REPORT, PAGE, JUDGEMENTS, OUTPUTS = (
    "report.json",
    "report.html",
    "judgements.jsonl",
    "alpaca_eval",
)


def write_outputs(run: AlpacaRun, report: Mapping[str, Any]) -> None:
    """Write all of it into the run's folder, over what was there.

    Raises:
        PastaError: a file cannot be written.
    """
    judge = run.judge()
    texts = {
        REPORT: json.dumps(report, indent=1, ensure_ascii=False) + "\n",
        PAGE: report_page(report),
    }
    if judge and not judge.is_scripted:
        rows = [
            stored_row(one)
            for system in run.settings.systems
            for one in judgements_of(run, judge, system.name)
        ]
        texts[JUDGEMENTS] = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    for system in run.settings.systems:
        answers = run.texts(system.name)
        asked = [one for one in run.instructions if one.id in answers]
        outputs = alpaca_eval_rows(asked, [answers[one.id] for one in asked], system.name)
        name = f"{OUTPUTS}/{file_name(system.name)}.json"
        texts[name] = json.dumps(outputs, indent=1, ensure_ascii=False) + "\n"
    for name, text in texts.items():
        _write(run.folder / name, text)


def file_name(system: str) -> str:
    """Return a system's name as a file may be called."""
    return re.sub(r"[^\w.=-]+", "_", system)


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    except OSError as exc:
        raise PastaError(f"{path} cannot be written: {exc}") from exc
