"""Codecs of L3 on KV of real models: bytes saved, speed each way, and what lossy ones change in logits and greedy tokens.

`python -m benchmarks.codecs`. KV is what Transformers computes for a text; the codecs are the product's own. Each page is
computed on pages before it as a codec gives them back, which is what a request does that finds those in L3: some pages in one
pass, by a mask that shows each token the given pages before its own, and of its own page what is being computed.
"""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.vllm_models import LLAMA_184M, LLAMA_TINY, cache_folder, random_model
from cache_l3.page_codecs import Packed, PageCodecs
from kv_types.namespace import AttentionKind, Geometry, KvDtype, Namespace, StoredAs, Weights
from kv_types.page_layout import PageLayout, PagePart, PartRole
from kv_types.record import Codec

TOKENS = 2000
"""Compared; one page more is computed, on which the first of them stands."""
PAGE_TOKENS = 64
PAGES_AT_ONCE = 8
ROUNDS = 7
ENGINE_LAYOUT = "neighbours"
"""A layout that tells nothing but that numbers next to each other belong together."""
ROOT = Path(__file__).resolve().parent.parent
COLUMNS = (
    "KV", "codec", "of the bytes", "encode GB/s", "decode GB/s", "error, mean", "error, worst layer", "largest logit difference",
    "greedy tokens changed",
)  # fmt: skip


@dataclass(frozen=True)
class Subject:
    """A model as it is served: `kv` [layers][keys, values] of its own computation, and its logits on that."""

    name: str
    model: Any
    ids: Any
    dtype: KvDtype
    kv: list[tuple[Any, Any]]
    logits: Any

    def namespace(self, stored_as: StoredAs | None = None, **changes: Any) -> Namespace:
        """What its pages are called, as far as codecs ask."""
        keys, values = self.kv[0]
        tokens = changes.pop("page_tokens", PAGE_TOKENS)
        return Namespace(
            model=self.name, weights=Weights(version="1"), kv_dtype=self.dtype, page_tokens=tokens,
            geometry=Geometry(
                attention=AttentionKind.GQA, layers_total=len(self.kv), layer_begin=0, layer_end=len(self.kv),
                kv_heads_total=keys.shape[1], head_begin=0, head_end=keys.shape[1], head_dim=keys.shape[3],
                value_head_dim=values.shape[3],
            ),
            stored_as=stored_as, **changes,
        )  # fmt: skip


@dataclass(frozen=True)
class Coded:
    """One row: a codec on one model's pages. Errors and differences are None where every bit came back."""

    kv: str
    codec: str
    share: float
    encode_gb_s: float
    decode_gb_s: float
    mean_error: float | None
    worst_error: float | None
    logit_difference: float | None
    changed: int | None
    compared: int
    kept_exact: int
    """Pages that a lossy codec left to the lossless one."""

    def cells(self) -> tuple[str, ...]:
        """What `COLUMNS` names."""
        told = (
            ("–", "–", "0, bit-exact", f"0 of {self.compared}")
            if self.logit_difference is None
            else (
                f"{self.mean_error:.2%}", f"{self.worst_error:.2%}", f"{self.logit_difference:.2f}",
                f"{self.changed} of {self.compared}",
            )
        )  # fmt: skip
        return (
            self.kv, self.codec, f"{self.share:.1%}", "–" if self.codec == "raw" else f"{self.encode_gb_s:.2f}",
            f"{self.decode_gb_s:.2f}", *told,
        )  # fmt: skip


def subject(name: str, model: Any, ids: Sequence[int], *, kv_dtype: KvDtype | None = None) -> Subject:
    """Compute a text, and its logits page by page on its own KV; `kv_dtype`: what that is kept as, None for the model's."""
    import torch

    of_torch = {torch.bfloat16: KvDtype.BF16, torch.float16: KvDtype.FP16, torch.float32: KvDtype.FP32}
    kept = of_torch[model.dtype] if kv_dtype is None else kv_dtype
    row, kv = torch.tensor([list(ids)]), computed(model, ids, kept)
    whole = len(ids) // PAGE_TOKENS * PAGE_TOKENS
    given = [(keys[:, :, :whole], values[:, :, :whole]) for keys, values in kv]
    return Subject(f"{name}, {kept}", model, row, kept, kv, logits_on(model, row, given))


def computed(model: Any, ids: Sequence[int], kept: KvDtype) -> list[tuple[Any, Any]]:
    """KV of a text, [layers][keys, values], in one pass."""
    import torch

    cache = _empty_cache(model)
    with torch.no_grad():
        model(torch.tensor([list(ids)]), logits_to_keep=1, **{_cache_argument(model): cache})
    kind = _torch_dtype(kept)
    return [(layer.keys.to(kind), layer.values.to(kind)) for layer in cache.layers]


def _torch_dtype(dtype: KvDtype) -> Any:
    import torch

    return {KvDtype.BF16: torch.bfloat16, KvDtype.FP16: torch.float16, KvDtype.FP32: torch.float32}[dtype]


