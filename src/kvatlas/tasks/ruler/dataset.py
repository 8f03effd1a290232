"""A data set of yours: each row's own text, cut in the middle to the length of the prompt, and its question.

The set is a text of JSON lines, `{"context", "question", "answers"}`; the study's `metric` scores it. Rows shorter than the
prompt are left out, so that all prompts of a file have one length; the two ends of a longer one are kept, as LongBench
(2308.14508) does. Questions of a file have one length in tokens, the commonest of the set. Where in a text its answer
stands is not known.
"""

from __future__ import annotations

import random

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode_text
from kvatlas.tasks.long_context import DOCUMENTS, Context, Draft, LongTask, Question
from kvatlas.tasks.ruler.qa import Entry, read


def question_of(entry: Entry) -> Question:
    """Return the question of a row as it is asked."""
    return Question(f"Question: {entry.question}", "Answer:", entry.answers)


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw a row that is long enough, and cut the middle out of its text."""
    entries = list(read(draft.corpus))
    while entries:
        asked = draft.draw(lambda: draft.rng.choice(entries), question_of, known=True)
        ids = encode_text(draft.tokenizer, asked.context)
        if len(ids) >= draft.n_tokens:
            head = draft.n_tokens // 2
            kept = ids[:head] + ids[len(ids) - (draft.n_tokens - head) :]
            return (question_of(asked),), Context(kept, ((),))
        entries.remove(asked)
    raise KvatlasError(
        f"contexts: no row of the documents fills a prompt of {draft.length} tokens; use a shorter context"
    )


def _sample(rng: random.Random, corpus: str) -> Question:
    return question_of(rng.choice(read(corpus)))


TASK = LongTask(
    name="dataset",
    label="Data set",
    family="data set",
    lead="Read the following text and answer the question about it. Give the answer alone.\n\n",
    new_tokens=128,
    haystack="own text",
    sample=_sample,
    draw=draw,
    metric="",
    reads=DOCUMENTS,
)
make_prompts = TASK.prompts
