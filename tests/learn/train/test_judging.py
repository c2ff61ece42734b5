"""Stage two with a language model as judge: scores from verdicts, no request sent twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from math import log
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.errors import PastaError, UsageError
from pasta_lm.journal import read_rows, write_rows
from pasta_lm.language.document import parse
from pasta_lm.learn.data.annotated import Record, write_records
from pasta_lm.learn.data.preferences import PreferencePair, PromptWithReference
from pasta_lm.learn.judge import MissingVerdictsError
from pasta_lm.learn.train import preference
from pasta_lm.learn.train.config import (
    JudgeConfig,
    PairsConfig,
    PreferenceConfig,
    RecordsConfig,
    judge_of,
)
from pasta_lm.learn.train.preference import Round, preflight, sampling_of, train_preference
from tests.fakes.scripted_server import ScriptedReply, ScriptedServer
from tests.learn.annotate.runs import AT_ONCE
from tests.learn.data.rollouts import sample
from tests.learn.judge.endpoint import answers_of
from tests.learn.train.preferences import prompts, recipe, rows

ROOT = Path(__file__).parents[3]
NUM_PROMPTS = 6
PROMPTS = prompts(NUM_PROMPTS, 1)[0]


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the judge's client try again at once."""
    monkeypatch.setattr(judge_of, "__kwdefaults__", {"policy": AT_ONCE})


def longer_wins(asked: Mapping[str, Any]) -> ScriptedReply:
    """State that the longer answer is better; as a token, with three chances in four."""
    first, second = map(len, answers_of(asked["messages"][-1]["content"]))
    better, worse = ("A", "B") if first > second else ("B", "A")
    top = {better: log(0.75), worse: log(0.25)}
    return ScriptedReply(f"It says more.\n\nVerdict: {better}, confidence: 80", top)


def judged(folder: Path, base_url: str, **keys: Any) -> PreferenceConfig:
    """Return a recipe whose rollouts are there: a long, a short and a middling answer each."""
    config = replace(
        recipe("base", "baseline", folder / "out", rounds=1),
        judge=JudgeConfig(**{"model": "scripted", "base_url": base_url, **keys}),
    )
    file = rollouts_of(config)
    if not file.exists():
        write_rows(file, [row(config, prompt) for prompt in PROMPTS])
    return config


def rollouts_of(config: PreferenceConfig) -> Path:
    return Path(config.train.out) / "round-1" / "rollouts.jsonl"


def row(config: PreferenceConfig, prompt: PromptWithReference) -> dict[str, Any]:
    texts = (f"{prompt.reference} And so on.", "No.", "Very well.")
    return {
        "id": prompt.id,
        "prompt": prompt.prompt,
        "sampled": asdict(sampling_of(config, round_of(config))),
        "baseline": asdict(sample("Very well.", path=20, content=20)),
        "samples": [asdict(sample(text)) for text in texts],
    }


def round_of(config: PreferenceConfig) -> Round:
    return Round(1, Path(config.train.out) / "round-1", "base")


def pairs_of(config: PreferenceConfig) -> list[PreferencePair]:
    return preference.pairs_of(config, round_of(config), PROMPTS, None)


def replies(config: PreferenceConfig) -> Path:
    return Path(config.train.out) / "replies.jsonl"


@pytest.mark.parametrize(("method", "confidence"), [("confidence", 0.8), ("logprobs", 0.75)])
def test_quality_combines_verdicts_on_both_opponents_in_both_orders(
    tmp_path: Path, method: str, confidence: float
) -> None:
    with ScriptedServer(longer_wins) as server:
        config = judged(tmp_path, server.base_url, method=method)
        pairs = pairs_of(config)
        assert len(pairs) == NUM_PROMPTS
        for pair in pairs:
            # The best wins all four, the worst loses all four: smoothed by 1, at speedup 2.
            most = 4 * confidence + 1
            assert pair.parts["quality_chosen"] == pytest.approx(most)
            assert pair.parts["quality_rejected"] == pytest.approx(1 / most)
            assert pair.score_chosen == pytest.approx(2 + most)
        # Of the middling sample, equal to the baseline's answer, only the original is asked about.
        assert sum(server.paid.values()) == NUM_PROMPTS * (4 + 4 + 2)
        assert {*server.paid.values()} == {1}
    (logged,) = rows(Path(config.train.out), 1)
    assert (logged["judge"], logged["is_scripted"]) == (
        f"scripted/{'one-token-v1' if method == 'logprobs' else 'stated-confidence-v1'}",
        True,
    )
    assert (logged["num_unjudged"], logged["no_verdict"]) == (0, {})


def mute(asked: Mapping[str, Any]) -> ScriptedReply:
    """Say nothing of an answer, wherever it stands."""
    is_short = "No." in answers_of(asked["messages"][-1]["content"])
    return ScriptedReply("I cannot tell.") if is_short else longer_wins(asked)


def test_many_missing_verdicts_stop_the_run_and_allowed_ones_are_left_out_and_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ScriptedServer(mute) as server:
        config = judged(tmp_path, server.base_url)
        with pytest.raises(MissingVerdictsError, match="no verdict on 24 of 60 comparisons"):
            pairs_of(config)
        assert not (round_of(config).folder / "pairs.jsonl").exists()
        assert len(read_rows(replies(config))) == 60
        config = judged(tmp_path, server.base_url, max_missing=0.5)
        pairs = pairs_of(config)
    assert [one.rejected.plain_text for one in pairs] == ["Very well."] * NUM_PROMPTS
    (logged,) = rows(Path(config.train.out), 1)
    ids = [task.id for task in PROMPTS]
    assert logged["num_unjudged"] == NUM_PROMPTS
    assert logged["no_verdict"] == {"not-a-verdict": {"count": 4 * NUM_PROMPTS, "prompts": ids}}
    said = capsys.readouterr().err
    assert "gave no verdict: not-a-verdict 24; 6 samples left out" in said


def test_a_run_cannot_be_resumed_with_another_judge(tmp_path: Path) -> None:
    config = judged(tmp_path, "http://localhost:1/v1")
    with pytest.raises(PastaError):
        train_preference(config, prompts=[PROMPTS])
    moved = replace(config.judge, base_url="http://localhost:2/v1", max_in_flight=1)
    for key, value in (("model", "b"), ("method", "logprobs")):
        other = replace(config, judge=replace(moved, **{key: value}))
        with pytest.raises(UsageError, match=f"begun with judge.{key}"):
            train_preference(other, prompts=[PROMPTS], resume=True)


def test_a_dry_run_bounds_the_requests_and_sends_none(tmp_path: Path) -> None:
    write_records(
        tmp_path / "records.jsonl",
        [Record(prompt.id, prompt.prompt, parse(prompt.reference)) for prompt in PROMPTS],
    )
    config = replace(
        recipe("base", "baseline", tmp_path / "out", rounds=1),
        data=PairsConfig(records=RecordsConfig(file=str(tmp_path / "records.jsonl"))),
        judge=JudgeConfig(model="scripted", base_url="http://127.0.0.1:9/v1"),
    )
    assert f"scripted judges: at most {4 * 4 * NUM_PROMPTS} requests" in preflight(config)
    assert not (tmp_path / "out").exists()
