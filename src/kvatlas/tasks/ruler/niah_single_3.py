"""One UUID of one key, in a text."""

from kvatlas.tasks.needles import TEXT, Needles, needle_task, random_uuid

TASK = needle_task("niah_single_3", "Single needle, UUID", Needles(TEXT, "uuid", value=random_uuid))
make_prompts = TASK.prompts
