#!/bin/sh
# Builds and runs the stresses of the native modules: run.sh [plain|thread|address] [seconds] [seed]
#
# They are that of the shared-memory protocol, that of L3's data path, that of its codecs and that of the eviction policy, which
# have one thread; STRESS="arena", "data_path", "codecs" or "policy" runs one alone.
# thread: ThreadSanitizer. gcc's does not model stand-alone fences, so STRATAKV_TSAN turns them into read-modify-writes,
# and copies whose lease may run out are not watched (their bytes are discarded by the generation check).
# address: AddressSanitizer and UndefinedBehaviorSanitizer.
set -eu
mode=${1:-plain}
seconds=${2:-5}
seed=${3:-}
root=$(cd "$(dirname "$0")/../.." && pwd)
out="$root/build/stress"
mkdir -p "$out"
case "$mode" in
  plain) flags="-O2" ;;
  thread) flags="-O1 -g -fsanitize=thread -DSTRATAKV_TSAN" ;;
  address) flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
  *) echo "unknown mode $mode: plain, thread or address" >&2; exit 2 ;;
esac

# build_and_run NAME PACKAGE MAIN: all of the package's native sources but those that need Python
build_and_run() {
  sources=""
  for source in "$root/$2"/native/*.cpp; do
    case "$source" in
      *bindings*|*/buffers.cpp) ;;
      *) sources="$sources $source" ;;
    esac
  done
  # shellcheck disable=SC2086
  ${CXX:-g++} -std=c++17 -Wall -Wextra -DSTRATAKV_PAUSES $flags -I"$root/$2/native" -I"$root/kv_policy/native" "$root/tests/native/$3" $sources \
    -o "$out/$1-$mode" -pthread
  if [ "$mode" = thread ]; then
    # ThreadSanitizer of gcc 12 needs the memory layout of kernels without wide address randomisation.
    TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" setarch "$(uname -m)" -R "$out/$1-$mode" "$seconds" $seed
  else
    "$out/$1-$mode" "$seconds" $seed
  fi
}

for stress in ${STRESS:-arena data_path codecs policy}; do
  case "$stress" in
    arena) build_and_run stress cache_l2 stress.cpp ;;
    data_path) build_and_run data-path-stress cache_l3 data_path_stress.cpp ;;
    codecs) build_and_run codec-stress cache_l3 codec_stress.cpp ;;
    policy) build_and_run policy-stress kv_policy policy_stress.cpp ;;
    *) echo "unknown stress $stress: arena, data_path, codecs or policy" >&2; exit 2 ;;
  esac
done
