"""What codecs of L3 could do otherwise, on KV of SmolLM2: other levels, dictionaries, framed noise, fp8 scales by channel.

`python -m benchmarks.codec_choices`. Dictionaries are trained on the exponents of one text's pages and used on another's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import typer
import zstandard

from benchmarks.codecs import ROOT, Subject, computed, page_bytes, smollm2
from cache_l3._native import Quantiser, split_planes
from cache_l3.sections import Sections, frame_parameters
from kv_types.namespace import KvDtype, StoredAs
from kv_types.page_layout import PageLayout, PartRole
from kv_types.scale_groups import ScaledArray, scaled_arrays

PAGE_TOKENS = (16, 64, 256)
DICTIONARIES = (16 << 10, 64 << 10, 256 << 10)
LEVELS = (1, 3, 9)
TEXT_TOKENS = 1024
TRAINING_TOKENS = 2048
SAMPLE_BYTES = 8192
SAMPLES = 500
ROUNDS = 3
COLUMNS = (
    "KV",
    "page, tokens",
    "choice",
    "of the bytes",
    "encode GB/s",
    "decode GB/s",
    "error, mean",
    "error, worst layer",
)


@dataclass(frozen=True)
class Choice:
    """One row; speeds are of whole pages by the processor time of what differs, frames or codes. Errors where there are any."""

    kv: str
    tokens: int
    name: str
    share: float
    encode_gb_s: float
    decode_gb_s: float
    errors: tuple[float, float] | None = None

    def cells(self) -> tuple[str, ...]:
        """What `COLUMNS` names."""
        errors = ("–", "–") if self.errors is None else tuple(f"{error:.3%}" for error in self.errors)
        speeds = (f"{self.encode_gb_s:.2f}", f"{self.decode_gb_s:.2f}")
        return (self.kv, str(self.tokens), self.name, f"{self.share:.2%}", *speeds, *errors)


def planes_of(of: Subject, tokens: int) -> tuple[list[bytes], list[bytes]]:
    """Low and high plane (mantissas and exponents, about) of each page of 16-bit numbers."""
    low, high = [], []
    for page in page_bytes(of, page_tokens=tokens):
        planes = bytearray(page.nbytes)
        split_planes(page, 2, planes)
        low.append(bytes(planes[: page.nbytes // 2]))
        high.append(bytes(planes[page.nbytes // 2 :]))
    return low, high


def framed(
    planes: Sequence[bytes], compressor: zstandard.ZstdCompressor, decompressor: zstandard.ZstdDecompressor
) -> tuple[int, float, float]:
    """Bytes of the frames of one plane a page, and GB/s of whole pages each way, the best of some rounds."""
    encode_s, decode_s = [], []
    frames: list[bytes] = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        frames = [compressor.compress(plane) for plane in planes]
        between = time.thread_time()
        back = [decompressor.decompress(frame) for frame in frames]
        encode_s.append(between - begun)
        decode_s.append(time.thread_time() - between)
        assert back == list(planes), "a frame gives every bit back"
    total = 2 * sum(map(len, planes)) / 1e9
    return sum(map(len, frames)), total / min(encode_s), total / min(decode_s)


def dictionary_of(planes: Sequence[bytes], size: int) -> zstandard.ZstdCompressionDict:
    """Trained on stretches of planes, evenly from all of them."""
    stretches: list[bytes | bytearray | memoryview] = [
        plane[at : at + SAMPLE_BYTES] for plane in planes for at in range(0, len(plane), SAMPLE_BYTES)
    ]
    made = zstandard.train_dictionary(size, stretches[:: len(stretches) // SAMPLES + 1])
    made.precompute_compress(compression_params=frame_parameters())
    return made


def lossless(of: Subject, training: Subject, tokens: int) -> Iterator[Choice]:
    """The high plane in frames as they are made, with dictionaries and at levels; and the low one in frames as well."""
    low, high = planes_of(of, tokens)
    rest, total = sum(map(len, low)), 2 * sum(map(len, low))
    plain = zstandard.ZstdCompressor(compression_params=frame_parameters())
    decompressor = zstandard.ZstdDecompressor()
    size, encode, decode = framed(high, plain, decompressor)
    yield Choice(of.name, tokens, "as it is", (rest + size) / total, encode, decode)
    _, learnt = planes_of(training, tokens)
    for wanted in DICTIONARIES:
        made = dictionary_of(learnt, wanted)
        compressor = zstandard.ZstdCompressor(compression_params=frame_parameters(), dict_data=made)
        size, encode, decode = framed(high, compressor, zstandard.ZstdDecompressor(dict_data=made))
        yield Choice(
            of.name, tokens, f"dictionary of {wanted >> 10} KiB", (rest + size) / total, encode, decode
        )
    for level in LEVELS:
        size, encode, decode = framed(high, zstandard.ZstdCompressor(level=level), decompressor)
        yield Choice(of.name, tokens, f"level {level}", (rest + size) / total, encode, decode)
    of_low, encode, decode = framed(low, plain, decompressor)
    size, _, _ = framed(high, plain, decompressor)
    yield Choice(
        of.name, tokens, "low plane in frames too; its time", (of_low + size) / total, encode, decode
    )


def scales(of: Subject, tokens: int) -> Iterator[Choice]:
    """fp8 with a scale for each head's keys, as it is, and with one for each channel of them."""
    namespace = of.namespace(StoredAs.FP8_E4M3, page_tokens=tokens)
    pages = page_bytes(of, page_tokens=tokens)
    by_head = scaled_arrays(namespace, pages[0].nbytes)
    parts = PageLayout.of(namespace).parts()
    by_channel = [
        replace(array, by_column=part.role is PartRole.KEY)
        for array, part in zip(by_head, parts, strict=True)
    ]
    for name, arrays in (("fp8, keys by head, as it is", by_head), ("fp8, keys by channel", by_channel)):
        yield quantised(of, tokens, name, pages, arrays)


