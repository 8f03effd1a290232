"""One key with four numbers, in a text; all four are asked for."""

from kvatlas.tasks.needles import TEXT, Needles, needle_task

TASK = needle_task("niah_multivalue", "Multi-value", Needles(TEXT, values=4))
make_prompts = TASK.prompts
