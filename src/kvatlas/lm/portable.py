"""The portable mode: the same bits on every x86-64 processor, at the price of slower kernels.

torch and MKL choose kernels by the processor's instruction set, and each set rounds sums in its own order. Two variables
ask for the ones that every x86-64 processor has. They are read once, before the first product of matrices, so they are set
before torch is imported. Hidden states of the embedded model were found equal bit for bit on a processor with AVX2 and
one with AVX-512. Knows no cell.
"""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import MutableMapping

from kvatlas.errors import KvatlasError

VARIABLES = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}
"""torch's own kernels without vector extensions, MKL's without a choice by processor."""
_CAPABILITY = "DEFAULT"
_PROCESSORS = ("x86_64", "AMD64")


def prepare(environment: MutableMapping[str, str]) -> None:
    """Ask for portable kernels in an environment. Raises KvatlasError where the processor has none."""
    if platform.machine() not in _PROCESSORS:
        raise KvatlasError(f"portable: {platform.machine()} is not x86-64; remove the key, or run on such a processor")
    environment.update(VARIABLES)


def enter() -> None:
    """Make this process compute portably. Raises KvatlasError where it is too late: torch has chosen its kernels."""
    late = "torch" in sys.modules and any(os.environ.get(name) != value for name, value in VARIABLES.items())
    prepare(os.environ)
    import torch

    if late or torch.backends.cpu.get_cpu_capability() != _CAPABILITY:
        wanted = " ".join(f"{name}={value}" for name, value in VARIABLES.items())
        raise KvatlasError(f"portable: torch has chosen other kernels; start the command anew with {wanted}")
