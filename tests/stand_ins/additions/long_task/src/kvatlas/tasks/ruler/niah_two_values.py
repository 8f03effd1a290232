"""One key with two numbers, in repeated noise."""

from kvatlas.tasks.needles import NOISE, Needles, needle_task

TASK = needle_task("niah_two_values", "Two values, noise", Needles(NOISE, values=2))
make_prompts = TASK.prompts
