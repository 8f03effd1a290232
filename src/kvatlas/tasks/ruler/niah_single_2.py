"""One number of one key, in a text."""

from kvatlas.tasks.needles import TEXT, Needles, needle_task

TASK = needle_task("niah_single_2", "Single needle, text", Needles(TEXT))
make_prompts = TASK.prompts
