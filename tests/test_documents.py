"""Documents are read one by one, faults and all; rows of a job are whole, in order, and its own."""

from __future__ import annotations

import csv
import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from io import StringIO
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pasta_lm import errors
from pasta_lm.documents import DocumentJob, read_documents
from pasta_lm.engines.servers.completions import read_served
from pasta_lm.journal import Row
from pasta_lm.parts.declared import PartsAnswer
from pasta_lm.strategies.model import Pasta
from tests.engines.local.test_grammars import model
from tests.fakes.power_cut import power_cut_after
from tests.fakes.stock_server import StockFaults, StockTestServer
from tests.learn.train.recipes import save_tiny
from tests.stock import engine_at, spelled
from tests.stock_model import greedy

pytest.importorskip("llguidance")

CHAT = [{"role": "user", "content": "Hi."}]
LINES: dict[bytes, tuple[str | int, Any, str | None]] = {
    b'\xef\xbb\xbf{"id": "a", "text": "A."}': ("a", "A.", None),
    b'{"id": 7, "messages": [{"role": "user", "content": "Hi."}]}': (7, CHAT, None),
    b'{"text": "no id"}': ("line 3", "no id", None),
    b'{"id": "a", "text": "again"}': ("a", "again", "the id 'a' occurs twice"),
    b'{"id": "7", "text": "again"}': ("7", "again", "the id '7' occurs twice"),
    b"[1]": ("line 6", "", "not a JSON object"),
    b"{": ("line 7", "", "not JSON"),
    b'{"id": "caf\xe9", "text": "x"}': ("line 8", "", "a text holds half a surrogate"),
    rb'{"id": "h", "text": "\ud83d"}': ("line 9", "", "a text holds half a surrogate"),
    b'{"id": "n"}': ("n", "", "it needs a text"),
    b'{"id": "e", "text": " "}': ("e", "", "the prompt is empty"),
    b'{"id": "5", "text": 5}': ("5", "", "a prompt is a text or a list of messages, not int"),
    b'{"id": [], "text": "x"}': ("line 13", "", "its id is []"),
    b'{"id": "b", "text": "x", "messages": []}': ("b", "", "it needs a text, or a list"),
    b'{"id": "r", "messages": [{"role": "boss"}]}': ("r", "", "a message has the role 'boss'"),
    b'{"text": "a", "n": [{"m": 1, "m": 1}]}': ("line 16", "", "it cannot be read: the key 'm'"),
    b'{"n": %s}' % (b"1" * 5000): ("line 17", "", "it cannot be read: Exceeds the limit"),
}
CELLS = ["\ufeffid,text", 'a,"One,\n""2"""', ",Three.", "c,", "d", "e,x,1", "f\udce9,x", "g,\udce9"]
ROWS = [
    ("a", 'One,\n"2"', None), ("row 3", "Three.", None), ("c", "", "the prompt is empty"),
    ("d", "", "it needs a text"), ("e", "", "it has more cells"), ("f\\udce9", "x", None),
    ("g", "", "its text is not UTF-8"),
]  # fmt: skip
BAD_TEXT = "it needs a text, or a list of messages"
TEXTS = {"a.txt": b"\xef\xbb\xbfAda.", "latin.txt": b"caf\xe9", "b/a.txt": b"Bob.", "b/no": None}


def write(folder: Path, data: bytes, name: str = "docs.JSONL") -> list[Path]:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    return [folder / name]


def write_rows(folder: Path, rows: Sequence[Row]) -> list[Path]:
    return write(folder, "\n".join(map(json.dumps, rows)).encode())


def check(files: Sequence[Path], expected: Sequence[tuple[Any, Any, str | None]]) -> None:
    for document, (*shown, error) in zip(read_documents(files), expected, strict=True):
        assert [document.id, document.prompt] == shown
        assert (document.error is None) is (error is None)
        assert (document.error or "").startswith(error or "")


def test_a_document_that_cannot_be_read_has_an_error_and_all_others_are_read(
    tmp_path: Path,
) -> None:
    check(write(tmp_path, b"\n".join([*LINES, b"", b""])), [*LINES.values()])
    for mark in ",;\t":
        data = "\r\n".join([*CELLS, ""]).replace(",", mark).encode(errors="surrogateescape")
        rows = [(name, text.replace(",", mark), error) for name, text, error in ROWS]
        check(write(tmp_path, data, "docs.csv"), rows)
    files = [write(tmp_path, data, name)[0] for name, data in TEXTS.items() if data]
    check(files[:2], [("a.txt", "Ada.", None), ("latin.txt", "", "it cannot be read: it is not")])
    twins = [files[0], files[2], tmp_path / "no"]
    texts = [("Ada.", None), ("Bob.", None), ("", "it cannot be read: No such file")]
    check(twins, [(str(file), *text) for file, text in zip(twins, texts, strict=True)])


