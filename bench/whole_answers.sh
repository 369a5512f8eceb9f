#!/bin/bash
# Whole answers of llama.cpp (A) and Headlong with mtp="auto" (B) over HTTP: the same file, prompts
# and number of threads, one answer of each in turn. Tokens/s include the prompt.
#
#   bench/whole_answers.sh MODEL.gguf PROMPTS.jsonl OUT [llama-server option …]
#   bench/whole_answers.sh model.gguf code.jsonl results --spec-type ngram-mod
#
# PROMPTS is a file of `headlong bench`; llama-server's options choose its drafts. In the
# environment: HEADLONG (.venv/bin/headlong), LLAMA_SERVER (the one of bench/setup_peers.sh),
# THREADS (2), TOKENS (256) of an answer at most.
set -euo pipefail
if [ $# -lt 3 ]; then
    sed -n '2,/^set/{/^set/!s/^# \{0,1\}//p}' "$0" >&2
    exit 2
fi
model=$1 prompts=$2 out=$3
shift 3
headlong=${HEADLONG:-$(dirname "$0")/../.venv/bin/headlong}
llama=${LLAMA_SERVER:-$HOME/.cache/headlong-peers/llama-server}
export HEADLONG_THREADS=${THREADS:-2}
logs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; wait; rm -rf "$logs"' EXIT

for port in 18081 18082; do
    if curl --silent --output /dev/null "http://127.0.0.1:$port/"; then
        echo "whole_answers: port $port is taken; stop what listens there" >&2
        exit 1
    fi
done
"$llama" -m "$model" -t "$HEADLONG_THREADS" -c 4096 -np 1 --port 18081 "$@" > "$logs/a" 2>&1 &
"$headlong" serve "$model" --port 18082 --no-page > "$logs/b" 2>&1 &
for port in 18081 18082; do
    for ((second = 0; ; second++)); do
        curl --silent --fail "http://127.0.0.1:$port/health" > /dev/null && break
        if [ "$second" -gt 120 ] || [ "$(jobs -rp | wc -l)" -lt 2 ]; then
            echo "whole_answers: no server on port $port:" >&2
            tail -5 "$logs"/? >&2
            exit 1
        fi
        sleep 1
    done
done
"$headlong" bench "$prompts" --url http://127.0.0.1:18081 --url http://127.0.0.1:18082 \
    --body-b '{"mtp": "auto"}' --max-tokens "${TOKENS:-256}" --temperature 0 --out "$out"
