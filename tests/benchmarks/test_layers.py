"""Layers of a call: what is a layer's own is what the next one leaves of it."""

from __future__ import annotations

import pytest

from benchmarks import layers
from benchmarks.layers import Layer


def test_what_each_layer_keeps_for_itself_adds_up_to_the_whole() -> None:
    calls = [("outer", lambda: sum(range(3000))), ("middle", lambda: sum(range(300))), ("inner", lambda: 0)]
    measured = layers._chain_of_layers("path", 7, calls, rounds=5, inner=3)
    assert [(one.path, one.layer, one.pages) for one in measured] == [
        ("path", name, 7) for name in ("outer", "middle", "inner")
    ]
    assert sum(one.own_us for one in measured) == pytest.approx(measured[0].whole_us)
    assert measured[-1].own_us == measured[-1].whole_us


def test_the_page_has_a_row_for_each_layer() -> None:
    told = layers.lines([Layer("match", "binding", 512, 7.474, 7.166)])
    assert told[-1] == "| match | 512 | binding | 7.47 | 7.17 |"
