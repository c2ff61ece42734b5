"""``pasta bench serve`` against the server on loopback, and the figures from given times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from pasta_lm.cli import app as command_line
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.errors import InputError, RemoteError, UsageError
from pasta_lm.learn.chat.timed import TimedReply
from pasta_lm.measure.serving import Load, LoadSettings, figures, read_prompts
from pasta_lm.serve.app import create_app
from tests.serve.conftest import DOCUMENT, scripted, serving
from tests.serve.test_failures import Poisoned, ScriptedBackend

KEY = "sk-test"
ANSWER = ScriptedEngine(DOCUMENT).answer()
VLLM_KEYS = {
    *("duration", "completed", "total_input_tokens", "total_output_tokens", "request_throughput"),
    *("output_throughput", "total_token_throughput", "model_id", "num_prompts", "request_rate"),
    *("backend", "label", "tokenizer_id", "burstiness", "request_goodput", "latencies"),
    *("start_times", "generated_texts", "max_output_tokens_per_s", "max_concurrent_requests"),
    *("max_concurrency", "date", "failed", "input_lens", "output_lens", "ttfts", "itls", "errors"),
    *(
        f"{kind}_{name}_ms"
        for kind in ("mean", "median", "std", "p99")
        for name in ("ttft", "tpot", "itl", "e2el")
    ),
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving(create_app(scripted(), api_key=KEY)) as (_, address):
        yield address


def bench(*flags: str, key: str = KEY) -> Any:
    environment = {"OPENAI_API_KEY": key}
    return CliRunner().invoke(command_line, ["bench", "serve", *flags], env=environment)


@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_the_result_has_vllm_s_keys_and_the_parallelism(
    url: str, suffix: str, tmp_path: Path
) -> None:
    file = tmp_path / "result.json"
    flags = ["--base-url", url + suffix, "--num-prompts", "6", "--max-concurrency", "2"]
    flags += ["--random-input-len", "12", "--save-result", "--result-filename", str(file)]
    done = bench(*flags)
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text("utf-8"))
    assert found.keys() >= VLLM_KEYS
    assert (found["completed"], found["failed"], found["num_prompts"]) == (6, 0, 6)
    assert found["input_lens"] == [12] * 6
    assert found["output_lens"] == [ANSWER.trace.num_tokens] * 6
    assert found["parallelism"] == pytest.approx(ANSWER.trace.parallelism, abs=1e-3)
    assert found["critical_path_tokens"] == ANSWER.trace.critical_path
    assert found["mean_e2el_ms"] >= found["mean_ttft_ms"] > 0
    assert (found["model_id"], found["request_rate"]) == ("script", "inf")
    assert "output tokens / s" in done.output
    assert f"{found['p99_itl_ms']:.2f}" in done.output


def test_peaks_are_those_of_one_second() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 12}
    replies = [
        TimedReply("abc", [0.5, 0.6, 1.2], usage, sent_s=100.0),  # tokens at 0.5, 0.6 and 1.2
        TimedReply("ab", [0.1, 0.2], usage, sent_s=101.5),  # at 1.6 and 1.7
        TimedReply(error="500: no", sent_s=100.0),
    ]
    found = figures(LoadSettings(num_prompts=3), Load("m", replies, 2.0))
    assert found["max_output_tokens_per_s"] == 4 + 12
    assert found["max_concurrent_requests"] == 2
    assert found["start_times"] == [100.0, 101.5]
    assert found["latencies"] == [1.2, 0.2]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_have_the_mean_of_the_rate_and_the_spread_of_the_burstiness(burstiness: float) -> None:
    settings, random = LoadSettings(request_rate=5.0, burstiness=burstiness), Random(0)
    gaps_s = [settings.gap_s(random) for _ in range(20_000)]
    assert np.mean(gaps_s) == pytest.approx(0.2, rel=0.05)
    assert np.std(gaps_s) / np.mean(gaps_s) == pytest.approx(burstiness**-0.5, rel=0.05)


def test_prompts_of_a_file_are_repeated(url: str, tmp_path: Path) -> None:
    file, result = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    file.write_text('{"prompt": "one"}\n{"prompt": "one two three"}\n', encoding="utf-8")
    flags = ["--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", "3"]
    flags += ["--request-rate", "200", "--random-output-len", "9", "--result-filename", str(result)]
    done = bench("--base-url", url, *flags)
    assert done.exit_code == 0, done.output
    found = json.loads(result.read_text("utf-8"))
    assert found["input_lens"] == [1, 3, 1]
    assert found["output_lens"] == [9, 9, 9]


def test_requests_that_fail_are_counted(tmp_path: Path) -> None:
    file, result = tmp_path / "prompts.jsonl", tmp_path / "result.json"
    file.write_text('{"prompt": "fine"}\n{"prompt": "poison"}\n', encoding="utf-8")
    flags = ["--dataset-name", "custom", "--dataset-path", str(file), "--num-prompts", "4"]
    with serving(create_app(ScriptedBackend(Poisoned("poison", 4)))) as (_, address):
        done = bench("--base-url", address, *flags, "--result-filename", str(result))
    assert done.exit_code == 0, done.output
    found = json.loads(result.read_text("utf-8"))
    assert (found["completed"], found["failed"]) == (2, 2)
    assert ["engine failed" in error for error in found["errors"]] == [False, True, False, True]


@pytest.mark.parametrize(
    ("flags", "key", "error", "says"),
    [
        ([], "wrong", RemoteError, "401"),
        (["--model", "script"], "wrong", RemoteError, "401"),
        (["--model", "gpt-4"], KEY, RemoteError, "gpt-4"),
        (["--dataset-name", "sharegpt"], KEY, UsageError, "sharegpt"),
        (["--dataset-name", "custom"], KEY, UsageError, "--dataset-path"),
        (["--request-rate", "0"], KEY, UsageError, "--request-rate"),
        (["--request-rate", "nan"], KEY, UsageError, "--request-rate"),
        (["--burstiness", "0"], KEY, UsageError, "--burstiness"),
    ],
)
def test_what_cannot_be_measured_is_an_error(
    url: str, flags: list[str], key: str, error: type[Exception], says: str
) -> None:
    done = bench(
        "--base-url", url, "--num-prompts", "1", "--random-input-len", "3", *flags, key=key
    )
    assert isinstance(done.exception, error)
    assert says in str(done.exception)


@pytest.mark.parametrize(
    ("address", "error"),
    [("http://127.0.0.1:9", RemoteError), ("nothing", UsageError), ("http://[::1", UsageError)],
)
def test_no_server_is_an_error(address: str, error: type[Exception]) -> None:
    done = bench("--base-url", address, "--num-prompts", "1")
    assert isinstance(done.exception, error)


@pytest.mark.parametrize("text", ["", "{}\n", "[1]\n", "nothing\n", '{"prompt": 3}\n'])
def test_a_file_without_prompts_is_an_error(text: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    with pytest.raises(InputError):
        read_prompts(file)
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match="prompt"):
        read_prompts(file)


def test_random_prompts_depend_on_the_seed_alone() -> None:
    first, second = (LoadSettings(num_prompts=3, seed=1).bodies() for _ in range(2))
    assert first == second != LoadSettings(num_prompts=3, seed=2).bodies()
    assert all(len(one["messages"][0]["content"].split()) == 1024 for one in first)


def test_the_figures_are_those_of_the_definitions() -> None:
    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    replies = [
        TimedReply("abc", [0.1, 0.2, 0.5], usage),
        TimedReply("a", [0.4], {"prompt_tokens": 4, "completion_tokens": 1}),
        TimedReply(error="503: busy"),
    ]
    found = figures(LoadSettings(num_prompts=3, request_rate=inf), Load("m", replies, 2.0))
    expected = {
        "ttft": [100, 400],
        "tpot": [400 / 4],
        "itl": [100, 300],
        "e2el": [500, 400],
    }
    for name, values in expected.items():
        assert found[f"mean_{name}_ms"] == pytest.approx(np.mean(values))
        assert found[f"median_{name}_ms"] == pytest.approx(np.median(values))
        assert found[f"std_{name}_ms"] == pytest.approx(np.std(values))
        assert found[f"p99_{name}_ms"] == pytest.approx(np.percentile(values, 99))
    assert (found["completed"], found["failed"]) == (2, 1)
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (14, 6)
    assert (found["request_throughput"], found["output_throughput"]) == (1.0, 3.0)
    assert found["parallelism"] is None
