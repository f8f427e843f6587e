"""The encoding of a text file: UTF-8 where all of it is, else the likeliest one by the lines that are not ASCII."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from xmcbench.data.text_files import open_binary
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.datasets.importing.options import Options
from xmcbench_plugins.datasets.inspection import Kind, Report, Severity

CHUNK_BYTES = 1 << 20
SAMPLE_BYTES = 1 << 18  # of lines that are not ASCII
LONGEST_LINE = 1 << 14  # bytes of a line in the sample
FITS = 0.9  # share of the characters beyond ASCII that are where Western text has them, for cp1252
BOMS = {  # the longer ones first: that of UTF-32 begins as that of UTF-16 does
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
SIGNS = set("’‘“”„‚«»‹›–—…€£¥§©®™°·•±×÷½¼¾²³¹µºª¿¡´†‡‰¢¶\u00a0\u00ad")
TORN = 0.02  # share of them that may be signs within a word
SHORT_WORD = 3  # letters of a word all of which may be beyond ASCII
_BEYOND_ASCII = re.compile(rb"[^\n]*[\x80-\xff][^\n]*")
_SIGN = re.compile(r"[^\x00-\x7f]")
_WORD = re.compile(r"[^\W\d_]+")


def find_encoding(path: Path, options: Options, report: Report) -> str:
    """The encoding to read `path` with: what the options say, else what all of its bytes allow.

    A guess is added to `report`, with a line of the text. Raises XMCBenchError where no encoding is likely, or where
    some lines are UTF-8 and others are not.
    """
    if given := options.encoding:
        return _with_mark(given, path)
    with open_binary(path) as file:
        start = file.read(4096)
        for mark, encoding in BOMS.items():
            if start.startswith(mark):
                return encoding
        if b"\0" in start and (encoding := _without_mark(start)):
            _say(path, encoding, start, report)
            return encoding
        file.seek(0)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            while chunk := file.read(CHUNK_BYTES):
                decoder.decode(chunk)
            decoder.decode(b"", final=True)
            return "utf-8-sig"
        except UnicodeDecodeError:
            pass
    return _guess(path, report)


def _with_mark(encoding: str, path: Path) -> str:
    """The codec of that name; one that drops a byte order mark, which is no text."""
    try:
        name = codecs.lookup(encoding).name
    except (LookupError, ValueError) as error:
        raise XMCBenchError(f"{path}: unknown encoding: {encoding}, expected the name of an encoding") from error
    return "utf-8-sig" if name == "utf-8" else name


def _without_mark(start: bytes) -> str:
    """UTF-16 without a byte order mark: every second byte of ASCII text is zero."""
    even, odd = start[::2].count(0), start[1::2].count(0)
    half = len(start) // 4  # half of the characters
    return "utf-16-le" if odd > half > even else "utf-16-be" if even > half > odd else ""


def _guess(path: Path, report: Report) -> str:
    lines, odd_line = _lines_beyond_ascii(path)
    valid = [line for line in lines if _is_utf8(line)]
    invalid = [line for line in lines if not _is_utf8(line)]
    if len(valid) > len(invalid):
        found = _odd_byte(invalid[0])
        raise XMCBenchError(
            f"{path}: line {odd_line}: found {found}, which is no UTF-8, though other lines are: expected UTF-8 alone, "
            "or the encoding of all lines with --encoding"
        )
    sample = b"\n".join(invalid)
    encoding = "cp1252" if _is_western(sample) else _detected(sample)
    if not encoding:
        raise XMCBenchError(f"{path}: found text in an unknown encoding, expected UTF-8 or --encoding")
    _say(path, encoding, sample, report, odd_line)
    return encoding


def _lines_beyond_ascii(path: Path) -> tuple[list[bytes], int]:
    """Lines with bytes beyond ASCII, as much of UTF-8 as of others at most, and the number of the first other one."""
    lines: list[bytes] = []
    room = {True: SAMPLE_BYTES, False: SAMPLE_BYTES}
    first_odd = 0
    with open_binary(path) as file:
        number = 1
        rest = b""
        while chunk := file.read(CHUNK_BYTES):
            whole, newline, tail = (rest + chunk).rpartition(b"\n")
            rest = tail if newline else b""
            block = whole + newline if newline else tail
            for found in _BEYOND_ASCII.finditer(block):
                line = found[0][:LONGEST_LINE]
                is_utf8 = _is_utf8(line)
                if not is_utf8 and not first_odd:
                    first_odd = number + block.count(b"\n", 0, found.start())
                if room[is_utf8] > 0:
                    room[is_utf8] -= len(line)
                    lines.append(line)
            number += block.count(b"\n")
        for found in _BEYOND_ASCII.finditer(rest):
            lines.append(found[0][:LONGEST_LINE])
            if not first_odd and not _is_utf8(lines[-1]):
                first_odd = number
    return lines, first_odd


def _is_utf8(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return len(line) == LONGEST_LINE and error.start > LONGEST_LINE - 4  # a letter that was cut
    return True


def _odd_byte(line: bytes) -> str:
    try:
        line.decode()
    except UnicodeDecodeError as error:
        return f"the byte 0x{line[error.start]:02x} in {line[max(0, error.start - 20) : error.start + 20]!r}"
    return repr(line[:40])


def _is_western(sample: bytes) -> bool:
    """Whether the text is likely in cp1252: words have few letters beyond ASCII and no capital in their middle, and
    other signs are those that Western text has, not between two letters.

    Nearly every text can be decoded with cp1252. In another encoding's text letters become signs within words
    (cp850, cp1250), or most letters are beyond ASCII (Cyrillic, Greek, Chinese).
    """
    try:
        text = sample.decode("cp1252")
    except UnicodeDecodeError:
        return False
    signs = [match for match in _SIGN.finditer(text) if not match[0].isalpha()]
    within = [match for match in signs if _is_within(text, match.start()) and match[0] not in "’´·-\u00ad"]
    odd_signs = {match.start() for match in within} | {match.start() for match in signs if match[0] not in SIGNS}
    letters = odd_letters = 0
    for word in _WORD.findall(text):
        if beyond := [place for place, letter in enumerate(word) if not letter.isascii()]:
            letters += len(beyond)
            foreign = len(word) > SHORT_WORD and 2 * len(beyond) > len(word)
            odd_letters += sum(foreign or (word[place].isupper() and word[:place][-1:].islower()) for place in beyond)
    total = letters + len(signs)
    torn = len(within) > TORN * total
    return total > 0 and not torn and total - odd_letters - len(odd_signs) >= FITS * total


def _is_within(text: str, place: int) -> bool:
    return text[:place][-1:].isalpha() and text[place + 1 : place + 2].isalpha()


def _detected(sample: bytes) -> str:
    from charset_normalizer import from_bytes

    best = from_bytes(sample, cp_exclusion=["utf_16", "utf_16_be", "utf_16_le", "utf_32", "utf_7"]).best()
    return "" if best is None else str(best.encoding)


def _say(path: Path, encoding: str, sample: bytes, report: Report, line: int = 1) -> None:
    text = sample.decode(encoding, "replace").strip("\ufeff").partition("\n")[0].strip()
    report.add(Kind.ENCODING, Severity.DOUBT, example=text, place=f"{path}: line {line}", names=[encoding])
