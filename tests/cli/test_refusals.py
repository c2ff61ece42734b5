"""What verbs refuse: a line that says what is wrong, an exit code, and nothing printed."""

from __future__ import annotations

import shlex
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Pasta

FILES = {
    "answers": '{"id": "a", "instruction": "Name two things.", "response": "Two."}',
    "empty": "\n",
    "note.md": "Ada came.",
    "open": "{",
    "list": "[]",
    "integer": '{"type": "integer"}',
    "twice.json": '{"a": 1, "a": 2}',
    "strin": '{"properties": {"a": {"type": "strin"}}}',
    "texts": '{"name": "str"}',
    "field": '{"properties": {"a": "str"}}',
    "object": '{"properties": {"a": {"type": "integer"}, "b": {}}}',
}
RUN, FILL, COST = "run hello", "fill Book. --model ./nowhere --schema", "evaluate cost {answers}"
REPLAY, BENCH = "replay {answers}", "bench -m nowhere"
ALPACA = "evaluate alpaca --out o --model ./no"
ENGINE, SERVE = "--engine http://127.0.0.1:1", "serve --model /nowhere"
INSTRUCTIONS = "evaluate instructions --out o --model m"
LABELLED = f"{INSTRUCTIONS} --set sets.alpaca={{answers}} --set sets.alpaca_parts="
OBJECTS = f"{FILL} ", f"{REPLAY} --random ", f"{ALPACA} --set instructions=", LABELLED
REFUSALS = [
    # the command line
    ("chek", 2, "pasta: no such command 'chek'\n    hint: did you mean 'check'?\n"),
    ("play --sped", 2, "pasta: no such option: --sped\n    hint: did you mean --speed?\n"),
    ("check", 2, "pasta: missing argument 'FILE'\n    hint: pasta check --help\n"),
    ("play --speed x", 2, "pasta: invalid value for '--speed': "),
    ("play --example lunch", 2, "lunch"),
    # models, settings and devices
    (f"{RUN} --strategy paste", 2, "one of pasta, sequential"),
    (f"{RUN} --positions oracle", 2, "one of predict, continue"),
    (f"{RUN} --temperature -1", 2, "at least 0"),
    (f"{RUN} --max-tokens 0", 2, "at least 1"),
    (f"{RUN} --model {{taught}} --device abacus", 2, "hint: "),
    (f"{RUN} --model {{taught}} --dtype int4", 2, "hint: "),
    *(
        (f"{verb} --model ./nowhere --{name}-penalty nan", 2, f"{name}_penalty is nan")
        for verb in ("run Hi", "fill Hi --schema {object}")
        for name in ("repetition", "presence", "frequency")
    ),
    # schemas and questions
    ("fill Book. --model {taught}", 2, "there is no schema"),
    (f"{FILL} {{open}}", 3, "cannot be read as JSON"),
    (f"{FILL} {{list}}", 3, "is no JSON schema"),
    (f"{FILL} {{integer}}", 2, "has no parts"),
    (f"{FILL} no.json", 3, "no.json"),
    *((f"{verb}{{twice}}", 3, "'a' stands twice") for verb in OBJECTS),
    (f"{FILL} {{strin}}", 2, "strin, field a: no such type 'strin'\n    hint: one of array"),
    (f"{FILL} {{texts}}", 2, "it has no properties), so it has no parts\n    hint: the smallest"),
    (f"{FILL} {{field}}", 2, "the property 'a' is 'str', which is no schema"),
    (f"{FILL} 'name, year inr'", 2, "field year: no such type 'inr'\n    hint: one of str"),
    (f"{FILL} 'the name, name'", 2, "--schema, field the: no such type 'name'"),
    (f"{FILL} name,name", 2, "field 'name' stands twice"),
    (f"{FILL} s.yaml", 2, "field 's.yaml' is not a name, or a name and a type"),
    (f"{FILL} json:JSONDecoder", 2, "is no class of pydantic that can be imported"),
    ("fill -f {empty} --schema name", 2, "the prompt is empty\n    hint: pasta fill -f"),
    ("fill -f {empty} -f {list} --schema name", 2, "empty is empty"),
    ("fill -f {list} -f {list} --schema name --trace t", 2, "the trace of one answer"),
    ("run -f {list} -f {list}", 2, "run answers one file"),
    ("run {note}", 2, "note.md is the name of a file\n    hint: -f"),
    ("run hello --n 2 --trace t", 2, "the trace of one answer"),
    ("run hello --trace no/t", 2, "no folder no for the trace"),
    (f"{FILL} {{object}} --after a", 2, "--after total=items"),
    (f"{FILL} {{object}} --after a=c", 2, "no part is named"),
    (f"{FILL} {{object}} --after a=a", 2, "for each other"),
    ("ask {empty} {empty} --model {taught}", 2, "the prompt is empty\n    hint: pasta ask"),
    ("ask {list} {empty}", 2, "the list of questions is empty"),
    ("ask {list} no.txt", 3, "no such file: no.txt"),
    ("ask {list} {list} Who?", 2, "is a file, and more than a file was given"),
    # texts, traces, recipes and answers
    ("check nowhere.txt", 3, "nowhere.txt"),
    ("check .", 3, ". cannot be read"),
    ("check - --form block", 2, "--form"),
    ("check - --fix --format json", 2, "--fix prints a text"),
    ("view {list}", 3, "not a trace"),
    *(
        (f"{verb} x.toml", 2, "x.toml cannot be read: No such file or directory\n    hint: ")
        for verb in ("train sft", "train preference", "annotate")
    ),
    (REPLAY, 2, "either --model or --random"),
    (f"{REPLAY} --model a --random b", 2, "either --model or --random"),
    (f"{REPLAY} --model a --tokenizer b", 2, "--tokenizer belongs to --random"),
    (f"{REPLAY} --random ./nowhere.json", 3, "nowhere.json"),
    ("replay {empty} --model any", 3, "no annotated answer"),
    ("replay nowhere.jsonl --model any", 3, "nowhere.jsonl"),
    (f"{BENCH} --rows 0", 2, "--rows must be numbers from 1 to 64"),
    (f"{BENCH} --rows one", 2, "--rows is 'one', no list of numbers"),
    (f"{ALPACA} --system x", 2, "is not of the form NAME=STRATEGY:MODEL"),
    (f"{ALPACA} --system pasta=pasta:taught", 2, "named twice"),
    (f"{ALPACA} --set difficulty=a.csv", 2, "difficulty and gamed go together"),
    (f"{ALPACA} --set judge.model=a-judge", 2, "judge.model and judge.base_url go together"),
    (f"{ALPACA} --write-pairs p", 2, "would be ignored: the recipe has no judge.file"),
    (f"{ALPACA} --write-pairs p --offline", 2, "would be ignored: --offline only reports"),
    (f"{ALPACA} --limit 3 --offline", 2, "--limit would be ignored: --offline only reports"),
    (f"{ALPACA} --set judge.file=no", 3, "no such file: no\n    hint: --write-pairs FILE"),
    *(
        (f"{ALPACA} --set judge.file=v --set judge.{key}=m", 2, f"judge.{key} would be ignored")
        for key in ("model", "base_url", "api_key_env", "template")
    ),
    (f"{INSTRUCTIONS} --set strategy=tea", 2, "instructions.strategy is 'tea'"),
    (f"{ALPACA} --strategies guess", 2, "strategies is 'guess'"),
    (f"{ALPACA} --set judge.template=absent --set instructions=-", 3, "no such file"),
    (f"{ALPACA} --offline", 3, "is not the folder of a run"),
    (f"{COST} --model {{untaught}}", 1, "was not taught PASTA-LANG"),
    ("export nowhere o", 2, "either --merged or --gguf"),
    ("export nowhere o --merged --gguf", 2, "either --merged or --gguf"),
    # servers
    (f"{SERVE} --host 0.0.0.0", 2, "no API key"),
    (f"{SERVE} --api-key ''", 2, "empty"),
    (f"{SERVE} --api-key @/nowhere/key", 3, "no such file"),
    (f"{SERVE} --set limits.n=0", 2, "too small"),
    (f"{SERVE} --set limits.threats=1", 2, "did you mean 'threads'"),
    (f"{SERVE} --set strategy=best", 2, "strategy cannot be"),
    (f"{SERVE} --port 99999", 2, "65535"),
    (f"evaluate alpaca --out o --model m --system s=sot:b {ENGINE}", 2, "b is to"),
    (f"{INSTRUCTIONS} --baseline b {ENGINE}", 2, "b is to"),
    (f"serve --port 0 {ENGINE}", 2, "--engine needs --model"),
    (f"serve --port 0 --model m --device cpu {ENGINE}", 2, "--device cannot be used with --engine"),
    (f"serve --port 0 --model m --set pool_tokens=9 {ENGINE}", 2, "pool_tokens cannot be used"),
    (f"serve --port 0 --model m --set cache_memory=1GiB {ENGINE}", 2, "cache_memory cannot be"),
    (f"{RUN} {ENGINE}", 2, "--engine needs --model"),
    (f"{REPLAY} --model m {ENGINE}", 2, "no such option: --engine"),
    *(
        (f"{verb} {flag}", 2, f"{flag.split()[0]} is for --engine")
        for verb in (RUN, "serve")
        for flag in ("--dialect vllm", "--allow-inexact")
    ),
]


