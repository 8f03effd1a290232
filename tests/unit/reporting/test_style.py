"""How methods look: apart from each other, and the same every time."""

from __future__ import annotations

from kvatlas.reporting import style


def test_known_methods_look_different_and_unknown_ones_look_the_same_every_time() -> None:
    looks = [style.method_style(method) for method in style._STYLES]
    assert len({(look.color, look.marker) for look in looks}) == len(looks)
    assert style.method_style("brand_new") == style.method_style("brand_new")
    assert style.method_style("snapkv_emeans_proportional").color == style.method_style("snapkv_emeans").color
    assert not style.method_style("snapkv_emeans_proportional").filled
