"""Provenance: whatever the configuration holds, as pairs."""

from __future__ import annotations

from kvatlas.reporting import provenance


def test_provenance_shows_whatever_the_configuration_holds() -> None:
    shown = provenance.pairs(
        {
            "models": {"tiny": {"source": "hub", "files": [{"sha256": "ab"}], "none": None}},
            "rope_telemetry": [{"model": "tiny", "max_relative_error": 1.25e-6}],
            "packages": {},
        }
    )
    assert [table.columns[0] for table in shown] == ["Model tiny", "RoPE inversion"]
    assert [row.cells for row in shown[0].rows] == [
        ("files[0].sha256", "ab"),
        ("none", "–"),
        ("source", "hub"),
    ]
    assert shown[1].rows[0].cells == ("tiny.max_relative_error", "1.25e-06")
