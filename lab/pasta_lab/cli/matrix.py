"""``pasta-lab matrix``: how each causal family of transformers runs here, with tiny weights."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

PAGE = Path(__file__).parents[3] / "docs" / "models.md"
BEGIN, END = "<!-- matrix -->", "<!-- end of matrix -->"
WIDTH = 200
MEMORY = 6 << 30  # bytes of address space of each process
TIMEOUT_S = 900
BATCH = 4  # families that a process tests
FLATTENED, REFUSED = "flattened", "refused"
ROWS = {
    "PARTS": "Rows, texts read in parts",
    "STEPS": "Rows, texts read token by token",
    "WHOLE": "Rows, the whole text read for each token",
}
# Of families whose configuration of transformers is no model that somebody made.
SETTINGS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"] * 16},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 16},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 16},
    "nemotron": {"num_key_value_heads": 8},
    "phi4_multimodal": {
        "vision_config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
        "audio_config": {"hidden_size": 32, "num_blocks": 1, "num_attention_heads": 2},
    },
}

# Of families without a default configuration that the self-test can make tiny.
NOT_TINY = {
    "default configuration is no whole model": "cohere_compass_text dbrx gemma4_assistant qwen4_exp"
    " qwen4_exp_text",
    "sizes that the tiny model cannot set": "dots3_note dots3_note_text prophetnet reformer xlnet",
    "its text configuration has no causal model by name": "emu3 mllama",
    "two text configurations": "musicgen musicgen_melody",
    "needs a language to be set": "xmod",
}
REASONS = {name: reason for reason, names in NOT_TINY.items() for name in names.split()}


def matrix(
    families: Annotated[
        list[str] | None, typer.Argument(help="Families by their names; without: all.")
    ] = None,
    *,
    write: Annotated[bool, typer.Option(help="Write the lists into docs/models.md.")] = False,
    child: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """Say of each causal family of transformers whether it runs here exactly, and how.

    The self-test of loading decides, on tiny random weights of its default configuration.
    """
    if child:
        _examine_all(families or [])
        return
    verdicts: dict[str, tuple[str, str]] = {}
    names = families or _families()
    for start in range(0, len(names), BATCH):
        for name, way, reason in _examined(names[start : start + BATCH]):
            typer.echo(f"{name}: {way} {reason}".rstrip())
            verdicts[name] = way, reason
    lines = list(page_lines(verdicts))
    typer.echo("\n".join(lines))
    if write:
        before, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
        behind = rest.partition(END)[2]
        PAGE.write_text("\n".join([before + BEGIN, *lines, END]) + behind, encoding="utf-8")


def page_lines(verdicts: dict[str, tuple[str, str]]) -> Iterator[str]:
    """Yield the lists of the page: names by way, refused ones with their reasons."""
    versions = ", ".join(
        f"{name} {version(name).split('+')[0]}" for name in ("transformers", "torch")
    )
    yield f"{datetime.now(UTC):%Y-%m-%d}, {versions}, {len(verdicts)} families:"
    for way, title in ((FLATTENED, "Flattened"), *ROWS.items()):
        names = [name for name, (other, _) in verdicts.items() if other == way]
        if names:
            yield from _wrapped(f"- **{title}** ({len(names)}): {', '.join(names)}")
    by_reason: dict[str, list[str]] = {}
    for name, (way, reason) in verdicts.items():
        if way == REFUSED:
            by_reason.setdefault(reason, []).append(name)
    reasons = (f"{', '.join(names)} ({reason})" for reason, names in by_reason.items())
    yield from _wrapped(
        f"- **Refused** ({sum(map(len, by_reason.values()))}): {'; '.join(reasons)}"
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _families() -> list[str]:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def _examined(names: Sequence[str]) -> Iterator[tuple[str, str, str]]:
    """Yield the verdict of each family; one that ends its process is a crash."""
    command = [sys.executable, "-c", "from pasta_lab.cli.app import main; main()", "matrix"]
    try:
        run = subprocess.run(
            [*command, "--child", *names], capture_output=True, text=True, timeout=TIMEOUT_S
        )
        output, error = run.stdout, run.stderr
    except subprocess.TimeoutExpired as exc:
        output, error = (exc.stdout or b"").decode(), f"longer than {TIMEOUT_S} s"
    done = [tuple(json.loads(line)) for line in output.splitlines() if line.startswith("[")]
    yield from done
    rest = list(names[len(done) :])
    if rest:
        yield rest[0], "crash", error.strip().splitlines()[-1][:WIDTH] if error.strip() else ""
        yield from _examined(rest[1:]) if rest[1:] else ()


def _examine_all(names: Sequence[str]) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    from transformers.utils.logging import set_verbosity_error

    set_verbosity_error()
    for name in names:
        print(json.dumps([name, *examine(name)]), flush=True)  # noqa: T201


def examine(name: str) -> tuple[str, str]:
    """Return how a family runs, and why it is refused if it is."""
    from transformers import AutoConfig

    from pasta_lm.engines.local.loading import exact_reader
    from pasta_lm.engines.local.self_test import tiny_model
    from pasta_lm.errors import UnsupportedModelError

    try:
        config = AutoConfig.for_model(name, **SETTINGS.get(name, {}))
        if hasattr(config, "is_decoder"):  # of an encoder: its causal form
            config.is_decoder = True
        reader = exact_reader(tiny_model(config))
    except UnsupportedModelError as exc:
        return REFUSED, REASONS.get(name) or _short(exc.message)
    except Exception as exc:  # a configuration that is none without the files of a model
        return REFUSED, REASONS.get(name) or _short(f"no default configuration: {exc}")
    return (FLATTENED if reader is None else reader.reading.name), ""


def _short(reason: str) -> str:
    if "allocate memory" in reason:
        return "too large to make tiny"
    if "its logits differ by" in reason:
        return "not read from left to right"
    return reason.split("\n")[0].replace("could not be made small for the self-test", "not tiny")[
        :70
    ]
