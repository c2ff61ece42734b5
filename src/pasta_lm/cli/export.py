"""``pasta export``: write a model as stock inference servers load it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pasta_lm.cli.flags import MODELS, option
from pasta_lm.cli.terminal import say
from pasta_lm.errors import UsageError
from pasta_lm.interpreter.positions import Join, PositionStrategy

if TYPE_CHECKING:
    from pasta_lm.models.load import Pretrained


def export(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODELS)],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The folder, or the .gguf file.")],
    merged: Annotated[
        bool, option("--merged", "Write a model folder for transformers, vLLM and SGLang.")
    ] = False,
    gguf: Annotated[bool, option("--gguf", "Write a GGUF file for llama.cpp.")] = False,
    dtype: Annotated[
        str, option("--dtype DTYPE", "float32, bfloat16 or float16; GGUF files also q8_0.")
    ] = "bfloat16",
) -> None:
    """Write a model, adapter merged, for stock servers.

    The tag pieces are special tokens. The output is complete or not there: nothing is overwritten,
    and nothing is left after an error.
    """
    if merged is gguf:
        hint = "--merged writes a folder for vLLM and SGLang, --gguf a file for llama.cpp"
        raise UsageError("give either --merged or --gguf", hint=hint)
    from pasta_lm.models.export import export_gguf, export_merged

    if merged:
        done, server = export_merged(model, out, dtype), "vllm serve"
    else:
        done, server = export_gguf(model, out, dtype), "llama-server -m"
    num_parameters, num_pieces = done.source.model.num_parameters(), len(done.source.piece_ids)
    typer.echo(
        f"{out}: {num_parameters / 1e6:,.1f} M parameters, {done.dtype}, "
        f"{done.num_bytes / 1e6:,.1f} MB, {num_pieces} tag pieces; {server} {out}"
    )
    say(_exactness(done.source))


def _exactness(model: Pretrained) -> str:
    if not model.piece_ids:
        return "this model has no tag pieces: it was not taught PASTA-LANG"
    if model.config is None:
        unknown = "it is not known with which positions this model was trained"
        return f"{unknown}; a stock server is exact for positions continue with join recompute"
    positions, join = model.config.positions, model.config.join
    exactness, needs = "exact", ", and pasta run --engine needs --allow-inexact"
    if positions is not PositionStrategy.CONTINUE:
        exactness = f"not exact{needs}"
    elif join is Join.SHARED:
        exactness = f"exact up to an answer's first sync{needs}"
    return f"trained with positions {positions}, join {join}: a stock server is {exactness}"
