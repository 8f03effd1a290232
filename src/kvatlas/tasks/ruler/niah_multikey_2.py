"""Nothing but needles; the number of one key is asked for."""

from kvatlas.tasks.needles import NEEDLES, Needles, needle_task

TASK = needle_task("niah_multikey_2", "Multi-key, needles only", Needles(NEEDLES, keys=4))
make_prompts = TASK.prompts
