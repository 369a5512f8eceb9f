#!/bin/bash
# The CUDA backend on this machine: is it exact, and how fast? For owners of an NVIDIA card. About ten
# minutes, after `make setup` and `.venv/bin/pip install 'headlong[cuda]'`:
#
#   bench/cuda.sh [--quick] [--model MODEL] [FOLDER]       (default: ./cuda-report)
#
# MODEL is what `headlong` takes; by default the small default model. FOLDER gets report.txt to read
# and report.tar.gz to send back with an issue: conditions, what the kernels compute and cost, ten
# thousand answers with MTP on against off, `bench pass`, `bench`, a server under load, the demo. No
# prompt of yours and no name of yours is in it. --quick measures less.
#
# PYTHON names another interpreter than .venv/bin/python, ONLY the steps to take. The exit status is 1
# where something that has to hold did not.
#
# A card that is lent for half an hour, on a machine that has torch and Triton but no network, is
# better used part by part, since each leaves its figures at once: the plan is in
# docs/design/0008-kernels-on-the-gpu.md, the parts are bench/cuda_card.py.
set -uo pipefail
started_in=$PWD
cd "$(dirname "$0")/.." || exit 2

PYTHON=${PYTHON:-.venv/bin/python}
BACKEND=${BACKEND:-cuda} # another one shows that the script works where there is no card
model=() quick='' folder=cuda-report
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --model) model=(--model "${2:?--model needs a name}"); shift ;;
        -*) echo "cuda.sh: $1 is not known; see the lines at the top of this script" >&2; exit 2 ;;
        *) folder=$1 ;;
    esac
    shift
done

problem=$("$PYTHON" -c 'import sys; from headlong.ops.backends import make_ops; make_ops(sys.argv[1])' \
    "$BACKEND" 2>&1) || {
    echo "cuda.sh: $(tail -n 1 <<< "$problem" | sed 's/^headlong.errors.BackendError: //')" >&2
    exit 2
}
. bench/report.sh
begin_report "$started_in" "$folder"

answers=10000 seconds=240 rounds=30 budget=60s load=10s levels=1,8,64 tokens=128 streams=64
lengths=(--context 512 --prefill 2048)
limits=(--max-running 64 --rows-per-step 576 --prefill-rows-per-step 2048 --kv-bytes none)
if [ -n "$quick" ]; then
    answers=40 seconds=20 rounds=1 budget=5s load=1s levels=2 tokens=8 streams=4
    lengths=() limits=()
fi

wanted() { [ -z "${ONLY:-}" ] || [[ " $ONLY " = *" $1 "* ]]; }
take() { if wanted "$1"; then step "$@"; fi; }

loaded_server() { # a server of its own, asked by `bench load`
    local port status
    port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
    "$PYTHON" -m headlong serve ${model[@]+"${model[@]}"} --backend "$BACKEND" \
        ${limits[@]+"${limits[@]}"} --port "$port" >&2 &
    local server=$!
    for _ in $(seq 240); do
        "$PYTHON" -c "import httpx; httpx.get('http://127.0.0.1:$port/health').raise_for_status()" \
            2> /dev/null && break
        kill -0 $server 2> /dev/null || return 1
        sleep 0.5
    done
    "$PYTHON" -m headlong bench load "http://127.0.0.1:$port" --concurrency $levels \
        --duration "$load" --json
    status=$?
    kill $server
    wait $server
    return $status
}

take conditions MUST conditions "$BACKEND"
if [ "$BACKEND" = cuda ] && [ -z "$quick" ]; then
    take kernels MUST "$PYTHON" bench/cuda_card.py checks speed --seconds 120 --out "$folder"
fi
take exactness MUST "$PYTHON" bench/exactness.py ${model[@]+"${model[@]}"} --backend "$BACKEND" \
    --answers $answers --seconds $seconds --streams $streams --json "$folder/exactness.json"
take pass MUST "$PYTHON" -m headlong bench pass ${model[@]+"${model[@]}"} --backend "$BACKEND" \
    ${lengths[@]+"${lengths[@]}"} --rounds $rounds --json
take bench MUST "$PYTHON" -m headlong bench ${model[@]+"${model[@]}"} --backend "$BACKEND" \
    --time-budget $budget --max-tokens $tokens --json
take load MUST loaded_server
end_report
