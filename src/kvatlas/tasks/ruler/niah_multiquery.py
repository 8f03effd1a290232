"""Four keys with a number each, in a text; all four are asked for at once."""

from kvatlas.tasks.needles import TEXT, Needles, needle_task

TASK = needle_task("niah_multiquery", "Multi-query", Needles(TEXT, keys=4, asked=4))
make_prompts = TASK.prompts
