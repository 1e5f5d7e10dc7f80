"""The count of open descriptors that other tests judge leaks by."""

from __future__ import annotations

import gc
import os

from tests.support.descriptors import descriptors_since, open_descriptors


class Ring:
    """Garbage that only a collection closes."""

    def __init__(self) -> None:
        self.descriptor = os.eventfd(0)
        self.ring = self

    def __del__(self) -> None:
        os.close(self.descriptor)


def test_what_is_left_open_is_named() -> None:
    before = open_descriptors()
    descriptor = os.open("/dev/null", os.O_RDONLY)
    assert dict(descriptors_since(before)) == {"/dev/null": 1}
    os.close(descriptor)
    assert not descriptors_since(before)


def test_what_others_close_hides_nothing_and_is_no_fault() -> None:
    gc.disable()
    try:
        Ring()
        theirs = os.open("/dev/null", os.O_RDONLY)
        before = open_descriptors()
        Ring()
        assert descriptors_since(before).total() == 1, "what is garbage now was open when it was counted"
        gc.collect()
        assert not descriptors_since(before)
        os.close(theirs)
        assert not descriptors_since(before)
        ours = os.eventfd(0)
        assert descriptors_since(before).total() == 1
        os.close(ours)
    finally:
        gc.enable()