@pytest.fixture
def places(tmp_path: Path, taught_folder: Path, untaught_folder: Path) -> dict[str, Path]:
    """Return the files and models that a command can name."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    names = {name.partition(".")[0]: tmp_path / name for name in FILES}
    return names | {"taught": taught_folder, "untaught": untaught_folder}


@pytest.mark.parametrize(("command", "code", "shown"), REFUSALS)
def test_what_cannot_be_done_is_refused_with_its_reason(
    pasta: Pasta, places: dict[str, Path], command: str, code: int, shown: str
) -> None:
    result = pasta(*(word.format(**places) for word in shlex.split(command)))
    assert (result.code, result.out) == (code, "")
    assert shown in result.err
    assert "[Errno" not in result.err
    assert len(result.err.splitlines()) <= 4


def test_a_taken_port_is_refused_before_the_model_is_loaded(pasta: Pasta) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        refused = pasta("serve", "--port", port, "--model", "nowhere")
    assert (refused.code, f"port {port}" in refused.err) == (2, True)


LOADING = """
run Hi -m {path}
fill Hi --schema a -m {path}
ask note.md Why? -m {path}
chat -m {path}
demo -m {path}
serve --port 0 -m {path}
bench -m {path}
replay {answers} -m {path}
doctor -m {path}
teach {path} --out o
fill {answers} --schema a --out o.jsonl -m {path}
export {path} o --merged
evaluate cost {answers} -m {path}
evaluate instructions --out o --set sets.alpaca={answers} -m {path}
evaluate alpaca --out o --set instructions={answers} -m {path}
"""
WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path, target=None):
        if name == "torch":
            raise ModuleNotFoundError(name="torch")
sys.meta_path.insert(0, NoTorch())
from pasta_lm.cli import main
for command in sys.stdin.read().splitlines():
    sys.argv = ["pasta", *command.split()]
    try:
        main()
    except SystemExit as exit:
        print(exit.code)
"""


def test_a_path_without_a_model_is_refused_before_torch_is_imported(
    places: dict[str, Path], tmp_path: Path
) -> None:
    typed = LOADING.strip().format(path=tmp_path / "none", **places)
    script = [sys.executable, "-c", WITHOUT_TORCH]
    result = subprocess.run(script, input=typed, capture_output=True, text=True, cwd=tmp_path)
    reasons = [line for line in result.stderr.splitlines() if "hint:" not in line]
    refused = {line: f"pasta: no folder {tmp_path / 'none'}" for line in typed.splitlines()}
    assert dict(zip(refused, reasons, strict=True)) == refused
    assert result.stdout.split() == ["2"] * len(refused)
