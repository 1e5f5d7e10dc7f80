"""How blocks lie in engines' KV tensors: found from strides, named alike wherever pages are alike, copied byte for byte."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

from cache_l1.transfer_registration import RegisteredMemory
from cache_l1.transfer_streams import HostSide
from inference_worker.connectors.vllm.block_copies import HostBlocks
from inference_worker.connectors.vllm.block_layout import BlockLayout, _layers
from inference_worker.connectors.vllm.device_blocks import DeviceBlocks
from kv_types.errors import InvalidArgumentError
from kv_types.namespace import Uncacheable
from tests.cache_l1.sides import SlowDevice
from tests.connectors.vllm.blocks import BLOCKS, KINDS, filled, layout_of, page_of
from tests.support.polling import wait_until


def copies(kind: str, caches: Mapping[str, torch.Tensor], *, staged: bool, blocks: int = BLOCKS) -> object:
    layout = layout_of(kind, caches, blocks=blocks)
    if not staged:
        return layout.copies
    layers = _layers(caches, list(caches), blocks)
    runs = [one.runs() for one in layers]
    physical = [one.physical(blocks) for one in layers]
    return DeviceBlocks(runs, physical, num_blocks=blocks, device=torch.device("cpu"))


@pytest.mark.parametrize("staged", [False, True], ids=["host", "staged"])
@pytest.mark.parametrize("blocks_per_page", [1, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_pages_are_whole_blocks_layer_by_layer(kind: str, blocks_per_page: int, staged: bool) -> None:
    caches = filled(kind)
    made = copies(kind, caches, staged=staged)
    assert isinstance(made, HostBlocks | DeviceBlocks)
    ids = [7, 2, 5, 0, 1, 9][: 2 * blocks_per_page]
    pages = [memoryview(bytearray(blocks_per_page * made.bytes_per_block)) for _ in range(2)]
    made.gather(ids, pages)
    wanted = [page_of(kind, caches, ids[:blocks_per_page]), page_of(kind, caches, ids[blocks_per_page:])]
    assert [bytes(page) for page in pages] == wanted
    assert [bytes(one) if isinstance(one, memoryview) else one.nbytes for one in made.sources(ids, pages=2)] in (
        wanted, [len(page) for page in wanted],
    )  # fmt: skip


@pytest.mark.parametrize("staged", [False, True], ids=["host", "staged"])
@pytest.mark.parametrize("blocks_per_page", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_another_engine_gets_the_same_bytes_in_other_blocks(
    kind: str, blocks_per_page: int, staged: bool
) -> None:
    theirs, ours = filled(kind), filled(kind, blocks=2 * BLOCKS, seed=9)
    before = {name: tensor.clone() for name, tensor in ours.items()}
    source, target = copies(kind, theirs, staged=staged), copies(kind, ours, staged=staged, blocks=2 * BLOCKS)
    assert isinstance(source, HostBlocks | DeviceBlocks)
    assert isinstance(target, HostBlocks | DeviceBlocks)
    theirs_at, ours_at = [3, 1, 8, 4][: 2 * blocks_per_page], [19, 0, 11, 5][: 2 * blocks_per_page]
    pages = [memoryview(bytearray(blocks_per_page * source.bytes_per_block)) for _ in range(2)]
    source.gather(theirs_at, pages)
    views = [page.toreadonly() for page in pages]
    target.scatter(views, ours_at, layers=range(1))
    assert page_of(kind, ours, ours_at, layers=1) == page_of(kind, theirs, theirs_at, layers=1)
    assert page_of(kind, ours, ours_at) != page_of(kind, theirs, theirs_at)
    target.scatter(views, ours_at, layers=range(1, len(ours)))
    assert page_of(kind, ours, ours_at) == page_of(kind, theirs, theirs_at)
    others = [block for block in range(2 * BLOCKS) if block not in ours_at]
    assert page_of(kind, ours, others) == page_of(kind, before, others)


@pytest.mark.parametrize("kind", KINDS)
def test_the_name_says_what_a_page_is_and_not_how_many_there_are(kind: str) -> None:
    small, large = layout_of(kind, filled(kind)), layout_of(kind, filled(kind, blocks=64), blocks=64)
    assert small.name == large.name
    assert small.bytes_per_block == len(page_of(kind, filled(kind), [0]))
    names = {layout_of(other, filled(other)).name for other in KINDS}
    assert len(names) == len(KINDS)
    for change in ({"isa": "sse"}, {"attention_name": "other"}, {"block_tokens": 64}):
        assert layout_of(kind, filled(kind), **change).name != small.name


def test_many_layers_have_a_short_name() -> None:
    caches = {f"l{at}": torch.zeros(4, 1, 2, 3 + at) for at in range(200)}
    assert len(layout_of("odd", caches, blocks=4).name) < 1024


@pytest.mark.parametrize(
    ("caches", "why"),
    [
        ({"a": torch.zeros(5, 2, 4, 8)}, "counts 4 blocks"),
        ({"a": torch.zeros(2, 2, 4, 8), "b": torch.zeros(2, 2, 4, 8)}, "counts 4 blocks"),
        ({"a": torch.zeros(4, 16, 4, 8).transpose(1, 3)[:, :, ::2]}, "pieces"),
        ({"a": torch.zeros(4, 1, 4, 8).expand(4, 3, 4, 8)}, "overlap"),
        ({"a": torch.zeros(4 * 32 + 64).as_strided((4, 2, 4, 8), (16, 32, 8, 1))}, "overlap"),
        ({"a": [torch.zeros(4, 2)]}, "list"),
        ({"a": torch.zeros(4, 8)}, "none of a tensor of blocks"),
    ],
)
def test_what_is_not_understood_is_said(caches: dict[str, torch.Tensor], why: str) -> None:
    found = BlockLayout.of(
        caches, num_blocks=4, block_tokens=16, attention_name="a", isa="i", layer_order=list(caches)
    )
    assert isinstance(found, Uncacheable)
    assert why in found.detail


def test_two_blocks_that_tell_nothing_are_refused() -> None:
    found = BlockLayout.of(
        {"a": torch.zeros(2, 2, 4, 8)}, num_blocks=2, block_tokens=16, attention_name="a", isa="i", layer_order=["a"]
    )  # fmt: skip
    assert isinstance(found, Uncacheable)
    assert "first or second" in found.detail


def test_layers_that_share_memory_are_refused() -> None:
    shared = torch.zeros(4, 1, 4, 8)
    found = BlockLayout.of(
        {"a": shared, "b": shared}, num_blocks=4, block_tokens=16, attention_name="a", isa="i", layer_order=["a", "b"]
    )  # fmt: skip
    assert isinstance(found, Uncacheable)
    assert "overlap" in found.detail


def test_a_layer_that_is_missing_in_the_order_is_named() -> None:
    found = BlockLayout.of(
        filled("cpu"), num_blocks=BLOCKS, block_tokens=16, attention_name="a", isa="i", layer_order=["l0"]
    )
    assert isinstance(found, Uncacheable)
    assert "l1" in found.detail


def test_blocks_of_a_kernel_make_one_of_the_engine() -> None:
    fine = filled("cpu")
    coarse = layout_of("cpu", fine, blocks=BLOCKS // 2)
    page = memoryview(bytearray(coarse.bytes_per_block))
    coarse.gather([3], [page])
    tensors = list(fine.values())
    assert bytes(page) == b"".join(tensor[6:8].contiguous().numpy().tobytes() for tensor in tensors)


@pytest.mark.parametrize("ids", [[-2], [BLOCKS], [0, 2**40]])
def test_no_copy_leaves_the_engines_memory(ids: list[int]) -> None:
    layout = layout_of("cpu", filled("cpu"))
    pages = [memoryview(bytearray(layout.bytes_per_block)) for _ in ids]
    with pytest.raises(InvalidArgumentError, match="block ids"):
        layout.scatter(pages, ids)
    with pytest.raises(InvalidArgumentError, match="block ids"):
        layout.gather(ids, pages)


def test_pages_of_another_size_are_refused() -> None:
    layout = layout_of("cpu", filled("cpu"))
    with pytest.raises(InvalidArgumentError, match="bytes"):
        layout.scatter([memoryview(bytearray(layout.bytes_per_block - 1))], [0])
    with pytest.raises(InvalidArgumentError, match="whole number"):
        layout.scatter([memoryview(bytearray(layout.bytes_per_block))] * 2, [0, 1, 2])
    with pytest.raises(InvalidArgumentError, match="adjacent"):
        layout.scatter([memoryview(bytearray(layout.bytes_per_block))], [0], layers=range(9))


class _Side(HostSide):
    """Notes behind which of the engine's streams its work comes."""

    def __init__(self, now: list[str]) -> None:
        self._now = now
        self._engine = now[-1]
        self.waited_for: list[str] = []

    def follow_engine(self) -> None:
        self._engine = self._now[-1]

    def wait_for_engine(self) -> None:
        self.waited_for.append(self._engine)


