"""Loading from a model folder through transformers: never its code, never the network, every failure one line.

Knows which calls of transformers are safe for a folder that nobody vouches for; what is loaded is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvatlas.errors import KvatlasError
from kvatlas.files import is_disk_full
from kvatlas.lm.model_config import refuse_code

LOCAL_WITHOUT_CODE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""What every `from_pretrained` of a model folder is called with."""


def load_tokenizer(folder: Path | str) -> Any:
    """The tokenizer of a model folder. Raises KvatlasError when it needs code of its own or cannot be loaded."""
    from transformers import AutoTokenizer

    label = f"model folder {folder}"
    refuse_code(Path(folder), label)
    with loading_errors(f"{label}: its tokenizer cannot be loaded"):
        return AutoTokenizer.from_pretrained(str(folder), **LOCAL_WITHOUT_CODE)


@contextmanager
def loading_errors(what: str) -> Iterator[None]:
    """Turn whatever a library raises on a foreign file in the block into a KvatlasError that starts with `what`.

    A full disk or memory is not the file's fault, and passes.
    """
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # its table of keys is no single line; what is wrong with them is an error here
    try:
        yield
    except (KvatlasError, MemoryError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if is_disk_full(error) or type(error).__name__ == "OutOfMemoryError":
            raise
        # A panic of a library in Rust is no Exception; a signal is, and passes above.
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
        reason = reason if len(reason) <= 300 else reason[:297] + "..."
        raise KvatlasError(f"{what} ({type(error).__name__}: {reason}); fetch the model again") from error
    finally:
        logging.set_verbosity(verbosity)
