"""How the terms of single studies are spelled on pages and in figures: scoring protocols and task families."""

from __future__ import annotations

PROTOCOL_LABELS = {"single": "Single forward", "prefill": "Prefill, then score", "online": "Online"}
FAMILY_LABELS = {
    "needle": "Needle",
    "multi_turn": "Multi-turn rule",
    "instruction": "System instruction",
    "summary": "Summary recall",
}