def test_copies_come_behind_the_stream_that_the_engine_has_now() -> None:
    now = ["first"]
    sides: list[_Side] = []

    def make_side(device: torch.device) -> _Side:
        sides.append(_Side(now))
        return sides[-1]

    caches = filled("cpu")
    runs = _layers(caches, list(caches), BLOCKS)
    made = DeviceBlocks(
        [one.runs() for one in runs],
        [one.physical(BLOCKS) for one in runs],
        num_blocks=BLOCKS,
        device=torch.device("cpu"),
        make_side=make_side,
    )
    page = memoryview(bytearray(made.bytes_per_block))
    made.scatter([page], [3])
    made.gather([3], [page])
    now.append("second")  # as engines do when they capture graphs, after they have registered their blocks
    made.follow_engine()
    made.scatter([page], [3])
    made.gather([3], [page])
    assert [side.waited_for for side in sides] == [["first", "second"]] * 2, "loads and stores alike"


class _Runtime:
    """Registers everything."""

    def register(self, address: int, size_bytes: int) -> int:
        return 0

    def unregister(self, address: int) -> int:
        return 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("eager", [0.0, 0.5])
def test_pages_in_registered_memory_go_straight_into_blocks(kind: str, eager: float) -> None:
    source, caches = filled(kind, seed=2), filled(kind)
    runs, slow = _layers(caches, list(caches), BLOCKS), SlowDevice(eager=eager)
    registered = RegisteredMemory(_Runtime())
    made = DeviceBlocks(
        [one.runs() for one in runs],
        [one.physical(BLOCKS) for one in runs],
        num_blocks=BLOCKS,
        device=torch.device("cpu"),
        make_side=slow.side,
        registered=registered,
    )
    pages = [page_of(kind, source, ids) for ids in ([1, 2], [5, 0])]
    arena = np.frombuffer(b"".join(pages), dtype=np.uint8)
    views = [part.data.toreadonly() for part in arena.reshape(2, -1)]
    end = registered.register(arena.ctypes.data, arena.nbytes)

    def is_reached() -> bool:
        with registered.held(views) as reached:
            return reached

    wait_until(is_reached, what="the arena is registered")
    made.scatter(views, [7, 4, 3, 8])
    assert not any(side.buffers for side in slow.sides), "nothing was staged"
    assert [page_of(kind, caches, ids) for ids in ([7, 4], [3, 8])] == pages
    end()
    made.scatter(views, [3, 8, 7, 4])
    assert slow.sides[0].buffers, "what is registered no more is staged"
    assert [page_of(kind, caches, ids) for ids in ([3, 8], [7, 4])] == pages


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_blocks_of_an_accelerator(kind: str) -> None:
    host = filled(kind)
    device = {name: tensor.to("cuda") for name, tensor in host.items()}
    layout = layout_of(kind, device)
    page = memoryview(bytearray(layout.page_bytes(2)))
    layout.gather([4, 1], [page])
    assert bytes(page) == page_of(kind, host, [4, 1])
    layout.scatter([page.toreadonly()], [6, 3])
    assert page_of(kind, {name: one.cpu() for name, one in device.items()}, [6, 3]) == bytes(page)