def logits_on(model: Any, ids: Any, given: Sequence[tuple[Any, Any]]) -> Any:
    """Logits [tokens, vocabulary] where each page is computed on the pages before it as they are given."""
    import torch

    told, at_once = [], PAGES_AT_ONCE * PAGE_TOKENS
    for begin in range(0, ids.shape[1], at_once):
        end = min(begin + at_once, ids.shape[1])
        there = (end - 1) // PAGE_TOKENS * PAGE_TOKENS
        cache = _empty_cache(model)
        for layer, (keys, values) in enumerate(given):
            cache.update(keys[:, :, :there].to(model.dtype), values[:, :, :there].to(model.dtype), layer)
        token = torch.arange(begin, end)
        page = token // PAGE_TOKENS
        before = torch.arange(there) < page[:, None] * PAGE_TOKENS
        own = (token <= token[:, None]) & (page == page[:, None])
        mask = torch.cat([before, own], dim=1)[None, None]
        argument = {_cache_argument(model): cache}
        with torch.no_grad():
            told.append(
                model(ids[:, begin:end], attention_mask=mask, position_ids=token[None], **argument).logits[0]
            )
    return torch.cat(told)


def measure_subject(of: Subject, *, engines: bool = True, rounds: int = ROUNDS) -> Iterator[Coded]:
    """All codecs on one model's pages; `engines`: those of an engine's own layout too."""
    yield coded(of, "raw", of.namespace(), Codec.RAW, rounds=rounds)
    yield coded(of, "lossless planes", of.namespace(), Codec.PLANES, rounds=rounds)
    for stored_as in StoredAs:
        yield coded(of, str(stored_as), of.namespace(stored_as), Codec.PLANES, rounds=rounds)
    for stored_as in StoredAs if engines else ():
        own = of.namespace(stored_as, layout=ENGINE_LAYOUT)
        yield coded(of, f"{stored_as}, engine's layout", own, Codec.PLANES, rounds=rounds)


def coded(of: Subject, name: str, namespace: Namespace, lossless: Codec, *, rounds: int) -> Coded:
    """One codec on all whole pages: encoded and decoded by one thread, then computed on."""
    pages, codecs = page_bytes(of), PageCodecs(lossless, error_limit=1.0)
    packed = [codecs.encode(page, namespace) for page in pages]
    back = [memoryview(bytearray(page)) for page in pages]
    encode_s, decode_s = [], []
    for _ in range(rounds):
        begun = time.thread_time()
        for page in pages:
            codecs.encode(page, namespace)
        between = time.thread_time()
        for one, place in zip(packed, back, strict=True):
            _decode(codecs, one, place, namespace)
        encode_s.append(between - begun)
        decode_s.append(time.thread_time() - between)
    total = sum(page.nbytes for page in pages)
    is_exact = all(bytes(place) == bytes(page) for place, page in zip(back, pages, strict=True))
    assert is_exact or namespace.stored_as is not None, "a lossless codec gives every bit back"
    errors = [one.error for one in packed if one.error is not None and one.kept is None]
    difference, changed = (None, 0) if is_exact else _compare(of, back)
    return Coded(
        kv=of.name, codec=name, share=sum(one.data.nbytes for one in packed) / total,
        encode_gb_s=total / median(encode_s) / 1e9, decode_gb_s=total / median(decode_s) / 1e9,
        mean_error=sum(error.mean for error in errors) / len(errors) if errors else None,
        worst_error=max((error.worst for error in errors), default=None),
        logit_difference=difference, changed=changed, compared=of.ids.shape[1] - PAGE_TOKENS,
        kept_exact=sum(one.kept is not None for one in packed),
    )  # fmt: skip


def _decode(codecs: PageCodecs, one: Packed, place: memoryview, namespace: Namespace) -> None:
    if one.codec is Codec.RAW:
        place[:] = one.data  # a server's bytes come to their place by themselves; here that is a copy
    else:
        codecs.decode(one.codec, one.data, place, namespace)


