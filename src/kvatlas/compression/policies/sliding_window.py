"""Sliding window: the newest tokens and nothing else. The control without attention sinks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kvatlas.compression.methods import PolicyRegistration
from kvatlas.compression.policies.sink_recent import SinkRecent


@PolicyRegistration("sliding_window", label="Sliding window", source="control", order=15)
@dataclass(frozen=True)
class SlidingWindow(SinkRecent):
    """The score is the position, and sinks are not protected: the whole budget goes to the newest slots."""

    protects_sinks: ClassVar[bool] = False
