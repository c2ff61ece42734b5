#!/usr/bin/env bash
# The paper's comparison at a small scale: PASTA, its sequential baseline and the other methods on one
# base model, with one engine and one clock; two rounds of stage two for five weights of quality;
# pages and a report. The steps are rules of runs/paper-small.mk.
#
#   runs/paper-small.sh                  all methods, training seed 0
#   runs/paper-small.sh --seeds 0,1,2    three training seeds
#   runs/paper-small.sh --trials         how the rates of stage two were chosen, too
#   runs/paper-small.sh --ablations      the ablations too, last
#   runs/paper-small.sh --tiny           all of it as a toy, in minutes: what the tests run
#   runs/paper-small.sh --jobs 2         two steps at the same time; steps with clocks run alone
#   runs/paper-small.sh --prompts 2100 --timed 4 --sampled 500    less of everything, for all alike
#   runs/paper-small.sh --base DIR       another base model, a folder or hub id
#   runs/paper-small.sh --list           name the steps; --only STEP carries one out with its needs
#   runs/paper-small.sh --report         the report again, from what is there
#
# Resumable: run it again after any stop. Everything lies in build/paper (OUT=... names another
# folder). What was not run stands in the report as "not run", with the command that runs it.
# PYTHON=... names another Python than that of scripts/setup, PASTA=... another command than pasta.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${PYTHON:-} ]]; then
    scripts/setup
    PYTHON=.venv/bin/python
fi
# As in runs/laptop.sh; two steps at the same time have a cache each.
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=${ONEDNN_PRIMITIVE_CACHE_CAPACITY:-6144}
exec "$PYTHON" runs/paper_small/run.py "$@"
