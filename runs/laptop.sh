#!/usr/bin/env bash
# A tiny base model from random weights, its finetunings, and their evaluation.
#
#   runs/laptop.sh               some hours on two cores; resumable: run it again after any stop
#   runs/laptop.sh --tiny        the whole path on a toy, in minutes: what CI runs
#   runs/laptop.sh --gpu         the same recipes on a GPU: a model of 5M parameters, 200M tokens
#   runs/laptop.sh --audit       the finetunings of the necessity audit too
#
# What is made lies in build/laptop (build/tiny); OUT=... names another folder, and PASTA=... another
# command than pasta.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

out=build/laptop
variants=(baseline pasta-gold pasta-noisy)
prompts=8400  # 400 of each of the 21 families that training sees
workers=2     # processes that answer
timed=10
limits=()
is_tiny=false
is_gpu=false
for flag in "$@"; do
    case $flag in
        --tiny) is_tiny=true out=build/tiny prompts=84 timed=0 workers=1 limits=(--set max_tokens=48) ;;
        --gpu) is_gpu=true out=build/gpu ;;
        --audit) variants+=(audit-always-fork audit-never-sync) ;;
        *) echo "runs/laptop.sh: unknown flag $flag (known: --tiny, --gpu, --audit)" >&2; exit 2 ;;
    esac
done
if [[ -z ${PASTA:-} ]]; then
    scripts/setup
    PASTA=.venv/bin/pasta
fi
# Steps differ in length: the 1,024 kernels that oneDNN keeps are too few (docs/log.md).
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=${ONEDNN_PRIMITIVE_CACHE_CAPACITY:-8192}
out=${OUT:-$out}
mkdir -p "$out"

say() { echo "[$(date +%T)] $*" >&2; }

# A tiny run is the same recipe on a toy: fewer steps, a smaller model and smaller batches.
recipe() {
    local edits=(-e "s#build/laptop#$out#")
    if $is_tiny; then
        edits+=(
            -e 's#llama-2m#llama-tiny#'
            -e 's/^steps = [0-9]*/steps = 12/; s/^max_tokens = [0-9]*/max_tokens = 1024/'
            -e 's/^log_steps = .*/log_steps = 2/; s/^save_steps = .*/save_steps = 6/'
            -e 's/^learning_rate = [38]e-[34]/learning_rate = 1e-2/'
        )
    fi
    if $is_gpu; then
        edits+=(
            -e 's#llama-2m#llama-5m#'
            -e 's/^max_tokens = [0-9]*/max_tokens = 32768/'
            -e 's/^seed = 0$/seed = 0\nworkers = 12/'
        )
    fi
    sed "${edits[@]}" "runs/recipes/$1.toml" >"$out/$1.toml"
    echo "$out/$1.toml"
}

train() {
    if [[ -f $out/$1/model/model.safetensors ]]; then
        say "$1: done before"
        return
    fi
    say "$1: training"
    $PASTA train sft "$(recipe "$1")" --resume
}

measure() { # name, model, flags...
    local name=$1 model=$2
    shift 2
    if [[ -s $out/results/$name.json ]]; then
        say "results/$name.json: done before"
        return
    fi
    say "results/$name.json: measuring"
    $PASTA evaluate tasks --model "$model" --baseline "$out/baseline/model" \
        --records "$out/results/$name.jsonl" --json --set "workers=$workers" \
        "${limits[@]}" "$@" >"$out/results/$name.part"
    mv "$out/results/$name.part" "$out/results/$name.json"
}

train random
for variant in "${variants[@]}"; do
    train "$variant"
done

mkdir -p "$out/results"
for variant in "${variants[@]}"; do
    if [[ $variant == audit-* ]]; then
        measure "$variant-dev" "$out/$variant/model" --split dev --num-prompts 840 --num-timed 0
    elif [[ $variant != baseline ]]; then
        flags=(--num-prompts "$prompts" --num-timed "$timed" --set threads=1)
        measure "$variant-test" "$out/$variant/model" --split test "${flags[@]}"
        flags=(--num-prompts "$((prompts / 4))" --num-timed 0)
        measure "$variant-hard" "$out/$variant/model" --split hard "${flags[@]}"
        measure "$variant-seen-wordings" "$out/$variant/model" --set wordings=train "${flags[@]}"
    fi
done
for variant in "${variants[@]}"; do
    say "$variant: the loss fell from $(head -1 "$out/$variant/log.jsonl" | grep -o '"loss": [0-9.]*') \
to $(grep '"loss"' "$out/$variant/log.jsonl" | tail -1 | grep -o '"loss": [0-9.]*')"
done
say "model folders: $out/pasta-gold/model and, its sequential baseline, $out/baseline/model"
