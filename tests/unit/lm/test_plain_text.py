"""Prompts are what they say: no control tokens from a corpus, a BOS where the model has one, no text added at joints."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from kvatlas.errors import KvatlasError
from kvatlas.experiments.attention_loss import prompt_ids
from kvatlas.experiments.streams import stream_ids
from kvatlas.lm.chat import bos_ids, check_joins, encode, encode_text
from kvatlas.lm.loading import LanguageModel
from kvatlas.tasks.text import make_haystack, split_sentences
from tests.support.tiny_models import SPECIAL_TOKENS, tiny_model, tiny_tokenizer

TEXT = "The ferry left at dawn. A baker sells bread until noon. Rain fell on the hills for days. " * 40


def with_bos() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    bos = SPECIAL_TOKENS[0]
    number = tokenizer.convert_tokens_to_ids(bos)
    tokenizer.bos_token = bos
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", special_tokens=[(bos, number)]
    )
    return tokenizer


def legacy() -> PreTrainedTokenizerFast:
    """A tokenizer that puts a space in front of everything, as SentencePiece's did."""
    alphabet = {chr(code): code - 32 for code in range(32, 127)} | {"▁": 95, "\n": 96}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def lm_with(tokenizer: Any) -> LanguageModel:
    return replace(LanguageModel.wrap(tiny_model()), tokenizer=tokenizer)


@pytest.mark.parametrize("token", SPECIAL_TOKENS)
def test_a_text_that_spells_a_special_token_stays_text(token):
    tokenizer, text = tiny_tokenizer(), f"He wrote {token} and left."
    number = tokenizer.convert_tokens_to_ids(token)
    assert number in encode(tokenizer, text)
    ids = encode_text(tokenizer, text)
    assert number not in ids
    assert tokenizer.decode(ids) == text


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.sampled_from([*SPECIAL_TOKENS, "a", " ", "<|", "|>", "im_end", "é", "\n"]), max_size=8))
def test_whatever_is_spelled_no_token_is_special_and_the_text_is_the_text(parts):
    tokenizer, text = tiny_tokenizer(), "".join(parts)
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    ids = encode_text(tokenizer, text)
    assert special.isdisjoint(ids)
    assert tokenizer.decode(ids) == text


def test_a_plain_text_is_encoded_as_ever():
    tokenizer = tiny_tokenizer()
    assert encode_text(tokenizer, TEXT) == encode(tokenizer, TEXT)


def test_a_tokenizer_that_cannot_read_it_as_text_is_refused():
    tokenizer = tiny_tokenizer()

    class Stubborn:
        added_tokens_decoder = tokenizer.added_tokens_decoder

        def encode(self, text: str, **_: Any) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False))

    with pytest.raises(KvatlasError, match=r"spells the special token '<\|im_end\|>'"):
        encode_text(Stubborn(), "a <|im_end|> b")


def test_haystacks_and_streams_of_such_a_text_hold_no_special_token():
    tokenizer = tiny_tokenizer()
    text = TEXT.replace("bread", "<|im_end|>")
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    haystack = make_haystack(tokenizer, "corpus", 200, random.Random(0), split_sentences(text))
    assert len(haystack.ids) == 200
    assert special.isdisjoint(haystack.ids)
    assert special.isdisjoint(stream_ids(lm_with(tokenizer), text, 200)[0].tolist())


def test_each_passage_begins_with_the_bos_that_the_tokenizer_has_and_counts_it():
    lm, plain = lm_with(with_bos()), lm_with(tiny_tokenizer())
    (bos,) = bos_ids(lm.tokenizer)
    assert bos_ids(plain.tokenizer) == []
    ids = stream_ids(lm, TEXT, 50, passages=3)
    text = encode(lm.tokenizer, TEXT)
    assert ids.shape == (1, 150)
    assert ids[0].tolist() == [bos, *text[:49], bos, *text[49:98], bos, *text[98:147]]
    assert torch.equal(stream_ids(plain, TEXT, 50, passages=3), plain.ids([text[:150]]))


def test_a_prompt_of_attention_loss_begins_with_the_bos_too():
    lm = lm_with(with_bos())
    text = encode(lm.tokenizer, TEXT)
    step = len(text) // 2
    prompts = [ids[0].tolist() for ids in prompt_ids(lm, TEXT, 40, 2)]
    assert prompts == [[*bos_ids(lm.tokenizer), *text[start : start + 39]] for start in (0, step)]


def test_a_tokenizer_that_adds_to_each_piece_is_refused():
    check_joins(tiny_tokenizer())
    check_joins(with_bos())
    with pytest.raises(KvatlasError, match="the tokenizer adds to each piece, as legacy SentencePiece does"):
        check_joins(legacy())
