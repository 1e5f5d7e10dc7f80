#!/bin/sh
# Builds and runs the stress of the shared-memory protocol: run.sh [plain|thread|address] [seconds] [seed]
#
# thread: ThreadSanitizer. gcc's does not model stand-alone fences, so STRATAKV_TSAN turns them into read-modify-writes,
# and copies whose lease may run out are not watched (their bytes are discarded by the generation check).
# address: AddressSanitizer and UndefinedBehaviorSanitizer.
set -eu
mode=${1:-plain}
seconds=${2:-5}
root=$(cd "$(dirname "$0")/../.." && pwd)
out="$root/build/stress"
mkdir -p "$out"
case "$mode" in
  plain) flags="-O2" ;;
  thread) flags="-O1 -g -fsanitize=thread -DSTRATAKV_TSAN" ;;
  address) flags="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all" ;;
  *) echo "unknown mode $mode: plain, thread or address" >&2; exit 2 ;;
esac
sources=""
for source in "$root"/cache_l2/native/*.cpp; do
  case "$source" in
    *bindings*|*/buffers.cpp) ;;
    *) sources="$sources $source" ;;
  esac
done
# shellcheck disable=SC2086
${CXX:-g++} -std=c++17 -Wall -Wextra -DSTRATAKV_PAUSES $flags -I"$root/cache_l2/native" "$root/tests/native/stress.cpp" $sources \
  -o "$out/stress-$mode" -pthread
if [ "$mode" = thread ]; then
  # ThreadSanitizer of gcc 12 needs the memory layout of kernels without wide address randomisation.
  TSAN_OPTIONS="halt_on_error=1 second_deadlock_stack=1" exec setarch "$(uname -m)" -R "$out/stress-$mode" "$seconds" ${3:-}
fi
exec "$out/stress-$mode" "$seconds" ${3:-}
