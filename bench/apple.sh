#!/bin/bash
# The MLX backend on this machine: is it exact, and how fast? For owners of a Mac, since Headlong is
# written on machines that have no Apple GPU. About five minutes, after `make setup` (with Python
# 3.11 or later; Xcode's is older, so `make setup PYTHON=python3.12` or the like) and
# `.venv/bin/pip install mlx-lm`, to be compared with it:
#
#   bench/apple.sh [--quick] [--model MODEL] [FOLDER]      (default: ./apple-report)
#
# MODEL is what `headlong` takes, best a folder of mlx-community; by default the small default model.
# FOLDER gets report.txt to read and report.tar.gz to send back with an issue: conditions, the
# exactness tests, `headlong doctor`, `bench pass`, `bench`, and what passes and rounds do beside
# mlx-lm's. No prompt of yours and no name of yours is in it. --quick measures less. On a processor
# without an Apple GPU, where 2,000 tokens take minutes, a tiny model shows that the script works.
#
# PYTHON names another interpreter than .venv/bin/python. The exit status is 1 where something that
# has to hold did not.
set -uo pipefail
started_in=$PWD
cd "$(dirname "$0")/.." || exit 2

PYTHON=${PYTHON:-.venv/bin/python}
model=() named='' quick='' folder=apple-report
while [ $# -gt 0 ]; do
    case $1 in
        --quick) quick=yes ;;
        --model)
            named=${2:?--model needs a name}
            [ -e "$started_in/$named" ] && named=$started_in/$named
            model=(--model "$named")
            shift
            ;;
        -*) echo "apple.sh: $1 is not known; see the lines at the top of this script" >&2; exit 2 ;;
        *) folder=$1 ;;
    esac
    shift
done
"$PYTHON" -c 'import headlong, mlx.core' || {
    echo "apple.sh: $PYTHON has no Headlong or no MLX; run make setup," >&2
    echo "apple.sh: or name an interpreter that has both: PYTHON=…" >&2
    exit 2
}
. bench/report.sh
begin_report "$started_in" "$folder"

# Tests in which tokens or bits must be equal on every device; others compare with float32.
exact=(tests/ops/mlx/test_exactness.py tests/ops/mlx/test_graphs.py tests/ops/mlx/test_attention.py
    tests/ops/mlx/test_draft.py::test_a_round_waits_once
    tests/ops/mlx/test_ops.py::test_chunks_and_batch_mates_change_no_bit tests/ops/mlx/test_host.py)
# Of so many rounds most are compiled graphs, so the medians are theirs (`ops/mlx/graphs.py`).
rows=1,2,3,4,5,6,8 rounds=40 context=256 prefill=512 budget=90s pairs=20 answer=64 tokens=(--max-tokens 128)
if [ -n "$quick" ]; then
    exact=("${exact[2]}" "${exact[3]}" tests/ops/mlx/test_graphs.py::test_a_shape_is_compiled_once_and_changes_no_token)
    rows=1,4 rounds=1 context=32 prefill=32 budget=5s pairs=2 answer=8 tokens=(--max-tokens 8)
fi

step conditions MUST conditions mlx
step device MUST "$PYTHON" -c 'import mlx.core as mx; print(mx.__version__, mx.device_info())'
step exactness MUST "$PYTHON" -m pytest -q -rs -p no:cacheprovider "${exact[@]}"
if [ -z "$quick" ]; then
    step doctor MAY "$PYTHON" -m headlong doctor ${named:+"$named"} --backend mlx --quick --json
fi
step pass MUST "$PYTHON" -m headlong bench pass ${model[@]+"${model[@]}"} --backend mlx \
    --rows $rows --rounds $rounds --context $context --prefill $prefill --json
step bench MUST "$PYTHON" -m headlong bench ${model[@]+"${model[@]}"} --backend mlx \
    --time-budget $budget "${tokens[@]}" --json
step figures MUST "$PYTHON" bench/mlx_figures.py ${named:+"$named"} --rows ${rows//,3,/,} \
    --context $context --pairs $pairs --tokens $answer --json "$folder/figures.json"

say ""
sed '$d' "$folder/figures.out" | tee -a "$folder/report.txt"
end_report
