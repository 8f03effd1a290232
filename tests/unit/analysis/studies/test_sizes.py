"""Sizes of caches: what is deployed in bf16, and what is deployed as it is stored."""

from __future__ import annotations

from kvatlas.analysis.studies.sizes import deployed_bytes

TRIAL = {"resident_bytes": 1300, "payload_bytes": 1000, "full_bf16_bytes": 2000, "slots": 25.0}


def test_a_plain_cache_of_any_dtype_is_deployed_in_bf16_with_what_is_kept_beside_it() -> None:
    assert deployed_bytes(TRIAL | {"quantizer": "none"}, 100) == 2000 / 4 + 300
    assert deployed_bytes(TRIAL | {"quantizer": "none", "resident_bytes": 800, "payload_bytes": 500}, 100) == 800


def test_a_quantized_cache_is_deployed_as_it_is() -> None:
    assert deployed_bytes(TRIAL | {"quantizer": "int8"}, 100) == 1300
