"""Forced annotation: the score is that of decoding, tags never change text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pasta_lab.annotate.forced import ForcedAnnotator, Weights
from pasta_lab.cli.app import app
from pasta_lm.engines.local.loading import LoadedModel
from pasta_lm.engines.request import SamplingParams
from pasta_lm.errors import RequestError, UsageError
from pasta_lm.interpreter import PositionStrategy
from pasta_lm.language.document import Document
from pasta_lm.language.tags import ASYNC_CLOSE
from pasta_lm.learn.annotate.filters import Marks, examine
from pasta_lm.learn.annotate.layout_rule import document_of, markdown_rule, proposals
from pasta_lm.learn.data.annotated import read_records
from pasta_lm.strategies import pasta as strategy
from pasta_lm.strategies.requests import forced
from tests.architectures import build, load, loaded
from tests.cli.conftest import taught_folder, untaught_folder  # noqa: F401
from tests.fakes.recording_engine import Recording

PROMPT = "Cats or dogs?"
ANSWER = (
    "Two pets:\n\n- Cats: they sleep most of the long day, and at night they like to sit at a "
    "window and look at birds.\n- Dogs: they run about all of the day, and at night they like to "
    "lie at the door and hear.\n\nSo both of them are fine, cats for sleep and dogs for running."
)
FORKED = [one for one in proposals(ANSWER) if one.blocks]


def log_prob_of_decoding(model: LoadedModel, document: Document) -> float:
    """Return the log-probability of an answer from the logits met while it is decoded."""
    vocabulary = model.vocabulary
    prompt = vocabulary.encode_prompt([{"role": "user", "content": PROMPT}])
    params, whole = SamplingParams(), document.with_lengths(vocabulary.count_tokens)
    request = strategy.request(prompt, params, model.positions)
    ((seen,),) = Recording(model).run([forced(request, whole, vocabulary)])
    total = 0.0
    for step in seen.steps():
        end = vocabulary.piece_id(ASYNC_CLOSE) if step.path else min(model.eos_ids)
        token = end if step.token is None else step.token
        total += float(step.logits_V.log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen2"])
@pytest.mark.parametrize("positions", [PositionStrategy.PREDICT, PositionStrategy.CONTINUE])
@pytest.mark.parametrize("marks", [Marks(), *FORKED], ids=["plain", "blocks", "sync"])
def test_a_score_is_the_log_probability_of_decoding_the_answer(
    name: str, positions: PositionStrategy, marks: Marks
) -> None:
    model = load(name, loaded(name).model)
    model.positions = positions
    document = document_of(ANSWER, marks)
    found = ForcedAnnotator(model).score(PROMPT, document)
    assert sum(found) == pytest.approx(log_prob_of_decoding(model, document), abs=1e-3)
    assert found.text < 0 > found.decisions
    assert (found.promises < 0) == bool(marks.blocks)


@pytest.mark.parametrize("name", ["llama", "gemma", "qwen2", "smollm3"])
def test_the_text_is_kept(name: str) -> None:
    annotator = ForcedAnnotator(loaded(name), Weights(block_nats=1000.0))
    found = annotator(PROMPT, ANSWER)
    assert found.plain_text == ANSWER
    assert isinstance(examine(found.annotator_form(), ANSWER), Document)
    assert len(found.blocks) == 2


def test_the_margin_decides_how_much_is_forked() -> None:
    model = loaded("llama")
    never = ForcedAnnotator(model, Weights(block_nats=-1000.0))
    assert never(PROMPT, ANSWER) == document_of(ANSWER, Marks())
    rule = ForcedAnnotator(model, Weights(rule_nats=10_000.0))(PROMPT, ANSWER)
    expected = markdown_rule(PROMPT, ANSWER)
    assert [type(item) for item in rule.items] == [type(item) for item in expected.items]
    assert never(PROMPT, "Just one line.") == document_of("Just one line.", Marks())
    assert never(PROMPT, "") == document_of("", Marks())


def test_an_answer_beyond_the_models_context_stays_without_tags() -> None:
    short = load("llama", build("llama", max_position_embeddings=64))
    annotator = ForcedAnnotator(short, Weights(block_nats=1000.0))
    assert annotator(PROMPT, ANSWER) == document_of(ANSWER, Marks())
    with pytest.raises(RequestError, match="positions beyond 63"):
        annotator.candidates(PROMPT, ANSWER)


def write_recipe(folder: Path, model: Path) -> Path:
    row = {"id": "a", "prompt": PROMPT, "answer": ANSWER}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    (folder / "recipe.toml").write_text(
        f'model = "{model}"\n[source]\nfile = "{folder / "rows.jsonl"}"\n[output]\n'
        f'folder = "{folder / "out"}"\n[weights]\nblock_nats = 1000.0\n'
    )
    return folder / "recipe.toml"


def test_a_recipe_annotates_by_a_model_without_a_server(
    taught_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recipe = write_recipe(tmp_path, taught_folder)
    assert CliRunner().invoke(app, ["annotate", str(recipe)]).exit_code == 0
    (record,) = read_records(tmp_path / "out" / "annotated.jsonl")
    assert record.document.plain_text == ANSWER
    assert len(record.document.blocks) == 2
    assert "forced annotation" in (tmp_path / "out" / "README.md").read_text()
    recipe.write_text(recipe.read_text().replace("1000.0", "0.0"))
    refused = CliRunner().invoke(app, ["annotate", str(recipe)])
    assert "restore the settings" in str(refused.exception)


def test_an_untaught_model_is_refused(
    untaught_folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    recipe = write_recipe(tmp_path, untaught_folder)
    refused = CliRunner().invoke(app, ["annotate", str(recipe)])
    assert isinstance(refused.exception, UsageError)
    assert "was not taught PASTA-LANG" in str(refused.exception)
