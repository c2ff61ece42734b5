#!/usr/bin/env bash
# The paper's comparison at a small scale: PASTA, the baseline and the rivals on one base model, with
# one engine and one clock; two rounds of stage two for five weights of quality; pages and a report.
#
#   runs/paper-small.sh                  the headline and the rivals, training seed 0
#   runs/paper-small.sh --seeds 0,1,2    three training seeds
#   runs/paper-small.sh --trials         how the rates of stage two were chosen, too
#   runs/paper-small.sh --ablations      the ablations too, last
#   runs/paper-small.sh --tiny           all of it as a toy, in about a minute: what the tests run
#   runs/paper-small.sh --jobs 2         two steps at the same time, what has clocks by itself
#   runs/paper-small.sh --prompts 2100 --timed 4 --sampled 500    less of everything, for all alike
#   runs/paper-small.sh --list           name the steps; --only STEP carries one out with its needs
#   runs/paper-small.sh --report         the report again, from what is there
#
# Resumable: run it again after any stop. The base and the models that runs/laptop.sh has trained are
# taken from build/laptop (LAPTOP=... names another folder, --base DIR another base); a base that is
# nowhere is trained. All else lies in build/paper (OUT=...). What was not run stands in the report as
# "not run", with the command that runs it. PYTHON=... names another Python than that of scripts/setup.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

if [[ -z ${PYTHON:-} ]]; then
    scripts/setup
    PYTHON=.venv/bin/python
fi
# As in runs/laptop.sh; two steps at the same time have a cache each.
export ONEDNN_PRIMITIVE_CACHE_CAPACITY=${ONEDNN_PRIMITIVE_CACHE_CAPACITY:-6144}
exec "$PYTHON" runs/paper_small/run.py "$@"
