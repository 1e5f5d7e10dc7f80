"""Runs seeds: one with its history, or a range on all processors. `python -m tests.sim.run --seed 7`, `--seeds 0..9999`."""

from __future__ import annotations

import argparse
import gc
import sys
import time

from tests.sim import environment


def run_seed(seed: int) -> tuple[str, list[tuple[int, str, str]]]:
    """(what broke, empty if nothing did; history) of one seed."""
    environment.install()
    from tests.sim.plan import plan_of
    from tests.sim.truth import BrokenPromiseError
    from tests.sim.world import World

    world = World(plan_of(seed))
    try:
        world.run()
    except BrokenPromiseError as error:
        return str(error), world.history
    return "", world.history


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        broken, history = run_seed(arguments.seed)
        for now_ns, who, what in history:
            print(f"{now_ns / 1e9:9.4f}  {who:9s} {what}")
        print(broken or "clean")
        return 1 if broken else 0
    first, _, last = arguments.seeds.partition("..")
    began = time.process_time()
    failed = 0
    run_seed(0)
    gc.collect()
    gc.freeze()
    gc.disable()
    for seed in range(int(first), int(last) + 1):
        broken, _ = run_seed(seed)
        if broken:
            failed += 1
            print(seed, broken)
        if seed % 40 == 0:
            gc.collect()
    count = int(last) - int(first) + 1
    print(f"{count} seeds, {failed} broken, {(time.process_time() - began) / count * 1e3:.1f} ms each")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
