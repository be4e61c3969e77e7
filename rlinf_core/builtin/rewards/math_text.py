"""Finding the final answer in a response and bringing mathematical notation to one form."""

from __future__ import annotations

import re

TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
SPACING = re.compile(r"\\[,!;: ]|\\(?:quad|qquad|left|right|displaystyle)(?![A-Za-z])|~")
MATH_MARKS = re.compile(r"^(?:\$\$?|\\\(|\\\[)(.*?)(?:\$\$?|\\\)|\\\])$", re.S)
CHOICE = re.compile(r"\(?\s*([A-Za-z])\s*\)?\.?|\(?(?P<labelled>[A-Z])[).:]\s.*")
FORMULA = re.compile(r"\$\$?([^$]+)\$\$?|\\[(\[](.+?)\\[)\]]", re.S)
PROSE = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}[,:]?\s+[A-Za-z]{2,}")
THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
LEAD_IN = re.compile(r"(?:final answer|the answer|answer)\s*(?:is|:|=)+\s*(.+)", re.I)
ASSIGNED = re.compile(r"\s*\\?[A-Za-z]\w*(?:_\{?\w+\}?)?(?:\([a-z]\))?\s*=(?!=)\s*(.+)", re.S)
UNIT = re.compile(r"(?<=[\d}])\s*\\(?:text|mathrm|mbox)\s*\{[A-Za-z/. ]+\}(?:\s*\^\s*\{?\d\}?)?$")
REPEATING = re.compile(r"(\d*)\.(\d*)\\overline\s*\{(\d+)\}")
SCIENTIFIC = re.compile(r"([+-]?\d+(?:\.\d+)?)[eE]([+-]?\d{1,3})")
HUGE = re.compile(r"\^\s*\{?\s*\d{5,}|\^\s*\{?[^{}]*\d\s*\^|\d{4,}\s*\}?\)?\s*!|!\s*\)?\s*!")
UNWORKED = re.compile(r"\d\s*[+\-−]\s*\d")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?%?|-?\.\d+")


def final_answer(response: str) -> str | None:
    """The part of a response that is its answer; None if there is none, or its braces do not close."""
    tagged: list[str] = re.findall(r"<answer>(.*?)</answer>", response, re.S)
    text = tagged[-1] if tagged else response
    if "\\boxed" in text or "\\fbox" in text:
        return last_boxed(text)
    if "####" in text:
        return text.rpartition("####")[2].strip() or None
    lead_ins = LEAD_IN.findall(text)
    if lead_ins:
        return _within(lead_ins[-1], first=True)
    lines = text.strip().splitlines() or [""]
    if len(lines) > 1 and not tagged and FORMULA.search(text):
        return _within(text, first=False)
    return _within(lines[-1], first=False) or _within(text, first=False)


def _within(text: str, *, first: bool) -> str | None:
    """The text itself unless it is prose; of prose the first or last formula, else number."""
    text = text.strip().rstrip(".").strip().removeprefix("**").removesuffix("**").strip()
    if not MATH_MARKS.fullmatch(text) or text.count("$") > 2:
        formulas = [found[1] or found[2] for found in FORMULA.finditer(text)]
        if formulas:
            return formulas[0 if first else -1]
    if not PROSE.search(TEXT.sub("", text)):
        return text or None
    numbers: list[str] = NUMBER.findall(text)
    return numbers[0 if first else -1] if numbers else None


def last_boxed(text: str) -> str | None:
    """What the last \\boxed{...} holds; None if its braces do not close."""
    start = max(text.rfind("\\boxed"), text.rfind("\\fbox"))
    rest = text[start:].split("x", 1)[1] if text[start:].startswith("\\fbox") else text[start + 6 :]
    rest = rest.lstrip()
    if not rest.startswith("{"):
        return rest.split()[0].strip("$.") or None if rest.split() else None
    depth = 0
    for position, character in enumerate(rest):
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return rest[1:position].strip() or None
    return None


def normal(text: str) -> str:
    """The same expression without marks, spacing, text commands, thousands commas and `x =`."""
    text = text.strip().rstrip(".").strip()
    marked = MATH_MARKS.match(text)
    text = marked[1] if marked and "$" not in marked[1] else text
    text = UNIT.sub("", text)
    text = SPACING.sub(" ", text).replace("\\%", "%").replace("\\$", "").replace("$", "")
    text = TEXT.sub(r" \1 ", text)
    text = REPEATING.sub(_repeating, text)
    text = SCIENTIFIC.sub(r"\1*10^{\2}", text) if SCIENTIFIC.fullmatch(text.strip()) else text
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    text = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|°", "", text)
    assigned = ASSIGNED.fullmatch(text)
    text = " ".join((assigned[1] if assigned and "=" not in assigned[1] else text).split())
    text = re.sub(r"(?<=\d)\s*\{,\}\s*(?=\d{3})", ",", text)
    return text.replace(",", "") if THOUSANDS.fullmatch(text) else text


def _repeating(found: re.Match[str]) -> str:
    """0.1 with 6 overlined is 16 - 1 over 90."""
    whole, fixed, again = found.groups()
    top = int(whole + fixed + again) - int(whole + fixed or "0")
    return f"\\frac{{{top}}}{{{'9' * len(again) + '0' * len(fixed)}}}"


def choice(text: str) -> str | None:
    """The letter of a multiple-choice answer such as `(A)`, `A.` or `A`."""
    found = CHOICE.fullmatch(text)
    return (found[1] or found["labelled"]).upper() if found else None


def bare_list(text: str) -> list[str] | None:
    """The members of `1, 2 and 3`; None if the text is no list, or is one in parentheses or braces."""
    parts, depth, begin = [], 0, 0
    text = re.sub(r",?\s+(?:and|or)\s+", ",", text)
    for position, character in enumerate(text):
        depth += (character in "([{") - (character in ")]}")
        if character in ",;" and depth == 0:
            parts.append(text[begin:position])
            begin = position + 1
    parts = [part.strip() for part in [*parts, text[begin:]]]
    return parts if len(parts) > 1 and all(parts) and depth == 0 else None


def same_word(expected: str, given: str) -> bool | None:
    """Whether two words are equal; None unless both are words rather than products of variables."""
    if expected.casefold() == given.casefold():
        return True
    words = all(text.isalpha() and len(text) > 3 for text in (expected, given))
    return False if words else None


def unworked(expected: str, given: str) -> str:
    """Why a text that may equal the number expected is no answer, or "".

    An expression can be equal to the answer because it is the question: `21 + 38 =`.
    """
    if given.rstrip().endswith("="):
        return "an unfinished equation"
    asked_for_number = NUMBER.fullmatch(expected) is not None
    claimed = given.rpartition("=")[2]
    return "a sum that is not worked out" if asked_for_number and UNWORKED.search(claimed) else ""


def unreadable(text: str) -> str:
    """Why a text is not worth parsing, or ""."""
    if text.count("{") != text.count("}"):
        return "unbalanced braces"
    return "a number too large to evaluate" if HUGE.search(text) else ""
