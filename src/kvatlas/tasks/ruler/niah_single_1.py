"""One number of one key, in repeated noise."""

from kvatlas.tasks.needles import NOISE, Needles, needle_task

TASK = needle_task("niah_single_1", "Single needle, noise", Needles(NOISE))
make_prompts = TASK.prompts
