"""Nothing but needles from UUID to UUID; one of them is asked for."""

from kvatlas.tasks.needles import NEEDLES, Needles, needle_task, random_uuid

TASK = needle_task(
    "niah_multikey_3", "Multi-key, UUIDs only", Needles(NEEDLES, "uuid", random_uuid, random_uuid, keys=4)
)
make_prompts = TASK.prompts
