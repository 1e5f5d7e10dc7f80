"""Golden vectors from hashlib, struct and zlib alone: run `python tests/kv_types/make_golden.py` to write the JSON files.

It shares no line with the product on purpose: the formats are described here a second time.
"""

from __future__ import annotations

import json
import struct
import zlib
from hashlib import blake2b
from pathlib import Path

HERE = Path(__file__).parent


def field(number: int, tag: int, body: bytes) -> bytes:
    return struct.pack("<HBI", number, tag, len(body)) + body


def text(value: str) -> bytes:
    return struct.pack("<BI", 2, len(value.encode())) + value.encode()


def canonical_namespace() -> bytes:
    integers = {10: 30, 11: 0, 12: 15, 13: 8, 14: 2, 15: 4, 16: 64, 17: 64, 18: 0, 19: 0}
    scaling = text("factor") + struct.pack("<BId", 4, 8, 32.0)
    scaling += text("short") + struct.pack("<BIdd", 6, 16, 1.0, -0.5)
    scaling += text("truncate") + struct.pack("<BI?", 5, 1, True)
    fields = [field(1, 2, "modèle/ß".encode()), field(2, 1, bytes(range(32))), field(3, 0, b"")]
    fields += [field(4, 2, b"adapter"), field(5, 1, b"\xaa" * 32), field(6, 2, b"fp8_e4m3")]
    fields += [field(7, 2, b"per_head_page"), field(8, 0, b""), field(9, 2, b"gqa")]
    fields += [field(number, 3, struct.pack("<q", value)) for number, value in integers.items()]
    fields += [field(20, 2, b"yarn"), field(21, 4, struct.pack("<d", 500000.0)), field(22, 7, scaling)]
    fields += [field(23, 7, text("kind") + text("rope")), field(24, 3, struct.pack("<q", 3))]
    fields += [field(25, 3, struct.pack("<q", 16)), field(26, 2, b"canonical-1"), field(27, 2, b"tenant")]
    fields += [field(28, 7, text("epsilon") + struct.pack("<BId", 4, 8, 1e-5))]
    return struct.pack("<4sH", b"SKNS", 1) + b"".join(fields)


def chain(parent: bytes, token_ids: list[int], page_tokens: int, extras: dict[int, list[bytes]]) -> list[str]:
    keys = []
    for page in range(len(token_ids) // page_tokens):
        data = parent + struct.pack(
            f"<{page_tokens}I", *token_ids[page * page_tokens : (page + 1) * page_tokens]
        )
        if extras.get(page):
            data += struct.pack("<I", len(extras[page]))
            data += b"".join(struct.pack("<I", len(digest)) + digest for digest in extras[page])
        parent = blake2b(data, digest_size=32).digest()
        keys.append(parent.hex())
    return keys


def record() -> bytes:
    names = b"".join(bytes([len(name)]) + name for name in (b"tag", b"night/run"))
    size = 4 + 2 + 2 + 4 + 96 + 24 + 16 + 28 + 24 + 4 + 64 + len(names) + 4
    header = struct.pack("<4sHHI", b"SKVR", 2, 2, size) + b"\x11" * 32 + b"\x22" * 32 + b"\x33" * 32
    header += struct.pack("<16sQ", b"\x44" * 16, 77)
    header += struct.pack("<QQ", 0x5152535455565758, 0x6162636465666768)
    header += struct.pack("<HHQQQ", 1, 2, 0x1122334455667788, 4096, 4000)
    header += struct.pack("<QQQ", 1_700_000_000_000, 1_700_000_000_250, 1_700_000_086_400) + struct.pack(
        "<BBH64s", 2, 4, 0, b"me/0"
    )
    return header + names + struct.pack("<I", zlib.crc32(header + names))


def cases() -> list[dict[str, object]]:
    namespace = blake2b(canonical_namespace(), digest_size=32).digest()
    made: list[dict[str, object]] = []
    for page_tokens, tokens, extras in (
        (1, [0, 1, 2**32 - 1], {}),
        (4, list(range(17)), {}),
        (16, [(7 * n * n + 3) % 151_936 for n in range(100)], {}),
        (64, [(n * 2654435761) % 2**32 for n in range(64 * 5)], {}),
        (4, list(range(12)), {0: [b"\x01" * 32], 2: [b"ab", b"c"]}),
        (4, list(range(12)), {0: [b"\x01" * 32], 2: [b"a", b"bc"]}),
    ):
        keys = chain(namespace, tokens, page_tokens, extras)
        hexed = {str(page): [digest.hex() for digest in digests] for page, digests in extras.items()}
        made.append({"page_tokens": page_tokens, "token_ids": tokens, "extras": hexed, "keys": keys})
    return made


def vectors() -> dict[str, object]:
    canonical = canonical_namespace()
    return {
        "namespace_canonical": canonical.hex(),
        "namespace_id": blake2b(canonical, digest_size=32).hexdigest(),
        "cases": cases(),
        "record_header": record().hex(),
    }


if __name__ == "__main__":
    (HERE / "golden_keys.json").write_text(json.dumps(vectors(), indent=1) + "\n")
