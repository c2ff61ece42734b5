"""Several documents in a pass, or on servers: what each would be alone, in order, none lost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pasta_lm.documents import JobFile
from pasta_lm.engines.request import Failed, Finished
from pasta_lm.errors import EndpointError, InvalidAnswerError, RemoteError, UsageError
from pasta_lm.journal import Row
from pasta_lm.models.folder import FILE_NAME
from pasta_lm.strategies.many import Job
from pasta_lm.strategies.model import Pasta
from tests.engines.local.test_grammars import BOOKING, model
from tests.fakes.stock_server import StockFaults, StockTestServer
from tests.learn.train.recipes import save_tiny
from tests.stock import engine_at, spelled
from tests.stock_model import greedy

pytest.importorskip("llguidance")

TEXTS = [f"Ada {'and others ' * (number % 3)}came on day {number}." for number in range(4)]
HOW = [{}, {"temperature": 1.0, "top_p": 0.9, "seed": 3}]
SCHEMA = {"properties": {"hotel": {"enum": ["Sol", "Aurora"]}, "nights": {"enum": [2, 3, 14]}}}


@pytest.mark.parametrize("how", HOW, ids=["greedy", "seeded"])
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_list_of_documents_is_a_list_of_what_each_is_alone(name: str, how: Any) -> None:
    pasta = model(name)
    params = {"max_tokens": 60, **how}
    filled = pasta.fill(TEXTS, BOOKING, **params)
    assert [one.text for one in filled] == [
        pasta.fill(text, BOOKING, **params).text for text in TEXTS
    ]
    questions = ["Who came?", "When?"]
    asked = pasta.ask(TEXTS, questions, **params)
    alone = [pasta.ask(text, questions, **params) for text in TEXTS]
    assert [one.data for one in asked] == [one.data for one in alone]
    assert pasta.fill([], BOOKING) == []
    with pytest.raises(UsageError, match="watch is for one prompt"):
        pasta.fill(TEXTS, BOOKING, watch=print)  # type: ignore[call-overload]


def rows_of(folder: Path, pasta: Pasta, rows: list[Row], check: Any = None) -> list[Row]:
    """Return the rows of a job over the rows of a file."""
    docs = folder / "docs.jsonl"
    docs.write_text("\n".join(map(json.dumps, rows)), "utf-8")
    out = JobFile(folder / "out.jsonl", {"hotel": ("hotel",), "nights": ("nights",)})
    job = Job([docs], out, {}, check=check)
    for _ in job.run(lambda: (pasta.engine, pasta.filling(SCHEMA, max_tokens=40, seed=0))):
        pass
    return [*out.rows()]


def documents(num: int) -> list[Row]:
    return [{"id": number, "text": f"Doc {number}."} for number in range(num)]


def test_a_job_gives_each_document_its_own_values_and_each_fault_its_own_row(
    tmp_path: Path,
) -> None:
    bad: dict[str, Row] = {
        "it has no text": {"id": "none"},
        "This model's maximum context length": {"id": "long", "text": "x " * 9000},
        "a message has the role 'boss'": {
            "id": "role",
            "messages": [{"role": "boss", "content": "x"}],
        },
        "the prompt is empty": {"id": "empty", "messages": [{"role": "user", "content": ""}]},
    }
    good = [*documents(12), {"id": "m", "messages": [{"role": "user", "content": TEXTS[0]}]}]
    pasta = model()
    rows = rows_of(tmp_path, pasta, [*good[:3], *bad.values(), *good[3:]])
    assert [row["id"] for row in rows] == [
        *range(3), "none", "long", "role", "empty", *range(3, 12), "m"
    ]  # fmt: skip
    for row, error in zip(rows[3:7], bad, strict=True):
        assert row.keys() == {"id", "error"}
        assert row["error"].startswith(error)
    for row, document in zip(rows[:3] + rows[7:], good, strict=True):
        alone = pasta.fill(document.get("text") or document["messages"], SCHEMA, max_tokens=40)
        assert (row["data"], row["unfinished"]) == (alone.data, [])


def test_data_that_a_class_refuses_are_kept_with_the_reason(tmp_path: Path) -> None:
    def check(answer: Any) -> None:
        if answer.trace.usage()["prompt_tokens"] % 2:
            raise InvalidAnswerError("odd", answer.data, answer.text)

    rows = rows_of(tmp_path, model(), documents(8), check)
    refused = [row for row in rows if "error" in row]
    assert {row["error"] for row in refused} <= {"odd"}
    assert all(row["data"].keys() == {"hotel", "nights"} for row in rows)


# --- on servers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(save_tiny(tmp_path_factory.mktemp("models") / "model"))
    config = json.loads((folder / FILE_NAME).read_text())
    exact = {**config, "positions": "continue", "join": "recompute"}
    (folder / FILE_NAME).write_text(json.dumps(exact))
    return folder


FAULTS = {
    "dies in an answer": StockFaults(dies_after=30),
    "is slow": StockFaults(pause_s=0.02),
    "answers with 500": StockFaults(num_refused=10**6, status=500),
    "hangs": StockFaults(hangs_after=30),
}


@pytest.fixture
def served(folder: Path) -> Iterator[Any]:
    """Return what makes a model on servers with these faults, and the servers."""
    local = Pasta.from_pretrained(folder, dtype="float32", pool_tokens=4096)
    vocabulary, (eos_id, *_) = local.engine.loaded.vocabulary, sorted(local.engine.loaded.eos_ids)
    next_token, tokenize = greedy(folder), spelled(vocabulary)
    with ExitStack() as stack:

        def start(*faults: StockFaults | None) -> tuple[Pasta, list[StockTestServer]]:
            servers = [
                stack.enter_context(
                    StockTestServer(next_token, eos_id, faults=each, tokenize=tokenize)
                )
                for each in faults
            ]
            engine = engine_at(*servers, vocabulary=vocabulary, eos_id=eos_id, timeout_s=2.0)
            return stack.enter_context(Pasta(engine)), servers

        yield local, start


@pytest.mark.parametrize("fault", FAULTS)
def test_a_server_that_fails_loses_no_document(served: Any, tmp_path: Path, fault: str) -> None:
    local, start = served
    pasta, servers = start(FAULTS[fault], None)
    rows = rows_of(tmp_path, pasta, documents(12))
    assert [row["id"] for row in rows] == [*range(12)]
    expected = [local.fill(f"Doc {number}.", SCHEMA, max_tokens=40).data for number in range(12)]
    assert [row.get("data") for row in rows] == expected
    assert all(server.prompts for server in servers), "both were asked"


def test_each_document_s_parts_are_decoded_by_one_server(served: Any, tmp_path: Path) -> None:
    _, start = served
    pasta, servers = start(None, None)
    rows_of(tmp_path, pasta, documents(8))
    vocabulary = pasta.engine.loaded.vocabulary
    texts = [{vocabulary.text(ids).split(".")[0] for ids in one.prompts} for one in servers]
    assert texts[0]
    assert texts[1]
    assert not texts[0] & texts[1]


def test_where_no_server_is_left_the_job_ends_and_goes_on_later(
    served: Any, tmp_path: Path
) -> None:
    _, start = served
    pasta, _ = start(StockFaults(dies_after=60))
    with pytest.raises(RemoteError, match="broke off|no connection"):
        rows_of(tmp_path, pasta, documents(12))
    pasta, _ = start(None)
    rows = rows_of(tmp_path, pasta, documents(12))
    assert [(row["id"], "error" in row) for row in rows] == [(n, False) for n in range(12)]


def test_a_document_that_fails_on_every_server_is_a_row_while_they_live(
    served: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, start = served
    pasta, _ = start(None)
    engine, poisoned = pasta.engine, set[int]()
    step, submit = engine.step, engine.submit

    def watched(request: Any) -> int:
        number = submit(request)
        if "Doc 3." in engine.loaded.vocabulary.text(request.prompt):
            poisoned.add(number)
        return number

    def failing() -> Any:
        ends = [(number, event) for number, event in step() if isinstance(event, Finished)]
        return [(n, Failed(RemoteError("500")) if n in poisoned else event) for n, event in ends]

    monkeypatch.setattr(engine, "submit", watched)
    monkeypatch.setattr(engine, "step", failing)
    rows = rows_of(tmp_path, pasta, documents(6))
    assert [row["id"] for row in rows if "error" in row] == [3]
    assert rows[3] == {"id": 3, "error": "500"}


def test_a_server_that_refuses_all_requests_ends_the_job(served: Any, tmp_path: Path) -> None:
    _, start = served
    pasta, _ = start(StockFaults(num_refused=10**6, status=401))
    with pytest.raises(EndpointError):
        rows_of(tmp_path, pasta, documents(3))
