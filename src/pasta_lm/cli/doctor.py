"""Say what is installed, what this machine has, and whether it computes what it should."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from pasta_lm.cli.flags import Device, Dtype, Json, option
from pasta_lm.cli.tables import print_facts, print_json

EXTRAS = {
    "torch": ("torch", "transformers", "tokenizers", "safetensors"),
    "train": ("accelerate", "peft", "tensorboard"),
    "data": ("httpx", "pyarrow", "datasets"),
    "evaluate": ("scipy",),
    "serve": ("fastapi", "uvicorn", "sse-starlette", "pydantic", "prometheus-client"),
}
EXAMPLE = "takings"
"""The family whose example the built-in model is asked."""
Facts = dict[str, Any]


def doctor(
    model: Annotated[
        str | None,
        option("--model", metavar="DIR|HF_ID", help="Load and test this model."),
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Check the installation, with a self-test.

    Lists versions, devices and extras, and compares a tiny random model in one flattened pass with
    its own attention.
    """
    from pasta_lm.cli.terminal import silence_libraries

    silence_libraries()
    facts = _installation() | _machine()
    facts["builtin_model"] = None if facts["self_test"] is None else _builtin()
    if model is not None:
        facts["model"] = _model(model, dtype, device)
    if json:
        print_json(facts)
    else:
        _print(facts)
    if facts["self_test"] is not None and not facts["self_test"]["is_exact"]:
        raise typer.Exit(1)


def _installation() -> Facts:
    from platform import platform, python_version

    from pasta_lm import __version__

    packages = {name: _version(name) for names in EXTRAS.values() for name in names}
    extras = {
        extra: all(packages[name] is not None for name in names) for extra, names in EXTRAS.items()
    }
    return {
        "pasta_lm": __version__,
        "python": python_version(),
        "platform": platform(),
        "packages": {name: _version(name) for name in ("typer", "rich")} | packages,
        "extras": extras,
    }


def _version(package: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _machine() -> Facts:
    """Return what torch finds; without torch nothing can be found, which is no fault."""
    try:
        from pasta_lm.engines.torch import diagnosis
    except ModuleNotFoundError as exc:
        if (exc.name or "").startswith("pasta_lm"):
            raise
        return {"devices": [], "self_test": None, "model": None}
    test = diagnosis.self_test()
    found = {**asdict(test), "is_exact": test.is_exact}
    return {"devices": diagnosis.devices(), "self_test": found, "model": None}


def _builtin() -> Facts | None:
    """Ask the built-in model its example; None where the installation lacks it."""
    from pasta_lm.errors import ModelNotFoundError
    from pasta_lm.strategies.model import BUILTIN, Pasta
    from pasta_lm.tasks.examples import example
    from pasta_lm.tasks.grader import grade

    try:
        model = Pasta.from_pretrained(BUILTIN, device="cpu")
    except ModelNotFoundError:
        return None
    task = example(EXAMPLE)
    answer = model.generate(task.prompt)
    return {
        "name": BUILTIN,
        "num_parameters": model.engine.loaded.model.num_parameters(),
        "grade": grade(task, answer.text),
        "num_threads": len(answer.trace.threads),
        "wall_s": round(answer.trace.wall_s, 3),
    }


def _model(source: str, dtype: str | None, device: str | None) -> Facts:
    from pasta_lm.engines.torch.diagnosis import describe

    return asdict(describe(source, dtype=dtype, device=device))


def _print(facts: Facts) -> None:
    sections = [_versions(facts), _extras(facts), _health(facts)]
    if facts["model"] is not None:
        sections.append(_model_rows(facts["model"]))
    print_facts(*sections)


Rows = list[tuple[str, str]]


def _versions(facts: Facts) -> Rows:
    packages = [(name, version) for name, version in facts["packages"].items() if version]
    head = [("pasta-lm", facts["pasta_lm"]), ("python", facts["python"])]
    return [*head, ("platform", facts["platform"]), *packages]


def _extras(facts: Facts) -> Rows:
    return [
        (f"[{extra}]", "installed" if is_there else f"pip install 'pasta-lm[{extra}]'")
        for extra, is_there in facts["extras"].items()
    ]


def _health(facts: Facts) -> Rows:
    test = facts["self_test"]
    if test is None:
        return [("devices", "not known without torch")]
    verdict = "exact" if test["is_exact"] else "NOT EXACT"
    measured = f"logits differ by {test['max_difference']:.1e} at most, {test['wall_s']:.1f} s"
    return [
        *(("device", device) for device in facts["devices"]),
        ("self-test", f"{verdict}: {measured} (tiny random Llama, float32)"),
        ("built-in model", _builtin_row(facts["builtin_model"])),
    ]


def _builtin_row(found: Facts | None) -> str:
    if found is None:
        return "missing: install pasta-lm again"
    verdict = "answers its example" if found["grade"] == 1.0 else "does NOT answer its example"
    size = f"{found['num_parameters'] / 1e6:.1f}M parameters"
    return f"{verdict}, grade {found['grade']:.2f}, {found['num_threads']} threads ({size})"


def _model_rows(model: Facts) -> Rows:
    size = f"{model['num_parameters'] / 1e6:.1f}M parameters"
    place = f"{model['dtype']} on {model['device']}"
    last = model["max_position"]
    return [
        ("model", f"{model['name']} ({model['architecture']}, {size}, {place})"),
        ("exact", "yes, tested at load"),
        ("tag pieces", _tags(model["has_tag_pieces"])),
        ("positions", "predict, continue, rotate" if model["can_rotate"] else "predict, continue"),
        ("context", "without bound" if last is None else f"{last + 1} tokens"),
    ]


def _tags(has_tag_pieces: bool) -> str:
    return "yes" if has_tag_pieces else "no: it was not taught PASTA-LANG and answers sequentially"
