"""Four keys with a number each, in a text; one of them is asked for."""

from kvatlas.tasks.needles import TEXT, Needles, needle_task

TASK = needle_task("niah_multikey_1", "Multi-key, text", Needles(TEXT, keys=4))
make_prompts = TASK.prompts
