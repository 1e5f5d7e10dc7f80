"""Selectors, origins and namespaces for tests: any there may be, and such from few values, which meet each other."""

from __future__ import annotations

from hypothesis import strategies as st

from kv_types.ids import NamespaceId, PageKey
from kv_types.limits import PRODUCER_BYTES_MAX, TAG_BYTES_MAX
from kv_types.namespace import Adapter, AttentionKind, Geometry, KvDtype, Namespace, Rope, Weights
from kv_types.selectors import Origin, Selector

UINT64_MAX = (1 << 64) - 1

KEYS = st.binary(min_size=32, max_size=32)
NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200)
UINT64 = st.integers(0, UINT64_MAX)


def _optional(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.none() | values


def _ordered(values: dict[str, object]) -> dict[str, object]:
    for since, until in (("since_ms", "until_ms"), ("since_revision", "until_revision")):
        first, last = values[since], values[until]
        if isinstance(first, int) and isinstance(last, int) and first > last:
            values[since], values[until] = last, first
    return values


SELECTORS: st.SearchStrategy[Selector] = (
    st.fixed_dictionaries(
        {
            "namespace": _optional(KEYS.map(NamespaceId)),
            "model": _optional(NAMES),
            "weights_version": _optional(NAMES),
            "adapter": _optional(NAMES | st.just("")),
            "tenant": _optional(NAMES | st.just("")),
            "key": _optional(KEYS.map(PageKey)),
            "producer": _optional(st.binary(min_size=1, max_size=PRODUCER_BYTES_MAX)),
            "tag": _optional(st.binary(min_size=1, max_size=TAG_BYTES_MAX)),
            "since_ms": _optional(UINT64),
            "until_ms": _optional(UINT64),
            "since_revision": _optional(UINT64),
            "until_revision": _optional(UINT64),
            "other_weights_than": _optional(NAMES),
        }
    )
    .map(_ordered)
    .map(lambda values: Selector(**values))  # type: ignore[arg-type]
)
"""Any selector."""


def space(model: str, weights: Weights, *, adapter: str = "", tenant: str = "") -> Namespace:
    """A namespace that differs from others in what selectors name."""
    return Namespace(
        model=model,
        weights=weights,
        kv_dtype=KvDtype.FP16,
        geometry=Geometry(
            attention=AttentionKind.GQA, layers_total=2, layer_begin=0, layer_end=2,
            kv_heads_total=1, head_begin=0, head_end=1, head_dim=8,
        ),
        page_tokens=4,
        rope=Rope("default", 10_000.0),
        adapter=Adapter(adapter, bytes(32)) if adapter else None,
        tenant=tenant,
    )  # fmt: skip


DIGEST = bytes(range(32))
SPACES = (
    space("m", Weights(version="1")),
    space("m", Weights(version="2"), tenant="t"),
    space("n", Weights(digest=DIGEST), adapter="a"),
    space("n", Weights(version="1"), adapter="b", tenant="t"),
)

FEW_KEYS = tuple(PageKey(bytes([number]) * 32) for number in range(6))
FEW_ORIGINS: st.SearchStrategy[Origin] = st.builds(
    Origin,
    producer=st.sampled_from([b"p", b"q", None]),
    tags=st.sampled_from([(), (b"x",), (b"x", b"y"), None]),
    from_ms=st.integers(0, 6),
    until_ms=st.integers(0, 6),
    revision=st.integers(0, 12),
    lineage_known=st.booleans(),
)
_FEW = {
    "namespace": st.sampled_from([each.id for each in SPACES]),
    "model": st.sampled_from(["m", "n", "other"]),
    "weights_version": st.sampled_from(["1", "2", DIGEST.hex()]),
    "adapter": st.sampled_from(["", "a"]),
    "tenant": st.sampled_from(["", "t"]),
    "key": st.sampled_from(FEW_KEYS),
    "producer": st.sampled_from([b"p", b"q"]),
    "tag": st.sampled_from([b"x", b"z"]),
    "since_ms": st.sampled_from([0, 3]),
    "until_ms": st.sampled_from([3, 5]),
    "since_revision": st.just(2),
    "until_revision": st.sampled_from([4, 8]),
    "other_weights_than": st.sampled_from(["1", "2", DIGEST.hex(), DIGEST.hex().upper()]),
}
_SPACE_FIELDS = ("namespace", "model", "weights_version", "adapter", "tenant", "other_weights_than")
_ORIGIN_FIELDS = ("producer", "tag", "since_ms", "until_ms", "since_revision", "until_revision")


def _of(names: tuple[str, ...], most: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), min_size=1, max_size=most, unique=True).map(tuple)


_FIELDS = st.one_of(
    st.just(("key",)),
    _of(_SPACE_FIELDS, 1).map(lambda names: ("key", *names)),
    _of(_SPACE_FIELDS, 2),
    st.just(("namespace",)),
    _of(_ORIGIN_FIELDS, 2),
    _of(_ORIGIN_FIELDS, 1).map(lambda names: ("key", *names)),
    st.tuples(_of(_SPACE_FIELDS, 1), _of(_ORIGIN_FIELDS, 1)).map(lambda both: both[0] + both[1]),
    _of(tuple(_FEW), 4),
    st.just(()) | _of(tuple(_FEW), 2),
)
FEW_SELECTORS: st.SearchStrategy[Selector] = _FIELDS.flatmap(
    lambda names: st.fixed_dictionaries({name: _FEW[name] for name in names})
).map(lambda values: Selector(**values))  # type: ignore[arg-type]
"""Selectors of few values and fields, which often select what SPACES, FEW_KEYS and FEW_ORIGINS are made of."""


def literally_selects(selector: Selector, space: Namespace, origin: Origin, *, skew_ms: int) -> bool:
    """What the fields say, one by one, with unknowns taken for whatever is asked for."""
    weights = space.weights.version if space.weights.digest is None else space.weights.digest.hex()
    says = {
        "namespace": selector.namespace == space.id,
        "model": selector.model == space.model,
        "weights_version": selector.weights_version == weights,
        "adapter": selector.adapter == ("" if space.adapter is None else space.adapter.name),
        "tenant": selector.tenant == space.tenant,
        "other_weights_than": (selector.other_weights_than or "").casefold() != weights,
    }
    if origin.lineage_known:
        says["producer"] = origin.producer in (None, selector.producer)
        says["tag"] = origin.tags is None or selector.tag in origin.tags
        says["since_ms"] = origin.until_ms == 0 or (selector.since_ms or 0) - skew_ms <= origin.until_ms
        says["until_ms"] = origin.from_ms == 0 or (selector.until_ms or 0) + skew_ms >= origin.from_ms
        says["since_revision"] = (selector.since_revision or 0) <= origin.revision
        says["until_revision"] = (selector.until_revision or 0) >= origin.revision
    return all(met for name, met in says.items() if getattr(selector, name) is not None)