REFUSED = {
    b"id,body\na,b\n": "one column 'text', and no two 'id': it has 'id,body'",
    b"text,text\n,a": "one column 'text'", b"": "one column 'text'", b"id,text\n": "there are no",
    b'id,text\na,"b\n': "cannot be read as CSV: unexpected end of data",
}  # fmt: skip


def test_a_file_without_documents_is_refused_and_one_beside_texts(tmp_path: Path) -> None:
    for data, reason in REFUSED.items():
        files = write(tmp_path, data, "docs.TSV")
        with pytest.raises(errors.InputError, match=reason):
            run(job_of(files), model())
    with pytest.raises(errors.UsageError, match=r"docs\.TSV has many documents and stands beside"):
        [*read_documents([*write(tmp_path, b"Ada.", "a.txt"), *files])]


GUEST = {"properties": {"n": {"enum": [2, 3, 14]}}}
SCHEMA = {"properties": {"id": {"enum": ["Sol", '\u00e9 "B"']}, "g": GUEST}}
COLUMNS = {"id": ("id",), "g.n": ("g", "n")}
HOW: dict[str, Any] = {"max_tokens": 40, "temperature": 1.0, "seed": 3}
GREEDY = {**HOW, "temperature": 0.0}


def job_of(files: Sequence[Path], name: str = "rows.jsonl", **settings: Any) -> DocumentJob:
    return DocumentJob(files, files[0].parent / name, COLUMNS, settings)


def run(job: DocumentJob, pasta: Pasta, how: Any = HOW, **changes: Any) -> list[Row]:
    wanted = pasta.filling(SCHEMA, **how)._replace(**changes)
    for counts in job.run(lambda: (pasta.engine, wanted), Event()):
        assert counts.num_rows == len([*job.rows()])
    return [*job.rows()]


def documents(num: int) -> list[Row]:
    return [{"id": number, "text": f"Doc {number}."} for number in range(num)]


BAD: dict[str, Row] = {
    "it needs a text": {"id": "none"},
    "This model's maximum context length": {"id": "long", "text": "x " * 9000},
    "a message has no text": {"id": "int", "messages": [{"role": "user", "content": 5}]},
}


