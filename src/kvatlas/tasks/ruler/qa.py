"""Questions about documents: the paragraph with the answer among others of its set, its question asked.

The set is a text of JSON lines, `{"context", "question", "answers"}`, such as SQuAD's rows. Questions of a file have one
length in tokens, the commonest of the set. No other document of a context holds a reference of the answer.
"""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from functools import lru_cache

from kvatlas.errors import KvatlasError
from kvatlas.lm.chat import encode, encode_text
from kvatlas.tasks.long_context import DOCUMENTS, Context, Draft, LongTask, Question

ASK = (
    "Answer the question based on the given documents. Only give me the answer and do not output any other words.\n\n"
    "Question: "
)


@dataclass(frozen=True)
class Entry:
    """A row of a set: a paragraph, a question about it and the references of its answer."""

    context: str
    question: str
    answers: tuple[str, ...]


@lru_cache(maxsize=2)
def read(documents: str) -> tuple[Entry, ...]:
    """Read a set. Raises KvatlasError that names the line that is no row of one."""
    entries = []
    for number, line in enumerate(documents.splitlines(), start=1):
        if line.strip():
            entries.append(_entry(line, f"documents: line {number}"))
    if not entries:
        raise KvatlasError("documents: it holds no rows; name a text of JSON lines with context, question and answers")
    return tuple(entries)


def _entry(line: str, where: str) -> Entry:
    try:
        row = json.loads(line)
        context, question, answers = row["context"], row["question"], row["answers"]
    except (ValueError, TypeError, KeyError) as error:
        raise KvatlasError(f"{where} is no JSON object with context, question and answers") from error
    texts = [context, question, *answers] if isinstance(answers, list) and answers else [None]
    if not all(isinstance(text, str) and text.strip() for text in texts):
        raise KvatlasError(f"{where}: context and question are texts and answers a list of texts, none of them empty")
    return Entry(context.strip(), question.strip(), tuple(answers))


def question_of(entry: Entry) -> Question:
    """Return the question of an entry as it is asked."""
    return Question(f"{ASK}{entry.question}", "Answer:", entry.answers)


def draw(draft: Draft) -> tuple[tuple[Question, ...], Context]:
    """Draw an entry, and others' paragraphs around its own; the last of them is cut to the length."""
    entries = read(draft.corpus)
    asked = draft.draw(lambda: draft.rng.choice(entries), question_of, known=True)
    others = [text for text in dict.fromkeys(entry.context for entry in entries) if not _answers(text, asked)]
    draft.rng.shuffle(others)
    gold = encode_text(draft.tokenizer, f"{asked.context}\n\n")
    # Numbers of documents are counted in the order of the page, so the gold one's tokens may grow with them.
    before: list[list[int]] = []
    size = len(gold) + len(_title(draft, len(others)))
    for text in others:
        piece = encode_text(draft.tokenizer, f"{text}\n\n")
        size += len(piece) + len(_title(draft, len(others)))
        if size > draft.n_tokens:
            break
        before.append(piece)
    if len(before) == len(others):
        raise KvatlasError(f"documents: they have too few tokens for a context of {draft.length}; use a shorter one")
    last = encode_text(draft.tokenizer, others[len(before)])
    return (question_of(asked),), _joined(draft, gold, before, last)


def _joined(draft: Draft, gold: list[int], others: list[list[int]], last: list[int]) -> Context:
    place = draft.rng.randint(0, len(others))
    ids: list[int] = []
    span = (0, 0)
    for number, piece in enumerate([*others[:place], gold, *others[place:]], start=1):
        ids += _title(draft, number)
        if number == place + 1:
            span = (len(ids), len(ids) + len(piece))
        ids += piece
    left = draft.n_tokens - len(ids)
    if left < 0:
        raise KvatlasError(f"contexts: {draft.length} tokens are too few for a document of {len(gold)}; use more")
    ids += [*_title(draft, len(others) + 2), *last][:left]
    # A cut document may be shorter than what is left, where it is the shortest of all: then line ends fill the rest.
    ids += (encode(draft.tokenizer, "\n") * left)[: draft.n_tokens - len(ids)]
    return Context(ids, ((span,),))


def _title(draft: Draft, number: int) -> list[int]:
    return encode(draft.tokenizer, f"Document {number}:\n")


def _answers(text: str, entry: Entry) -> bool:
    return text == entry.context or any(answer.lower() in text.lower() for answer in entry.answers)


def _sample(rng: random.Random, corpus: str) -> Question:
    return question_of(rng.choice(read(corpus)))


TASK = LongTask(
    name="qa",
    label="Questions on documents",
    family="question answering",
    lead="Answer the question based on the given documents. Only give me the answer and do not output any other words."
    "\n\nThe following are given documents.\n\n",
    new_tokens=32,
    haystack="documents",
    sample=_sample,
    draw=draw,
    metric="contains",
    reads=DOCUMENTS,
)
make_prompts = TASK.prompts
