"""A process that reads a native arena over inherited descriptors, for tests that need a second process or a death.

Argument: a JSON object with the descriptors, row, life (hex), what to do and the chains. It prints one line when it is
ready and then does what it was told until its standard input ends.
"""

from __future__ import annotations

import json
import random
import sys

from cache_l2._native import Lease, Reader
from tests.support.native_arena import PAGE, payload


def main() -> None:
    """Attach and run the job named on the command line."""
    job = json.loads(sys.argv[1])
    reader = Reader(
        control_fd=job["fds"][0], clients_fd=job["fds"][1], data_fd=job["fds"][2], row=job["row"],
        life=bytes.fromhex(job["life"]), writable=job["writable"],
    )  # fmt: skip
    chains = [[bytes.fromhex(key) for key in chain] for chain in job["chains"]]
    {"read": read, "hoard": hoard, "stamp": stamp, "torn": torn}[job["do"]](reader, chains, job)


def ready(text: str = "ready") -> None:
    """Tell the parent and wait for nothing."""
    print(text, flush=True)


def read(reader: Reader, chains: list[list[bytes]], job: dict[str, int]) -> None:
    """Print what every chain holds, as hex digests of what a look-up serves."""
    for chain in chains:
        with reader.lease(0, b"".join(chain), namespace=1) as lease:
            right = [bytes(view) == payload(key) for view, key in zip(lease, chain, strict=False)]
            ready(json.dumps([lease.pages, lease.reason, all(right)]))


def hoard(reader: Reader, chains: list[list[bytes]], job: dict[str, int]) -> None:
    """C10: look up again and again without ever fetching or releasing, then wait to be killed."""
    kept: list[Lease] = []
    for number in range(job["look_ups"]):
        chain = chains[number % len(chains)]
        lease = reader.lease(0, b"".join(chain), namespace=1)
        assert lease.pages == len(chain), (number, lease.pages, lease.reason)
        kept.append(lease)
    ready(str(reader.held()))
    sys.stdin.read()


def stamp(reader: Reader, chains: list[list[bytes]], job: dict[str, int]) -> None:
    """Lease, look and copy at random for ever; a page with foreign bytes ends the process with a message."""
    rng = random.Random(job["seed"])
    place = bytearray(PAGE * max(len(chain) for chain in chains))
    kept: list[Lease] = []
    ready()
    while True:
        chain = rng.choice(chains)
        keys = b"".join(chain)
        if rng.random() < 0.5:
            lease = reader.lease(0, keys, namespace=1)
            for view, key in zip(lease, chain, strict=False):
                if bytes(view) != payload(key):
                    sys.exit("a leased page shows foreign bytes")
            if rng.random() < 0.05 and len(kept) < 20:
                kept.append(lease)
            else:
                lease.release()
        else:
            pages, _, _ = reader.get(
                1, keys, place, page_bytes=PAGE, lease_ns=rng.choice([1_000, 10**9]), namespace=1
            )
            if bytes(place[: pages * PAGE]) != b"".join(payload(key) for key in chain[:pages]):
                sys.exit("a copied page shows foreign bytes")


def torn(reader: Reader, chains: list[list[bytes]], job: dict[str, int]) -> None:
    """C31: write half of a reserved place, then wait to be killed before anybody commits it."""
    memoryview(reader.slot(job["offset"], PAGE))[: PAGE // 2] = bytes(PAGE // 2)
    ready()
    sys.stdin.read()


if __name__ == "__main__":
    main()
