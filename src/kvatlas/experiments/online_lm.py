"""Online language modelling cell: one token stream through one arm, every next token scored under one protocol.

One trial per cell, with the NLL and the hit of every prediction. A study may read several passages, each as a stream of
its own with a cache of its own; their predictions follow each other in the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from kvatlas.experiments import arms, measures
from kvatlas.experiments.cell_file import Measured
from kvatlas.experiments.streams import Stream, stream_ids
from kvatlas.lm.chat import bos_ids
from kvatlas.lm.loading import LanguageModel


def measure(spec: Mapping[str, Any], inputs: Mapping[str, Path]) -> Measured:
    """Stream the text `inputs["text"]` through the model folder `inputs["model"]`."""
    watch = measures.Stopwatch()
    with torch.inference_mode():
        with watch.timed("load"):
            lm = LanguageModel.load(inputs["model"], spec["device"], spec["dtype"])
            text = inputs["text"].read_text(encoding="utf-8")
            ids = stream_ids(lm, text, spec["tokens"], spec.get("passages", 1))
        streams = [
            Stream(lm, passage, arms.new_cache(spec, lm), arms.new_compressor(spec, lm, spec["tokens"], [0]))
            for passage in ids.split(spec["tokens"], dim=1)
        ]
        with watch.timed("stream"):
            for stream in streams:
                stream.read(spec["protocol"], spec["block"])
    speed = {"stream_tokens_per_s": ids.shape[1] / watch.seconds["stream_seconds"]}
    speed |= measures.reserved_bytes(streams[-1].cache, 1)
    return Measured([trial_of(spec, streams)], {**watch.seconds, **measures.device_record(lm), **speed})


def trial_of(spec: Mapping[str, Any], streams: Sequence[Stream]) -> dict[str, Any]:
    """Return the trial of finished streams of equal length, as plain numbers; sizes are bytes of one stream."""
    stream = streams[-1]
    return {
        **measures.arm_identity(spec, "protocol", "tokens", "block", "text", "n_sinks", "n_recent", "skip_layers"),
        "id": f"{spec['text']}-{spec['tokens']}",
        "reindexed": stream.cache.reindexed,
        "first_prediction": stream.first_prediction,
        "first_compressed": stream.first_compressed,
        "passages": len(streams),
        "nlls": [nll for each in streams for nll in each.nlls],
        "hits": [hit for each in streams for hit in each.hits],
        "peak_slots": stream.peak_slots,
        # How many of a passage's tokens the tokenizer put in front of the text; nothing where it puts none.
        **({"bos_tokens": n_bos} if (n_bos := len(bos_ids(stream.lm.tokenizer))) else {}),
        **measures.cache_sizes(stream.cache, 1, spec["tokens"]),
        **measures.cache_history(stream.cache, 1),
    }
