"""Golden vectors, made by `make_golden.py` without the product: encodings and keys may never change by accident."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kv_types.ids import NamespaceId, PageKey, Stamp, log_incarnation
from kv_types.namespace import (
    Adapter,
    AttentionKind,
    Geometry,
    KvDtype,
    Namespace,
    Quantisation,
    QuantisationScheme,
    Rope,
    Weights,
    parameters,
)
from kv_types.page_keys import KeyChain, page_keys
from kv_types.record import CHECKSUM_AT, ChecksumKind, Codec, PageDescription, RecordHeader
from tests.kv_types.make_golden import vectors

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parent / "golden_keys.json").read_text())


def _namespace() -> Namespace:
    return Namespace(
        model="modèle/ß",
        weights=Weights(digest=bytes(range(32))),
        adapter=Adapter("adapter", b"\xaa" * 32),
        kv_dtype=KvDtype.FP8_E4M3,
        quantisation=Quantisation(QuantisationScheme.PER_HEAD_PAGE),
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=30, layer_begin=0, layer_end=15,
            kv_heads_total=8, head_begin=2, head_end=4, head_dim=64,
        ),
        rope=Rope("yarn", 500_000, parameters({"truncate": True, "factor": 32.0, "short": [1, -0.5]})),
        position=parameters({"kind": "rope"}),
        position_offset=3,
        page_tokens=16,
        tenant="tenant",
        numerics=parameters({"epsilon": 1e-5}),
    )  # fmt: skip


def _extras(case: dict[str, Any]) -> dict[int, list[bytes]]:
    return {int(page): [bytes.fromhex(one) for one in digests] for page, digests in case["extras"].items()}


def test_the_file_is_what_the_script_makes() -> None:
    assert json.loads(json.dumps(vectors())) == GOLDEN


def test_the_namespace_encodes_to_the_golden_bytes() -> None:
    assert _namespace().canonical.hex() == GOLDEN["namespace_canonical"]
    assert _namespace().id.hex() == GOLDEN["namespace_id"]
    assert Namespace.from_canonical(bytes.fromhex(GOLDEN["namespace_canonical"])) == _namespace()


@pytest.mark.parametrize(
    "case", GOLDEN["cases"], ids=lambda case: f"page{case['page_tokens']}x{len(case['keys'])}"
)
def test_c01_keys_equal_the_golden_ones(case: dict[str, Any]) -> None:
    namespace = NamespaceId(bytes.fromhex(GOLDEN["namespace_id"]))
    packed = page_keys(namespace, case["token_ids"], page_tokens=case["page_tokens"], extras=_extras(case))
    assert packed.hex() == "".join(case["keys"])
    chain = KeyChain(namespace, case["page_tokens"])
    chain.extend([], extras=_extras(case))
    for token in case["token_ids"]:
        chain.extend([token])
    assert [key.hex() for key in chain.keys] == case["keys"]


def test_golden_extras_of_other_lengths_are_other_keys() -> None:
    first, second = GOLDEN["cases"][-2:]
    assert first["keys"][:2] == second["keys"][:2]
    assert first["keys"][2] != second["keys"][2]


_CHILD = """
import json, sys
from kv_types.page_keys import page_keys
golden = json.load(open(sys.argv[1]))
for case in golden["cases"]:
    extras = {int(p): [bytes.fromhex(d) for d in ds] for p, ds in case["extras"].items()}
    namespace = bytes.fromhex(golden["namespace_id"])
    print(page_keys(namespace, case["token_ids"], page_tokens=case["page_tokens"], extras=extras).hex())
"""


@pytest.mark.parametrize("hash_seed", [None, "0", "1"])
def test_c01_keys_do_not_depend_on_the_process(hash_seed: str | None) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONHASHSEED"}
    if hash_seed is not None:
        environment["PYTHONHASHSEED"] = hash_seed
    path = Path(__file__).parent / "golden_keys.json"
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(path)],
        env=environment, capture_output=True, text=True, check=True, timeout=60, cwd=path.parent.parent.parent,
    )  # fmt: skip
    assert done.stdout.split() == ["".join(case["keys"]) for case in GOLDEN["cases"]]


def test_the_record_header_encodes_to_the_golden_bytes() -> None:
    page = PageDescription(
        namespace=NamespaceId(b"\x11" * 32),
        key=PageKey(b"\x22" * 32),
        parent=PageKey(b"\x33" * 32),
        stamp=Stamp(log_incarnation(b"\x44" * 16), 77),
        payload_bytes=4096,
        birth=0x5152535455565758,
        rests_on=0x6162636465666768,
        producer=b"me/0",
        tags=(b"tag", b"night/run"),
        computed_from_ms=1_700_000_000_000,
        computed_until_ms=1_700_000_000_250,
        expires_ms=1_700_000_086_400,
        origin_unknown=True,
    )
    header = RecordHeader(
        page=page,
        codec=Codec.ZSTD_PLANES,
        stored_bytes=4000,
        checksum_kind=ChecksumKind.XXH3_64,
        checksum=0x1122334455667788,
    )
    data = header.encode()
    assert data.hex() == GOLDEN["record_header"]
    assert RecordHeader.decode(bytes.fromhex(GOLDEN["record_header"])) == header
    assert data[CHECKSUM_AT : CHECKSUM_AT + 8] == bytes.fromhex("8877665544332211")