def page_bytes(of: Subject, *, page_tokens: int = PAGE_TOKENS) -> list[memoryview]:
    """Whole pages of the computation, in the canonical layout."""
    layout = PageLayout.of(of.namespace(page_tokens=page_tokens))
    pages = []
    for begin in range(0, of.ids.shape[1] // page_tokens * page_tokens, page_tokens):
        page = bytearray(layout.page_bytes)
        for part in layout.parts():
            tensor = of.kv[part.layer][part.role is PartRole.VALUE][0, :, begin : begin + page_tokens]
            page[part.offset : part.offset + part.size_bytes] = _bytes_of(tensor)
        pages.append(memoryview(page))
    return pages


def _bytes_of(tensor: Any) -> bytes:
    import torch

    return bytes(tensor.contiguous().view(torch.uint8).numpy().tobytes())


def _compare(of: Subject, pages: Sequence[memoryview]) -> tuple[float, int]:
    """Largest difference of logits, and greedy tokens that changed, behind the first page, on pages as they are given."""
    import torch

    layout = PageLayout.of(of.namespace())
    kind = _torch_dtype(of.dtype)
    parts = [torch.cat([_numbers(page, part, kind) for page in pages], dim=2) for part in layout.parts()]
    logits = logits_on(of.model, of.ids, list(zip(parts[::2], parts[1::2], strict=True)))
    largest, changed = 0.0, 0
    for begin in range(PAGE_TOKENS, of.ids.shape[1], PAGE_TOKENS):
        ours, theirs = (
            logits[begin : begin + PAGE_TOKENS].float(),
            of.logits[begin : begin + PAGE_TOKENS].float(),
        )
        largest = max(largest, float((ours - theirs).abs().max()))
        changed += int((ours.argmax(-1) != theirs.argmax(-1)).sum())
    return largest, changed


def _numbers(page: memoryview, part: PagePart, kind: Any) -> Any:
    """A part of a page as [1, heads, tokens, head_dim]."""
    import torch

    count = part.size_bytes // part.dtype.item_bytes
    return torch.frombuffer(page, dtype=kind, count=count, offset=part.offset).reshape(1, *part.shape)


def _empty_cache(model: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def _cache_argument(model: Any) -> str:
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


# --- the models, and the text ---


def subjects(tell: Any) -> Iterator[Subject]:
    """SmolLM2-135M in bf16 and fp16, and the random models of vLLM's tests in bf16, each on the same text."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    real = smollm2()
    text = "\n".join(
        (ROOT / name).read_text(encoding="utf-8")
        for name in ("examples/data/alice_chapter_1.txt", "README.md")
    )
    ids = AutoTokenizer.from_pretrained(real)(text).input_ids[: TOKENS + PAGE_TOKENS]
    assert len(ids) == TOKENS + PAGE_TOKENS, "the text is long enough"
    for name, folder, dtype, kept in (
        ("SmolLM2-135M", real, torch.bfloat16, KvDtype.BF16),
        ("SmolLM2-135M", real, torch.float32, KvDtype.FP16),  # few CPUs multiply in fp16
        ("llama-tiny (random)", random_model("llama-tiny", LLAMA_TINY), torch.bfloat16, KvDtype.BF16),
        ("llama-184m (random)", random_model("llama-184m", LLAMA_184M), torch.bfloat16, KvDtype.BF16),
    ):
        tell(f"{name}, {kept}")
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        yield subject(name, model, [token % model.config.vocab_size for token in ids], kv_dtype=kept)


def smollm2() -> Path:
    """The folder that the demo prepares once, in the cache of benchmarks."""
    subprocess.run(
        [sys.executable, str(ROOT / "examples" / "demo_model.py")], check=True, capture_output=True, timeout=600,
        env={**os.environ, "STRATAKV_DEMO_CACHE": str(cache_folder()), "HF_HUB_OFFLINE": "1"},
    )  # fmt: skip
    return cache_folder() / "smollm2-135m-instruct"


def measure(console: Console, *, rounds: int = ROUNDS) -> list[Coded]:
    """Everything; some minutes."""
    rows: list[Coded] = []
    for at, each in enumerate(subjects(console.print)):
        rows += measure_subject(each, engines=at == 0, rounds=rounds)
    return rows


def table(rows: Sequence[Coded]) -> Table:
    """For a terminal."""
    shown = Table(*COLUMNS)
    for row in rows:
        shown.add_row(*row.cells())
    return shown


def lines(rows: Sequence[Coded]) -> list[str]:
    """For docs/benchmarks.md."""
    return [
        "## Codecs of L3",
        "",
        f"`python -m benchmarks.codecs`: pages of {PAGE_TOKENS} tokens of KV that Transformers computes for a text, by one",
        "thread each way, by its own processor time; GB are of pages in memory. Decoding `raw` is a copy. "
        "An error is Σ|x − x'| ÷ Σ|x|: the",
        "mean of all pages, and of the layer's keys or values in any page where it is largest. For logits and greedy tokens each",
        f"page is computed on those before it as the codec gives them back, {TOKENS} tokens in all; random weights stand for",
        "geometries of vLLM's test models and say nothing of answers. *Engine's layout*: a scale for so many neighbours as a",
        "head has numbers, as where an engine's own layout does not tell more. fp16: KV of a computation in fp32, kept as fp16.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|---|---|" + "---:|" * (len(COLUMNS) - 2),
        *("| " + " | ".join(row.cells()) + " |" for row in rows),
        "",
        f"Pages that a lossy codec left to the lossless one: {sum(row.kept_exact for row in rows)}.",
    ]


def main(rounds: int = ROUNDS) -> None:
    """Measure and print."""
    console = Console(stderr=True)
    rows = measure(console, rounds=rounds)
    console.print(table(rows))
    typer.echo("\n".join(lines(rows)))


if __name__ == "__main__":
    typer.run(main)