def quantised(
    of: Subject, tokens: int, name: str, pages: Sequence[memoryview], arrays: Sequence[ScaledArray]
) -> Choice:
    """Pages as fp8 codes with these scales, in sections as they are stored."""
    size = pages[0].nbytes
    quantiser = Quantiser(
        code=0, number=[KvDtype.BF16, KvDtype.FP16].index(of.dtype), page_bytes=size,
        arrays=[(one.offset, one.rows, one.columns, one.rows_a_scale, one.by_column) for one in arrays],
    )  # fmt: skip
    sections, stored, errors = Sections(), 0, []
    encode_s = decode_s = 0.0
    for page in pages:
        codes = [
            memoryview(bytearray(one))
            for one in (quantiser.scales_bytes, quantiser.codes_bytes, quantiser.rest_bytes)
        ]
        begun = time.thread_time()
        lost = quantiser.encode(page, *codes)
        between = time.thread_time()
        assert quantiser.decode(codes[0], codes[1], codes[2], bytearray(size)), "what was encoded is decoded"
        encode_s, decode_s = encode_s + between - begun, decode_s + time.thread_time() - between
        assert lost is not None, "real KV is finite"
        errors.append(lost)
        stored += len(sections.pack(b"", codes, below=size) or page)
    total = size * len(pages)
    mean, worst = sum(error[1] for error in errors) / len(errors), max(error[0] for error in errors)
    return Choice(
        of.name, tokens, name, stored / total, total / encode_s / 1e9, total / decode_s / 1e9, (mean, worst)
    )


def subjects() -> Iterator[tuple[Subject, Subject]]:
    """SmolLM2-135M in bf16 and fp16: a text, and another one to train on."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = smollm2()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = (
        ("examples/data/alice_chapter_1.txt", TEXT_TOKENS), ("ARCHITECTURE.md", TRAINING_TOKENS)
    )  # fmt: skip
    ids = [tokenizer((ROOT / name).read_text(encoding="utf-8")).input_ids[:count] for name, count in texts]
    for dtype, kept in ((torch.bfloat16, KvDtype.BF16), (torch.float32, KvDtype.FP16)):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        text, training = (
            Subject(
                f"SmolLM2-135M, {kept}",
                model,
                torch.tensor([row]),
                kept,
                computed(model, row, kept),
                logits=None,
            )
            for row in ids
        )
        yield text, training


def main() -> None:
    """Measure and print a table."""
    typer.echo("| " + " | ".join(COLUMNS) + " |\n|---|---:|---|" + "---:|" * (len(COLUMNS) - 3))
    for text, training in subjects():
        for tokens in PAGE_TOKENS:
            for row in (*lossless(text, training, tokens), *scales(text, tokens)):
                typer.echo("| " + " | ".join(row.cells()) + " |")


if __name__ == "__main__":
    typer.run(main)
