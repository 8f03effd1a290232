"""Names that were given up, and what they are called now, so that an old file is refused with the name to write.

Plain data: knows neither files nor messages.
"""

from __future__ import annotations

RENAMED_KEYS: dict[str, str] = {
    "settings": "protections",
    "setting": "protection",
    "mass_bias": "proportional_attention",
    "least": "min_share",
    "corrections": "reanalyses",
    "corrected": "reanalysed",
}
"""Keys of configurations, claims and stored cells: old name -> the name now."""

RENAMED_MODES: dict[str, str] = {"floor": "no_context"}
"""Question modes: old name -> the name now."""

RENAMED_METHODS: dict[str, str] = {
    f"{policy}_mass": f"{policy}_proportional" for policy in ("emeans_pre_rope", "emeans_post_rope", "pinned_emeans")
}
"""Names that the repository's configurations gave to methods: old name -> the name now."""
