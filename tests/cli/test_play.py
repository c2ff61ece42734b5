"""``pasta play``, and the threads that it and ``run`` show in a terminal."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.console import Console

from pasta_lm.cli import thread_view
from pasta_lm.cli.terminal import console, harmless
from pasta_lm.cli.thread_view import ThreadViews, picture, summary
from pasta_lm.cli.view import read_scenes
from pasta_lm.engines.request import SamplingParams
from pasta_lm.engines.scripted import ScriptedEngine
from pasta_lm.interpreter.trace import Trace
from pasta_lm.language import check, parse
from tests.cli.conftest import Pasta

SCENES = read_scenes()
ENGINE = ScriptedEngine(
    parse(
        'Go. <promise topic="one" tokens="1"/><async>1 1 1 1</async> and '
        '<promise topic="two" tokens="1"/><async>2 2</async><sync/> End.'
    )
)


def drawn(drawing: object, width: int = 80, height: int = 24) -> str:
    where = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    with where.capture() as capture:
        where.print(drawing)
    return capture.get()


def views_after(num_steps: int, engine: ScriptedEngine = ENGINE, **params: object) -> ThreadViews:
    lanes = ThreadViews()
    request = engine.request("p", SamplingParams(**params))  # type: ignore[arg-type]
    for _, events in zip(range(num_steps), engine.steps(request), strict=False):
        for event in events:
            lanes.take(event)
    return lanes


@pytest.mark.parametrize("name", SCENES)
def test_a_scene_is_valid_and_worth_showing(pasta: Pasta, name: str) -> None:
    prompt, text = SCENES[name]["prompt"], SCENES[name]["answer"]
    document = parse(text, "annotator")
    assert not check(text, "annotator")
    assert document.num_syncs == 1
    assert all(len(block.plain_text.split()) >= 5 for block in document.blocks)
    result = pasta("play", "--example", name)
    assert result.code == 0
    assert result.out.startswith(f"> {prompt}\n\nmain ")
    assert document.plain_text.split() == result.out.split("tokens\n\n")[1].split()


def test_piped_it_has_no_colour_no_animation_and_claims_no_speedup(pasta: Pasta) -> None:
    result = pasta("play")
    assert "\x1b" not in result.out + result.err
    assert max(map(len, result.out.splitlines())) <= 80
    assert result.err == (
        "pasta: simulated, no wall clock, 194 tokens of text by 5 threads in 118 steps, "
        "1.64 times fewer than one thread's\n"
    )


def test_it_needs_neither_torch_nor_tokenizers() -> None:
    code = (
        "import sys; sys.argv = ['pasta', 'play']\n"
        "sys.modules |= dict.fromkeys(['torch', 'transformers', 'tokenizers'])\n"
        "from pasta_lm.cli import main; main()"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_picture_has_a_row_for_each_thread_and_a_column_for_each_step() -> None:
    where = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=60)
    assert str(picture(ENGINE.answer().trace, where)).splitlines() == [
        "main   ====v====v..^=        12",
        "1 one      ======      6 of ~10",
        "2 two           ====   4 of ~10",
        "step   0         10      tokens",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_picture_fits_its_width(width: int) -> None:
    for scene in SCENES.values():
        trace = ScriptedEngine(parse(scene["answer"], "annotator")).answer().trace
        lines = str(picture(trace, Console(width=width))).splitlines()
        assert max(map(len, lines)) <= width
        assert len(set(map(len, lines))) == 1


def test_the_summary_names_the_kind_of_its_figures() -> None:
    trace = Trace.from_json(ENGINE.answer().trace.to_json().replace("simulated", "random-weights"))
    trace.wall_s = 0.214
    steps = "11 tokens of text by 3 threads in 14 steps, 1.27 times more than one thread's"
    assert summary(trace).startswith(f"0.21 s (random-weights), {steps}")
    trace.finish_reason = "length"
    assert summary(trace).endswith(", cut at 22 tokens")


def test_the_live_view_shows_main_on_top_and_threads_side_by_side() -> None:
    rows = [line.rstrip() for line in drawn(views_after(11), width=60).splitlines()]
    assert rows[:2] == ["main", "Go. [1 one] and [2 two]"]
    assert rows[3] == "1 one                   done  2 two               1 of ~10"
    assert rows[5] == "1 1 1 1                       2"


def test_the_live_view_names_the_threads_that_a_sync_joined() -> None:
    assert "[2 two][sync 1 2] End." in drawn(views_after(99))


@pytest.mark.parametrize(("width", "height"), [(20, 8), (80, 24), (120, 10)])
def test_many_threads_fit_the_terminal(width: int, height: int) -> None:
    blocks = "".join(f'<async topic="part {n}">{"word " * 30}</async>' for n in range(40))
    engine = ScriptedEngine(parse(blocks, "annotator"))
    for num_steps in (1, 20, 100, 200):
        lines = drawn(views_after(num_steps, engine, max_tokens=5000), width, height).splitlines()
        assert len(lines) <= height
        assert max(map(len, lines), default=0) <= width
    assert "more" in lines[-1]


def test_live_threads_leave_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    where = Console(file=io.StringIO(), force_terminal=True, width=60, height=20)
    monkeypatch.setattr(thread_view, "can_animate", lambda: True)
    monkeypatch.setattr(thread_view, "console", lambda _: where)
    with thread_view.live_threads() as show:
        for events in ENGINE.steps(ENGINE.request("p")):
            show(events)
    assert isinstance(where.file, io.StringIO)
    written = where.file.getvalue()
    assert "1 one" in written
    assert written.endswith(("\x1b[2K", "\x1b[?25h"))


@pytest.mark.parametrize("columns", ["0", "x"])
def test_a_width_that_no_terminal_has_is_no_fault(columns: str) -> None:
    command, env = [sys.executable, "-m", "pasta_lm", "play"], {**os.environ, "COLUMNS": columns}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert "tomato" in done.stdout


def test_no_color_turns_colours_off(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    assert not console(stream).no_color
    monkeypatch.setenv("NO_COLOR", "1")
    assert console(stream).no_color


def test_text_of_a_model_cannot_move_the_cursor() -> None:
    assert harmless("a\x1b[2Jb\r\n\tc\u009b") == "a [2Jb \n\tc "