def test_a_job_gives_each_document_its_own_values_and_each_fault_its_own_row(
    tmp_path: Path,
) -> None:
    good, pasta = documents(20), model()
    files = write_rows(tmp_path, [*good[:3], *BAD.values(), *good[3:]])
    rows = run(job_of(files), pasta)
    assert [row["id"] for row in rows] == [*range(3), *("none", "long", "int"), *range(3, 20)]
    for row, error in zip(rows[3:6], BAD, strict=True):
        assert row.keys() == {"id", "error"}
        assert row["error"].startswith(error)
    for row, document in zip(rows[:3] + rows[6:], good, strict=True):
        alone = pasta.fill(document["text"], SCHEMA, **HOW)
        assert (row["data"], row["unfinished"]) == (alone.data, [])
        assert row["confidence"] == pytest.approx(alone.confidence, abs=1e-3)
    assert len({json.dumps(row.get("data")) for row in rows}) > 3


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_stopped_anywhere_a_job_goes_on_to_the_rows_of_one_go(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, pasta = random.Random(4), model(max_rows=6)
    monkeypatch.setattr("pasta_lm.documents.AT_ONCE", 3)
    files = write_rows(tmp_path, [*documents(20), {"id": "x"}])
    once, stopped = job_of(files, f"once-{name}"), job_of(files, name)
    run(once, pasta)
    whole, num_stops, begun = once.rows_file.read_bytes(), 0, 0
    while whole.count(b"\n", begun) > 10:  # so many rows take more steps than a stop is away
        with power_cut_after(pasta.engine, "step", rng.randrange(25)):
            run(stopped, pasta)
        num_stops, begun = num_stops + 1, stopped.rows_file.stat().st_size
        assert whole.startswith(stopped.rows_file.read_bytes())
        if name.endswith("csv"):  # the table has what there is
            table = list(csv.reader(StringIO(stopped.out.read_text("utf-8"), newline="")))
            assert len(table) == 1 + whole.count(b"\n", 0, begun)
        with stopped.rows_file.open("ab") as file:  # the row that was being written
            file.write(whole[begun : begun + rng.randrange(30)])
    run(stopped, pasta)
    assert num_stops > 3
    assert stopped.rows_file.read_bytes() == whole
    assert stopped.out.read_bytes() == once.out.read_bytes()


DATA = {"id": 'say "hi",\r\no\n', "g": {"n": [1]}}
LIKELY = {"id": 0.5, "g.n": 0.96}
PLAYED = [*documents(3), {"id": "none"}]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Callable[[DocumentJob], list[Row]]:
    """Return what runs a job in which no model decodes."""

    def outcomes(window: Any, left: Iterator[Any]) -> Iterator[Any]:
        for document in left:
            yield [(document, errors.InputError(document.error) if document.error else None)]

    def read(answer: Any, prompt: Any) -> PartsAnswer:
        if prompt == "Doc 0.":
            return PartsAnswer(DATA, "", (), answer, LIKELY)
        if prompt == "Doc 1.":  # half a surrogate pair is no UTF-8
            return PartsAnswer({"id": "\ud83d"}, "", ("g.n",), answer, {"id": 1.0, "g.n": None})
        raise errors.InvalidAnswerError("the data are no Booking", DATA, "")

    monkeypatch.setattr("pasta_lm.documents.Window.outcomes", outcomes)
    pasta = model()
    return lambda job: run(job, pasta, read=read)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_cut_at_every_byte_a_job_goes_on_to_the_same_files(
    tmp_path: Path, name: str, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda handle: None)
    job = job_of(write_rows(tmp_path, PLAYED), name)
    rows, whole, out = play(job), job.rows_file.read_bytes(), job.out.read_bytes()
    assert [row.get("data") for row in rows] == [DATA, {"id": "\ud83d"}, DATA, None]
    assert [row.get("error") for row in rows[2:]] == ["the data are no Booking", BAD_TEXT]
    assert (rows[0]["confidence"], rows[1]["unfinished"]) == (LIKELY, ["g.n"])
    for size in range(len(whole)):
        job.rows_file.write_bytes(whole[:size])
        assert play(job) == rows
        assert (job.rows_file.read_bytes(), job.out.read_bytes()) == (whole, out)
    assert job.write_review(0.95, tmp_path / "r.jsonl") == 2
    low, cut = map(json.loads, (tmp_path / "r.jsonl").read_text("utf-8").splitlines())
    assert (low["id"], low["below"], low["data"]) == (0, {"id": 0.5}, DATA)
    assert (cut["id"], cut["below"], cut["unfinished"]) == (1, {}, ["g.n"])
    if name.endswith("csv"):
        head, *cells = csv.reader(StringIO(out.decode(), newline=""))
        assert ",".join(head) == "id,data.id,g.n,confidence.id,confidence.g.n,unfinished,error"
        assert cells == [
            ["0", DATA["id"], "[1]", "0.5", "0.96", "", ""],
            ["1", "\\ud83d", "", "1.0", "", "g.n", ""],
            ["2", DATA["id"], "[1]", "", "", "", "the data are no Booking"],
            ["none", "", "", "", "", "", BAD_TEXT],
        ]


def test_rows_of_another_job_or_of_none_are_refused_by_name_and_kept(
    tmp_path: Path, play: Any
) -> None:
    files = write_rows(tmp_path, PLAYED)
    job = job_of(files, "rows.csv", model="a", seed=0)
    play(job)
    whole = job.rows_file.read_bytes()
    with pytest.raises(errors.UsageError, match="was begun with other settings: model, seed"):
        play(replace(job_of(files, "rows.csv", model="b", seed=1), model=pytest.fail))
    for other in (documents(3), [*PLAYED[1:], PLAYED[0]]):
        with pytest.raises(errors.UsageError, match=r"other settings: .*contents of documents"):
            play(job_of(write_rows(tmp_path, other), "rows.csv", model="a", seed=0))
    assert job.rows_file.read_bytes() == whole
    write_rows(tmp_path, [*PLAYED, {"id": 4, "text": "Doc 0."}])
    assert play(job)[4] == {**json.loads(whole.splitlines()[0]), "id": 4}
    assert job.rows_file.read_bytes().startswith(whole)
    ordered, other = ({"schema": {key: {} for key in keys}} for keys in ("ab", "ba"))
    play(job_of(files, "ordered.jsonl", **ordered))
    with pytest.raises(errors.UsageError, match="other settings: schema"):
        play(job_of(files, "ordered.jsonl", **other))
    with pytest.raises(errors.UsageError, match=r"two columns .* the name confidence\.a"):
        play(replace(job_of(files, "two.csv"), columns=dict.fromkeys(("a", "confidence.a"), ())))
    for name, out in (("x.jsonl",) * 2, ("y.csv",) * 2, ("z.csv.jsonl", "z.csv")):
        write(tmp_path, b"mine", name)
        with pytest.raises(errors.UsageError, match=rf"{out} is there and was not begun"):
            play(job_of(files, out))
        assert (tmp_path / name).read_bytes() == b"mine"
    with pytest.raises(errors.UsageError, match=r"no folder .*no for the rows"):
        play(job_of(files, "no/rows.jsonl"))


def test_a_second_process_is_refused_and_a_full_disk_loses_no_row(
    tmp_path: Path, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = write_rows(tmp_path, PLAYED)
    job, once = job_of(files), job_of(files, "once.jsonl")
    with job._opened(), pytest.raises(errors.UsageError, match=r"another process .*rows\.jsonl"):
        play(job)
    sync, left = os.fsync, iter(range(4))  # two for the settings

    def failing(handle: int) -> None:
        if next(left, None) is None:
            os.truncate(handle, os.fstat(handle).st_size - 7)  # what the disk had no room for
            raise OSError(28, "No space left on device")
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", failing)
        with pytest.raises(errors.PastaError, match=r"rows\.jsonl cannot be written: No"):
            play(job)
    assert job.rows_file.read_bytes().count(b"\n") == 2
    assert play(job) == play(once)


# --- on servers


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(save_tiny(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture
def start(folder: Path) -> Iterator[Any]:
    """Return what makes a model on servers with these faults, and the servers."""
    served, decode = read_served(folder), greedy(folder)
    known: Any = {"vocabulary": served.vocabulary, "eos_id": min(served.eos_ids)}

    def next_token(ids: Sequence[int], *how: Any) -> int:
        if "Poison" in served.vocabulary.text(ids):
            raise ConnectionAbortedError
        return decode(ids, *how)

    with ExitStack() as stack:

        def begin(*faults: StockFaults | None) -> tuple[Pasta, list[StockTestServer]]:
            tokenize = spelled(served.vocabulary)
            servers = [
                stack.enter_context(
                    StockTestServer(next_token, served.eos_ids, faults=fault, tokenize=tokenize)
                )
                for fault in faults
            ]
            return stack.enter_context(Pasta(engine_at(*servers, **known, timeout_s=2))), servers

        yield begin


FAULTS: Any = [{"dies_after": 30}, {"hangs_after": 30}, {"num_refused": 10**6, "status": 500}]


@pytest.mark.parametrize("fault", [None, *(StockFaults(**fault) for fault in FAULTS)])
def test_a_server_that_fails_loses_no_document_and_none_is_divided(
    start: Any, folder: Path, tmp_path: Path, fault: StockFaults | None
) -> None:
    pasta, servers = start(fault, None)
    rows = run(job_of(write_rows(tmp_path, documents(12))), pasta, GREEDY)
    local = Pasta.from_pretrained(folder, dtype="float32", pool_tokens=4096)
    alone = [local.fill(f"Doc {number}.", SCHEMA, **GREEDY).data for number in range(12)]
    assert [(row["id"], row.get("data")) for row in rows] == [*enumerate(alone)]
    text = pasta.engine.loaded.vocabulary.text
    both = [{text(ids).split(".")[0] for ids in server.prompts} for server in servers]
    assert all(both)
    assert fault or not both[0] & both[1]


def test_where_no_server_is_left_the_job_ends_and_goes_on_later(start: Any, tmp_path: Path) -> None:
    poisoned = [*documents(8), {"id": "p", "text": "Poison."}, {"id": 9, "text": "Doc 9."}]
    job = job_of(write_rows(tmp_path, poisoned))
    for fault, error in (
        (StockFaults(num_refused=10**6, status=401), errors.EndpointError),
        (StockFaults(dies_after=30), errors.RemoteError),
    ):
        with pytest.raises(error, match=r"127\.0\.0\.1"):
            run(job, start(fault)[0])
    rows = run(job, start(None)[0])  # where servers live, one that always fails is a row
    assert [row["id"] for row in rows] == [*range(8), "p", 9]
    assert ["error" in row for row in rows] == [False] * 8 + [True, False]
