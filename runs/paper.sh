#!/usr/bin/env bash
# The paper from its data to its figures: annotation, three finetunings, five preference runs, AlpacaEval.
#
#   runs/paper.sh                          Gemma 7B by adapters; needs a teacher, a judge and GPUs
#   runs/paper.sh --model gemma-7b         another recipe of runs/recipes/paper
#   runs/paper.sh --tiny                   the whole path on a toy with nobody behind it: what CI runs
#
# Resumable: run it again after any stop; what is there is skipped. What it makes lies in build/paper
# (build/paper-tiny). Memory, hours and money are estimated in the recipes. From the environment:
#
#   TEACHER_URL, TEACHER_MODEL, TEACHER_KEY_ENV   who annotates: any OpenAI-compatible server, up to /v1
#   JUDGE_URL, JUDGE_MODEL, JUDGE_KEY_ENV         who judges; *_KEY_ENV name the variables that hold the keys
#   ROWS=87000         answers to annotate
#   OUT, PASTA, PYTHON    another folder, command, interpreter
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/paper
model=gemma-7b-lora
lambdas=(4 1 2 8 inf)         # the first one samples round one for all
is_tiny=false
evaluation=(--set max_tokens=2048 --set pool_tokens=4096)
ROWS=${ROWS:-87000}
while (($#)); do
    case $1 in
        --tiny) is_tiny=true out=build/paper-tiny lambdas=(4 inf) evaluation=(--set max_tokens=40 --set pool_tokens=2048) ;;
        --model) model=${2:?--model needs a name} && shift ;;
        *) echo "runs/paper.sh: unknown flag $1 (known: --model NAME, --tiny)" >&2; exit 2 ;;
    esac
    shift
done
sft_recipe=runs/recipes/paper/$model.toml
if [[ ! -f $sft_recipe ]] || ! grep -q '^plain = ' "$sft_recipe"; then
    echo "runs/paper.sh: no recipe of stage one at $sft_recipe" >&2
    exit 2
fi
if [[ -z ${PASTA:-} ]]; then
    scripts/setup
    PASTA=.venv/bin/pasta
    PYTHON=.venv/bin/python
fi
PYTHON=${PYTHON:-python3}
out=${OUT:-$out}
mkdir -p "$out/recipes" "$out/alpaca"

say() { echo "[$(date +%T)] $*" >&2; }

is_done() { # file or folder
    [[ -e $out/$1 ]] && say "$1: done before"
}

servers=()
trap '((${#servers[@]})) && kill "${servers[@]}" 2>/dev/null || true' EXIT

# A tiny run has a teacher and a judge that follow a script. Their ports stay: a run is bound to them.
declare -A serving=()
serve() { # teacher or judge
    local port=${1}_port
    $is_tiny && [[ -z ${serving[$1]:-} ]] || return 0
    $PYTHON -m "tests.fakes.scripted_$1" --port "${!port}" 2>>"$out/$1.log" &
    servers+=($!)
    serving[$1]=yes
    for _ in {1..600}; do
        (: <"/dev/tcp/127.0.0.1/${!port}") 2>/dev/null && return
        kill -0 $! 2>/dev/null || break
        sleep 0.1
    done
    echo "runs/paper.sh: the scripted $1 does not answer; see $out/$1.log" >&2
    exit 1
}

free_ports() {
    $PYTHON -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in held))'
}

if $is_tiny; then
    ROWS=24
    [[ -s $out/ports ]] || free_ports >"$out/ports"
    read -r teacher_port judge_port <"$out/ports"
    TEACHER_URL=http://127.0.0.1:$teacher_port/v1 TEACHER_MODEL=scripted TEACHER_KEY_ENV=
    JUDGE_URL=http://127.0.0.1:$judge_port/v1 JUDGE_MODEL=scripted JUDGE_KEY_ENV=
fi
need() {
    if [[ -z ${!1:-} ]]; then
        echo "runs/paper.sh: $1 is not set: $2" >&2
        exit 2
    fi
}
for who in TEACHER JUDGE; do
    need "${who}_URL" "the address of an OpenAI-compatible server, up to and with /v1"
    need "${who}_MODEL" "its model"
done

# A recipe as this run has it: other folders and endpoints, and in a tiny run a toy of everything.
recipe() { # file, name, sed expressions...
    local file=$1 name=$2 edits=(-e "s#build/paper#$out#")
    shift 2
    if $is_tiny; then
        edits+=(
            -e "s#^base = \"\(google\|meta-llama\|Qwen\)/.*#base = \"$out/inputs/model\"#"
            -e 's/^rank = .*/rank = 2/; s/^max_tokens = 640/max_tokens = 64/; s/^max_tokens = [0-9]\{3,\}.*/max_tokens = 1500/'
            -e 's/^num_prompts = .*/num_prompts = 6/; s/^samples = .*/samples = 4/'
            -e 's/^epochs = .*/steps = 2/; s/^accumulate = .*/accumulate = 1/; s/^workers = .*/workers = 0/'
            -e 's/^log_steps = .*/log_steps = 1/; s/^dtype = .*/dtype = "float32"/'
        )
    fi
    sed "${edits[@]}" "$@" "$file" >"$out/recipes/$name.toml"
    echo "$out/recipes/$name.toml"
}

