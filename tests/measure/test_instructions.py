"""A run on instructions by a tiny model: its records, its resumption, report and pages."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
import torch

from pasta_lm.errors import InputError
from pasta_lm.interpreter.positions import Join, PositionStrategy
from pasta_lm.journal import Row, write_rows
from pasta_lm.language.document import Document, parse
from pasta_lm.learn.data.annotated import Record
from pasta_lm.learn.data.encode import NO_LABEL, EncodedExample, encode_example
from pasta_lm.learn.train.losses import collate, token_nats
from pasta_lm.measure import instructions
from pasta_lm.measure.answering import AnswerSettings, Models, SetPrompt
from pasta_lm.measure.cost import ReadingSystem, add_cost, measure, read_references
from pasta_lm.measure.instructions import SCORED, TIMED, UNMASKED, InstructionSettings, workloads
from pasta_lm.measure.prompt_sets import SetFiles, read_ifeval, read_labels, read_sets
from pasta_lm.measure.table import Report, to_json
from pasta_lm.run_folder import RunFolder
from pasta_lm.strategies.model import Pasta
from tests.architectures import loaded
from tests.learn.train.recipes import labelled_logits
from tests.tiny import tiny

ROOT = Path(__file__).parents[2]
NAMES = {"taught": True, "plain": False}


@pytest.fixture(autouse=True)
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw few bootstrap samples: intervals have tests of their own."""
    monkeypatch.setattr("pasta_lm.measure.table.NUM_DRAWS", 50)


