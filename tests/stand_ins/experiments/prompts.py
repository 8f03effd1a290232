"""Stand-in: prompts without a tokenizer."""

from kvatlas.files import write_jsonl


def write(spec, inputs, output):
    prompts = [
        {"id": f"needle-{spec['context']}-s{seed}-d{depth}", "seed": seed, "depth": depth, "ids": [1, 2, 3]}
        for seed in spec["seeds"]
        for depth in spec["depths"]
    ]
    write_jsonl(output, prompts)
