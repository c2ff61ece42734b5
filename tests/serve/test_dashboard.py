"""The dashboard for Grafana shows the metrics of the server, each of them, and no other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from pasta_lm.serve.jobs import Metrics

DASHBOARD = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana.json").read_text(encoding="utf-8")
)
SUFFIXES = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_count", "_sum"]}
PANELS = {panel["title"]: panel for panel in DASHBOARD["panels"]}


def families() -> list[Metric]:
    metrics = text_string_to_metric_families(Metrics("model", dict).text().decode())
    return [metric for metric in metrics if not metric.name.endswith("_created")]


def series() -> set[str]:
    return {one.name + suffix for one in families() for suffix in SUFFIXES[one.type]}


def texts(value: Any) -> list[str]:
    if isinstance(value, dict | list):
        parts = value.values() if isinstance(value, dict) else value
        return [text for part in parts for text in texts(part)]
    return [value] if isinstance(value, str) else []


def shown() -> set[str]:
    return {name for text in texts(DASHBOARD) for name in re.findall(r"pasta:\w+", text)}


def test_every_metric_of_the_dashboard_exists() -> None:
    assert shown()
    assert shown() <= series()


def test_every_metric_of_the_server_is_on_the_dashboard() -> None:
    missing = [
        one.name
        for one in families()
        if not shown() & {one.name + suffix for suffix in SUFFIXES[one.type]}
    ]
    assert not missing
