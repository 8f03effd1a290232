"""Stand-in: a prefill without a model."""

from typing import TYPE_CHECKING

from kvatlas.files import read_jsonl, write_text

if TYPE_CHECKING:
    import kvatlas.lm.cache  # noqa: F401


def write(spec, inputs, output):
    n_prompts = len(read_jsonl(inputs["prompts"]))
    write_text(output, str(n_prompts))
    print("prefilled", n_prompts)
