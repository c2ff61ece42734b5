# What scripts/vllm-server and scripts/llama-server share; sourced by them, and not run by itself.
#
# MODEL    first argument: a model as `pasta export` takes it (default: builtin-continue)
# CACHE    virtual environments, exported models and answers (default: ~/.cache/pasta-lm/stock)
# VENV     the server's virtual environment (default: one in CACHE)
# PORT     on 127.0.0.1
# KEEP=1   leave the server running and compare nothing
# All other arguments go to benchmarks/stock_servers.py, such as --prompts 20 --loads 1,4,16,32.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

model="${1:-builtin-continue}"
shift $(($# > 0))
cache="${CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/pasta-lm/stock}"
work="$cache/$(basename "$model")"
port="${PORT:-8100}"
python="$PWD/.venv/bin/python"
export PYTHONPATH="$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH}"
mkdir -p "$work"

export_once() { # FLAG PATH: export the model in float32, unless it is there
    [[ -e $2 ]] || "$python" -m pasta_lm export "$model" "$2" "$1" --dtype float32
}

stop_server() {
    if [[ -n ${server_pid:-} ]]; then
        kill "$server_pid" 2>/dev/null || true
        wait "$server_pid" 2>/dev/null || true
    fi
}

wait_until_healthy() { # LOG: until /health answers; the server must not die before
    local url="http://127.0.0.1:$port/health"
    for _ in $(seq 600); do
        if "$python" -c "import urllib.request as r; r.urlopen('$url', timeout=5)" 2>/dev/null; then
            return
        fi
        kill -0 "$server_pid" 2>/dev/null || break
        sleep 1
    done
    tail -n 20 "$1" >&2
    echo "$(basename "$0"): the server did not start; its log is $1" >&2
    return 1
}

compare() { # NAME VERSION ARGS...: compare the running server, whose processes are $processes
    local name="$1" version="$2"
    shift 2
    "$python" benchmarks/stock_servers.py "$work/merged" --engine "http://127.0.0.1:$port" \
        --server "$version" --processes "$processes" --answers "$work/$name" \
        --out "benchmarks/results/stock_servers/$name-$(basename "$model").json" "$@"
}

keep_or_compare() { # NAME VERSION ARGS...
    if [[ -n ${KEEP:-} ]]; then
        trap - EXIT
        echo "process $server_pid; pasta run PROMPT --model $work/merged --engine http://127.0.0.1:$port"
        return
    fi
    compare "$@"
}