key_of() { # name of a variable -> what gives a recipe its key
    [[ -z $1 ]] || echo "s/^# api_key_env = .*/api_key_env = \"$1\"/"
}

train() { # name, what changes in the recipe of Pasta-SFT
    local name=$1 file
    shift
    is_done "$name/model" && return 0
    say "$name: training"
    file=$(recipe "$sft_recipe" "$name" -e "s#^out = .*#out = \"$out/$name\"#" "$@")
    $PASTA train sft "$file" --resume
}

prefer() { # lambda
    local name=bon-$1 file
    is_done "$name/round-2/model" && return 0
    serve judge
    say "$name: two rounds of preferences"
    if [[ $1 != "${lambdas[0]}" && ! -e $out/$name ]]; then
        mkdir -p "$out/$name/round-1"
        cp "$out/bon-${lambdas[0]}/round-1/rollouts.jsonl" "$out/$name/round-1"
    fi
    file=$(recipe runs/recipes/paper/bon.toml "$name" \
        -e "s#^out = .*#out = \"$out/$name\"#; s/^quality_weight = [^ ]*/quality_weight = ${1/#[0-9]*/$1.0}/" \
        -e "s#^base_url = .*#base_url = \"$JUDGE_URL\"#; s#^model = .*#model = \"$JUDGE_MODEL\"#" \
        -e "$(key_of "${JUDGE_KEY_ENV:-}")")
    $PASTA train preference "$file" --resume
}

evaluate() { # folder, name of the system, strategy, model
    is_done "alpaca/$1/done" && return 0
    serve judge
    say "$2: AlpacaEval"
    mkdir -p "$out/alpaca/$1"
    $PASTA evaluate alpaca --out "$out/alpaca/$1" --strategies sequential --set baseline="$out/baseline/model" \
        --system "$2=$3:$out/$4" --set judge.base_url="$JUDGE_URL" --set judge.model="$JUDGE_MODEL" \
        ${JUDGE_KEY_ENV:+--set judge.api_key_env="$JUDGE_KEY_ENV"} "${instructions[@]}" "${evaluation[@]}" \
        | tee "$out/alpaca/$1/table.part"
    mv "$out/alpaca/$1/table.part" "$out/alpaca/$1/table.txt"
    touch "$out/alpaca/$1/done"
}

if [[ -e $out/speed.json ]]; then
    say "all done before: $out/speed.json and $out/alpaca/*/report.md"
    exit
fi

instructions=()
source_edits=()
if $is_tiny; then
    is_done inputs/model/config.json || $PYTHON -m tests.fakes.tiny_paper_inputs "$out/inputs"
    instructions=(--set instructions="$out/inputs/instructions.jsonl")
    source_edits=(-e "s#^hub = .*#file = \"$out/inputs/answers.jsonl\"#" -e 's/^columns = .*/columns = "pairs"/')
fi

if ! is_done annotated/done; then
    serve teacher
    say "annotation of $ROWS answers"
    file=$(recipe runs/annotation/slimorca.toml annotation "${source_edits[@]}" \
        -e "s#^base_url = [^ ]*#base_url = \"$TEACHER_URL\"#; s#^model = [^ ]*#model = \"$TEACHER_MODEL\"#" \
        -e "s#^folder = .*#folder = \"$out/annotated\"#" -e "$(key_of "${TEACHER_KEY_ENV:-}")")
    $PASTA annotate "$file" --limit "$ROWS"
    touch "$out/annotated/done"
fi

train baseline -e 's/^plain = false/plain = true/'
train pasta
train apar -e 's/^plain = false/rule = "apar"/; s/^positions = .*/positions = "continue"/'
for lambda in "${lambdas[@]}"; do
    prefer "$lambda"
done

evaluate pasta-sft Pasta-SFT pasta pasta/model
evaluate apar-sft APAR-SFT apar apar/model
evaluate sot SoT sot baseline/model
for lambda in "${lambdas[@]}"; do
    evaluate "bon-$lambda" "Pasta-BoN $lambda" pasta "bon-$lambda/round-2/model"
done

runs_of=("$out"/alpaca/*/done)
$PASTA evaluate speed "${runs_of[@]%/done}" --json >"$out/speed.part"
mv "$out/speed.part" "$out/speed.json"
say "speed of all systems: $out/speed.json; each system's report: $out/alpaca/*/report.md"