def settings(folder: Path, **changes: Any) -> InstructionSettings:
    file, labels = folder / "alpaca.jsonl", folder / "labels.json"
    prompts = ["Give me five tips.", "Who was it?", "Say <b>hello</b>.", "How?"]
    rows = [{"id": n, "instruction": text} for n, text in enumerate(prompts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts = {"0": "several", "1": "one", "2": "one", "3": "between"}
    labels.write_text(json.dumps({"parts": parts}))
    sets = SetFiles(alpaca=str(file), alpaca_parts=str(labels))
    usual: dict[str, Any] = {"model": "taught", "baseline": "plain", "sets": sets}
    usual |= {"max_tokens": 40, "num_timed": 1, "num_unmasked": 2}
    return InstructionSettings(**(usual | changes))


def answered(folder: Path, **changes: Any) -> RunFolder:
    def load(_: AnswerSettings, names: Iterable[str]) -> Models:
        return {name: tiny(name, has_tag_pieces=NAMES[name]) for name in names}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AnswerSettings, "load", load)
        patch.setattr(Pasta, "close", lambda _: None)  # other tests share the models
        patch.setattr(AnswerSettings, "hashes", lambda *_: {})
        patch.setattr("pasta_lm.measure.answering.require_models", lambda _: None)
        own = settings(folder, **changes)
        instructions.evaluate_instructions(folder / "run", own, lambda *_: None)
    return RunFolder(folder / "run")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return answered(tmp_path_factory.mktemp("instructions"))


def test_every_prompt_is_answered_by_both_and_some_alone_and_without_the_mask(
    run: RunFolder,
) -> None:
    rows, own = run.rows, run.settings_of(InstructionSettings)
    assert not any(wanted.lacking() for wanted in workloads(run, own, read_sets(own.sets)))
    assert [len(rows(name)) for name in (SCORED, TIMED, UNMASKED)] == [8, 2, 2]
    assert all(row["wall_s"] for row in rows(TIMED))
    assert {row["system"] for row in rows(UNMASKED)} == {"pasta"}


def test_no_prompt_is_stored(run: RunFolder) -> None:
    for path in run.path.iterdir():
        assert "five tips" not in path.read_text(), path


def test_the_taught_model_answers_by_the_strategy_that_is_asked_for(tmp_path: Path) -> None:
    run = answered(tmp_path, strategy="prompt-lookup", num_timed=0, num_unmasked=0)
    ours = [row for row in run.rows(SCORED) if row["system"] == "pasta"]
    assert {row["strategy"] for row in ours} == {"prompt-lookup"}
    assert "strategy: prompt-lookup" in instructions.instructions_report(run.path).markdown()


def test_the_report_has_speed_structure_and_text_by_what_is_asked_for(run: RunFolder) -> None:
    found = instructions.instructions_report(run.path).to_dict()["sets"]["alpaca"]
    assert found["num_prompts"] == 4
    counts = {name: one["num_prompts"] for name, one in found["parts"].items()}
    assert counts == {"one": 2, "several": 1, "between": 1}
    assert found["num_timed"] == 1
    assert found["realised_speedup"]["mean"] > 0
    assert found["legal"] == 1.0
    assert found["num_unmasked"] == 2
    assert found["text"]["cut"]["num_pairs"] == 4


def empty_run(folder: Path) -> tuple[RunFolder, list[SetPrompt]]:
    own = settings(folder)
    files, prompts = RunFolder(folder / "run"), read_sets(own.sets)
    files.begin(asdict(own))
    rows = [{"id": one.id, "set": one.group, "parts": one.parts} for one in prompts]
    write_rows(files.path / "prompts.jsonl", rows)
    return files, prompts


def row(system: str, prompt: str, program: str, text: str, path: int) -> Row:
    key = {"id": f"{system}/{prompt}", "prompt_id": prompt, "system": system}
    usual = {"finish_reason": "stop", "num_illegal": 0, "num_content_tokens": 10}
    answer = {"text": text, "program": program, "critical_path": path, "kind": "generated"}
    return {**key, **usual, **answer}


def test_figures_of_drawn_answers_are_those_that_a_hand_computes(tmp_path: Path) -> None:
    begun, prompts = empty_run(tmp_path)
    block = '<promise topic="{0}" tokens="1"/><async>1. {1}\n</async>'
    forked = block.format("a", "Eat fruit.") + block.format("a", "Sleep well at night.")
    listed = "Sleep, rest, eat fruit, sleep, rest, eat fruit."
    rows = []
    for one in prompts:
        is_list = one.id == "alpaca/0"
        text = "1. Eat fruit.\n1. Sleep well at night.\n" if is_list else "No."
        rows.append(row("pasta", one.id, forked if is_list else "No.", text, 5))
        base = listed if is_list else "No."
        rows.append(row("sequential", one.id, base, base, 10))
    begun.journal(SCORED).append(rows)
    report = instructions.instructions_report(begun.path)
    found = report.to_dict()["sets"]["alpaca"]
    several, one = found["parts"]["several"], found["parts"]["one"]
    assert found["theoretical_speedup"]["mean"] == 2
    assert (several["forks"]["mean"], one["forks"]["mean"]) == (1, 0)
    figures = several["text"]["repetition"]
    assert [figures[key]["mean"] for key in ("pasta", "sequential", "difference")] == [0, 0.2, -0.2]
    assert found["num_timed"] == 0
    assert found["realised_speedup"] is None
    page = report.markdown()
    whole, parts = (page.partition(f"## {name}\n")[2] for name in ("alpaca", "alpaca, several"))
    assert "| theoretical speedup |" in whole.partition("\n## ")[0]
    shorter = parts.partition("\n## ")[0]
    assert "no speedup is given: lengths are" in shorter
    assert "| theoretical speedup |" not in shorter


def test_an_open_run_says_how_many_prompts_are_not_answered(tmp_path: Path) -> None:
    begun, prompts = empty_run(tmp_path)
    with pytest.raises(InputError, match="no prompt that both systems answered"):
        instructions.instructions_report(begun.path)
    first = prompts[0].id
    begun.journal(SCORED).append(
        [row(name, first, "No.", "No.", 1) for name in ("pasta", "sequential")]
    )
    report = instructions.instructions_report(begun.path)
    assert report.to_dict()["num_unanswered"] == 3
    assert "num unanswered: 3" in report.markdown()


class TestSets:
    def test_own_corpora_give_their_held_out_rows(self) -> None:
        corpora = ROOT / "corpora"
        files = SetFiles(
            starter=str(corpora / "starter"), instructions=str(corpora / "instructions")
        )
        found = read_sets(files)
        assert len(found) == 300
        assert {one.group for one in found} == {"starter", "instructions"}
        assert all(one.parts and one.text for one in found)

    def test_the_first_prompts_of_a_set_do_not_depend_on_the_limit(self, tmp_path: Path) -> None:
        files = settings(tmp_path).sets
        assert read_sets(files, 2) == read_sets(files)[:2]

    @pytest.mark.parametrize(
        ("parts", "message"),
        [
            ({"0": "one"}, "no label for 3 prompts, such as 1"),
            ({"7": "many"}, "7 is 'many', none of one, several, between"),
        ],
    )
    def test_a_missing_and_a_wrong_label_are_named(
        self, tmp_path: Path, parts: dict[str, str], message: str
    ) -> None:
        files = settings(tmp_path).sets
        (tmp_path / "labels.json").write_text(json.dumps({"parts": parts}))
        with pytest.raises(InputError, match=message):
            read_sets(files)

    def test_without_a_set_nothing_can_be_asked(self) -> None:
        with pytest.raises(InputError, match="no set of prompts"):
            read_sets(SetFiles())

    def test_the_labels_of_alpacaeval_are_of_its_prompts(self, shared_data: Path) -> None:
        file = shared_data / "alpaca_eval" / "alpacaeval_instructions.jsonl"
        labels = read_labels(ROOT / "lab" / "benchmarks" / "labels" / "alpaca_parts.json")
        with file.open(encoding="utf-8") as lines:
            assert labels.keys() == {str(json.loads(line)["id"]) for line in lines}


class TestIfeval:
    IDS = ("punctuation:no_comma", "detectable_format:number_highlighted_sections")
    PROMPT = {
        "key": 1,
        "prompt": "Say it without commas and in two highlighted parts.",
        "instruction_id_list": [*IDS],
        "kwargs": [{}, {"num_highlights": 2}],
    }

    SENTENCES = {
        "prompt": "Two sentences.",
        "instruction_id_list": ["length_constraints:number_sentences"],
        "kwargs": [{"relation": "at least", "num_sentences": 2}],
    }

    @pytest.mark.parametrize(
        ("prompt", "text", "strict", "loose"),
        [
            (PROMPT, "One *part* and *another*", [True, True], [True, True]),
            (PROMPT, "One *part*, and *another*", [False, True], [False, True]),
            (PROMPT, "Sure, here:\nOne *part* and *another*", [False, True], [True, True]),
            (PROMPT, "", [False, False], [False, False]),
            # Sentences are counted without a download.
            (SENTENCES, "One is here. Two is here.", [True], [True]),
            (SENTENCES, "One is here", [False], [False]),
        ],
    )
    def test_the_checkers_say_what_is_followed(
        self, prompt: dict[str, Any], text: str, strict: list[bool], loose: list[bool]
    ) -> None:
        pytest.importorskip("lm_eval")
        assert instructions.check_ifeval(prompt, text) == {"strict": strict, "loose": loose}

    def test_an_instruction_without_a_checker_is_named(self) -> None:
        pytest.importorskip("lm_eval")
        prompt = self.PROMPT | {"instruction_id_list": ["a:b"], "kwargs": [{}]}
        with pytest.raises(InputError, match="no checker for 'a:b'"):
            instructions.check_ifeval(prompt, "Yes")

    def test_accuracies_are_of_prompts_and_of_instructions(self) -> None:
        def verdict(*flags: bool) -> Row:
            return {"strict": list(flags), "loose": list(flags)}

        ours = [verdict(True, True), verdict(False)]
        base = [verdict(True, False), verdict(False)]
        found = to_json(instructions.ifeval_figures([*zip(ours, base, strict=True)]))
        assert found["prompt_strict"]["mean"] == 0.5
        assert found["prompt_strict_baseline"]["mean"] == 0
        assert found["prompt_strict_difference"]["mean"] == 0.5
        assert found["instruction_loose"]["mean"] == pytest.approx(2 / 3, abs=1e-5)
        assert found["instruction_loose_difference"]["mean"] == pytest.approx(1 / 3, abs=1e-5)

    def test_a_file_of_other_rows_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "other.jsonl"
        file.write_text('{"instruction": "Hello"}\n')
        with pytest.raises(InputError, match="other.jsonl:1: no 'prompt'"):
            read_ifeval(file)


MODEL = loaded("llama")
EOS = min(MODEL.eos_ids)
PREDICT = PositionStrategy.PREDICT
ANSWER = parse(
    'Tips:<promise topic="a" tokens="1"/><async> eat fruit</async>'
    '<promise topic="b" tokens="1"/><async> sleep</async> and<sync/> so on.'
)
FORKED = Record("forked", "A question?", ANSWER)
PLAIN = Record("plain", "Another?", Document(ANSWER.without_tags().items))


def numbered(examples: Sequence[EncodedExample]) -> list[list[float]]:
    """Give every label one nat."""
    return [[float(label != NO_LABEL) for label in one.labels] for one in examples]


def system(
    name: str,
    read: object = numbered,
    positions: PositionStrategy = PREDICT,
    join: Join = Join.SHARED,
) -> ReadingSystem:
    return ReadingSystem(name, MODEL.vocabulary, EOS, read, positions, join)  # type: ignore[arg-type]


def count(text: str) -> int:
    return len(MODEL.vocabulary.encode_text(text))


@pytest.mark.parametrize(
    ("positions", "join"),
    [
        (PREDICT, Join.SHARED),
        (PositionStrategy.CONTINUE, Join.SHARED),
        (PositionStrategy.CONTINUE, Join.RECOMPUTE),
    ],
)
def test_every_token_of_the_text_is_counted_once_in_its_region_and_tags_and_the_end_apart(
    positions: PositionStrategy, join: Join
) -> None:
    (row,) = measure([FORKED], [system("pasta", numbered, positions, join)])
    assert row["nats"] == {
        "first": 2,
        "rest": count(" eat fruit") + count(" sleep") - 2,
        "main": count("Tips:") + count(" and"),
        "after_sync": count(" so on."),
    }
    example = encode_example(FORKED, MODEL.vocabulary, EOS, positions, join=join)
    labels = sum(label != NO_LABEL for label in example.labels)
    # Of each promise two pieces, a topic and the block's end; the sync.
    assert row["num_tag_tokens"] == 2 * (2 + count("a") + 1) + 1
    assert row["tag_nats"] == row["num_tag_tokens"]
    assert row["end_nats"] == 1
    assert sum(row["nats"].values()) + row["num_tag_tokens"] + 1 == labels


def test_all_systems_are_divided_by_the_tokens_of_the_plain_text() -> None:
    rows = list(measure([FORKED], [system("pasta"), system("sequential")]))
    tokens = count(ANSWER.plain_text)
    assert [sum(row["num_tokens"].values()) for row in rows] == [tokens, tokens]
    assert rows[1]["nats"] == rows[1]["num_tokens"]


def test_a_model_is_forgotten_before_the_next_one_is_loaded() -> None:
    alive: WeakSet[Reading] = WeakSet()

    class Reading:
        def __call__(self, examples: Sequence[EncodedExample]) -> object:
            return numbered(examples)

    def systems() -> Iterator[ReadingSystem]:
        for name in ("pasta", "baseline", "untaught"):
            assert not alive
            read = Reading()
            alive.add(read)
            yield system(name, read)
            del read

    assert len(list(measure([FORKED, PLAIN], systems()))) == 6


def test_an_answer_without_blocks_is_main_alone() -> None:
    (row,) = measure([PLAIN], [system("pasta")])
    assert row["nats"]["main"] == count(ANSWER.plain_text)
    assert row["num_tokens"]["first"] == row["num_tag_tokens"] == 0


def row_of(name: str, nats: dict[str, float], num_blocks: int = 0) -> dict[str, object]:
    tokens = {"first": 2 * bool(num_blocks), "rest": 0, "main": 8, "after_sync": 0}
    whole = dict.fromkeys(tokens, 0.0) | nats
    key = dict(zip(("system", "reference_id"), name.split("/"), strict=True))
    counts = {"num_blocks": num_blocks, "num_tokens": tokens, "num_tag_tokens": 2}
    return {**key, **counts, "nats": whole, "tag_nats": 0.5}


def test_the_cost_is_the_difference_of_nats_per_token() -> None:
    rows = [
        row_of("pasta/one", {"first": 3, "main": 8}, 2),
        row_of("pasta/two", {"main": 8}),
        row_of("sequential/one", {"first": 2, "main": 7}, 2),
        row_of("sequential/two", {"main": 8}),
    ]
    report = Report("")
    add_cost(report, rows)
    found = report.to_dict()
    assert found["num_answers"] == 2
    assert found["cost"]["mean"] == pytest.approx(2 / 18, abs=1e-5)
    assert found["cost_by_region"]["first"]["mean"] == 0.5
    assert found["cost_by_region"]["main"]["mean"] == pytest.approx(1 / 16, abs=1e-5)
    assert found["cost_by_region"]["after_sync"] is None
    assert found["forked"]["cost"]["mean"] == 0.2
    assert found["tag_nats"]["mean"] == 0.25
    assert "cost_of_visibility" not in found  # nobody read sequentially with the taught model


class TestNatsOfAModel:
    @pytest.mark.parametrize("name", ["llama", "gemma2"])
    def test_they_are_the_cross_entropies_of_the_labels(self, name: str) -> None:
        model = loaded(name)
        examples = [
            encode_example(one, model.vocabulary, min(model.eos_ids), PREDICT)
            for one in (FORKED, PLAIN, FORKED)
        ]
        found = token_nats(model.model, model.vocabulary, examples)
        for example, (nats, given_text) in zip(examples, found, strict=True):
            with torch.inference_mode():
                logits, _ = labelled_logits(model.model, collate([[example]]))
            tags, rows = set(model.vocabulary.piece_ids.values()), iter(logits.log_softmax(-1))
            for place, label in enumerate(example.labels):
                if label == NO_LABEL:
                    assert nats[place] == given_text[place] == 0
                    continue
                log_p = next(rows)
                assert nats[place] == pytest.approx(-log_p[label].item(), abs=1e-4)
                if label in tags:
                    assert math.isinf(given_text[place])
                else:
                    rest = 1 - log_p[sorted(tags)].exp().sum().item()
                    expected = nats[place] + math.log(max(rest, 1e-30))
                    assert given_text[place] == pytest.approx(expected, abs=1e-2)


def test_rows_are_chosen_by_the_ids_of_a_file(tmp_path: Path) -> None:
    starter = Path(__file__).parents[2] / "corpora" / "starter"
    found = read_references(starter / "starter.jsonl", starter / "held_out.txt")
    assert [one.id for one in found] == (starter / "held_out.txt").read_text().split()
    unknown = tmp_path / "ids.txt"
    unknown.write_text("starter-0001\nstarter-9999\n")
    with pytest.raises(InputError, match="has no starter-9999"):
        read_references(starter / "starter.jsonl", unknown)
