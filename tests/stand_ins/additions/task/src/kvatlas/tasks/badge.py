"""The badge task: a number on a badge."""

from kvatlas.tasks.facts import FactTask, Wording
from kvatlas.tasks.passkey import draw_locker_number, draw_passkey

WORDING = Wording(study="badge", system="Answer.", lead="A text with a number.")


def make_prompts(tokenizer, **arguments):
    """Write the prompts of a group."""
    return FactTask(tokenizer, WORDING, draw_passkey, draw_locker_number).prompts(**arguments)
