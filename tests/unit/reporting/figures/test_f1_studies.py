"""The joint figure of all studies: names of arms that lie close together are written once, side by side."""

from __future__ import annotations

from kvatlas.reporting.figures.f1_studies import Point, neighbours


def point(share: float, kept: float, method: str = "full", quantizer: str = "int8") -> Point:
    return Point("needle", {"method": method, "quantizer": quantizer, "budget": "none"}, share, kept)


def test_close_points_of_one_method_are_named_together():
    close = [point(0.50, -0.01, quantizer="fp8"), point(0.53, 0.0), point(0.54, 0.0, quantizer="kivi4")]
    assert neighbours([*close, point(0.28, -0.1, quantizer="int4")]) == [[point(0.28, -0.1, quantizer="int4")], close]


def test_points_of_other_methods_or_far_apart_keep_their_own_name():
    points = [point(0.5, 0.0), point(0.5, -0.3), point(0.5, 0.0, method="snapkv")]
    assert [len(group) for group in neighbours(points)] == [1, 1, 1]
