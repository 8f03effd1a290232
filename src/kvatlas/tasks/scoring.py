"""Scoring answers against what is known to be true, by rules that are data.

Case and white space do not count, nor do forms of a character that mean the same: full-width letters and digits, dashes,
invisible characters. An answer counts where it stands by itself. It does not where it goes on:

* a letter or digit follows or precedes, but of a script that is written without spaces (`密码是12345。` holds 12345);
* an answer with a digit is part of a longer code or number: joined by a hyphen or underscore (`X-QZT-4821`, `QZT-4821-77`),
  with decimals (`12345.67`), or with more digits in front of a decimal point.

A number may have its thousands set off (`12,345`). It knows texts, no models and no tokens.
"""

from __future__ import annotations

import re

# Scripts whose words are not set off: Thai to Myanmar, Khmer, kana, Han, Hangul, and their extensions.
_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1100-\u11ff\u1780-\u17ff\u3040-\u31ff\u3400-\u9fff"
    "\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U00020000-\U0003ffff"
)
_RAISED = "\u00b2\u00b3\u00b9\u2070-\u209c"  # marks of footnotes
_MORE = rf"[^\W_{_UNSPACED}{_RAISED}]"
_ALONE = rf"(?<!{_MORE})", rf"(?!{_MORE})"
_CODE = rf"(?<!{_MORE}[-_])(?<![0-9]\.)", rf"(?![-_]{_MORE})(?!\.[0-9])(?!,[0-9]{{1,3}}(?![0-9]))"
_THOUSANDS = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:([,'’\u00a0\u2009\u202f])[0-9]{3})(?:\1[0-9]{3})*(?![0-9])")
_DASHES = dict.fromkeys([*range(0x2010, 0x2016), 0x2212, 0xFE58, 0xFE63], "-")
_FULL_WIDTH = {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)}
_INVISIBLE = dict.fromkeys([0xAD, *range(0x200B, 0x2010), *range(0x2060, 0x2065), 0xFEFF])
_SAME = _DASHES | _FULL_WIDTH | _INVISIBLE


def normalise(text: str) -> str:
    """Lower the case and make every run of white space one space."""
    return " ".join(text.lower().split())


def contains_answer(text: str, answer: str) -> bool:
    """Return whether `answer` stands in `text` by itself, not as a part of a longer word, code or number."""
    wanted, shown = answer.translate(_SAME), text.translate(_SAME)
    if re.fullmatch("[0-9]+", wanted):
        shown = _THOUSANDS.sub(lambda number: re.sub("[^0-9]", "", number[0]), shown)
    before, after = _ALONE
    if re.search("[0-9]", wanted):
        before, after = before + _CODE[0], after + _CODE[1]
    return re.search(before + re.escape(normalise(wanted)) + after, normalise(shown)) is not None
