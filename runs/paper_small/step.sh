#!/usr/bin/env bash
# Carry out one step of runs/paper-small.mk: step.sh NAME FILE COMMAND...
#
# FILE is there when the step is done. OUTPUTS names the files that the command writes as FILE.part;
# they are renamed when it has ended well. The standard output goes to the first one if it is JSON.
set -uo pipefail
name=$1 file=$2
shift 2
is_interrupted=
trap 'is_interrupted=yes' INT
say() { echo "[$(date +%T)] $name: $*" >&2; }

for output in ${OUTPUTS:-}; do
    mkdir -p "$(dirname "$output")"
    rm -f "$output.part"
done
say begins
read -r first _ <<<"${OUTPUTS:-}"
# benchmarks/step_cost.py is given the name of its .part file; others print their JSON.
if [[ $first == *.json && " $* " != *" $first.part "* ]]; then
    "$@" >"$first.part"
else
    "$@" >&2
fi
code=$?
if ((code == 130)); then
    # The user interrupted this command alone: the script is to stop make and the others too. Until
    # it does, this one stays: make takes an interrupt together with the end of a step for an error.
    [[ $is_interrupted || -z ${CALLER:-} ]] || kill -INT "$CALLER" || is_interrupted=yes
    while [[ ! $is_interrupted && ${CALLER:-} ]]; do sleep 0.1; done
    exit 130
fi
if ((code == 0)); then
    for output in ${OUTPUTS:-}; do
        mv "$output.part" "$output" || code=1
    done
fi
if ((code)) || [[ ! -e $file ]]; then
    say "failed; again: ${AGAIN:-runs/paper-small.sh} --only $name"
    exit 1
fi
say "done"
