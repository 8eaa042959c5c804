"""Whether a file of settings is for data with a chosen and a rejected answer, where no key says who trains on them.

DPOTrainer, and the script of DPO of open-instruct, train without a key of their own. The names of data and of the file
are signs of them, and no more: the loss is then left open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from vramplan.configs.sheet import Sheet

OF_DATA = re.compile(r"(train_)?(data|dataset|datasets|file|files)(_\w+)?(\.|$)|datasets?[._]")
"""How keys begin that say which data are read."""

COLUMNS = re.compile(r"(\w+[._])?(chosen|rejected)(_(key|column|field))?$")
"""Keys that say where the two answers of a sample stand."""

WORDS = r"(?<![a-z])([dk]to|dpo|orpo|ipo|simpo|prefs?|chosen|rejected|binarized|comparisons?|rlhf)(?![a-z])"
SIGNS = re.compile(rf"(?i){WORDS}|preference|(ultra|(?<![a-z]))feedback")
TUNES = re.compile(r"(?i)(?<![a-z])(sft|instruct(ions?)?|pretrain\w*|cpt|clm)(?![a-z])")
"""Words of a name: of pairs of answers, and of texts."""


METHODS = re.compile(r"(?i)(?<![a-z])(kto|orpo|cpo|dpo)(?![a-z])")
"""Methods whose trainers have keys in common, as `beta`."""

ASKED = "no key says which trainer reads them: --loss standard is the step of SFT (--loss dpo)"
"""How the loss is asked for."""


def sign(sheet: Sheet) -> str | None:
    """What says that the data are pairs: a name of data, a column of them, or the file's own name or folder."""
    file = next((item.file for item in sheet.written.values() if item.file), None)
    parts = (file or "").replace("\\", "/").split("/")[-2:]
    if any(SIGNS.search(part) for part in parts) and not any(TUNES.search(part) for part in parts):
        return f"the file is called {'/'.join(parts)}"
    column = next((key for key in sheet.written if COLUMNS.fullmatch(key)), None)
    if column is not None:
        return f"{column} is a column of pairs"
    names = list(_names(sheet))
    if any(TUNES.search(name) and not SIGNS.search(name.rpartition("/")[2]) for name in names):
        return None  # a split, as train_sft, or data of texts beside others
    found = next((name for name in names if SIGNS.search(name)), None)
    return None if found is None else f"{found} has pairs of answers by its name"


def method(sheet: Sheet, *, of_its_name: bool = False) -> str | None:
    """The method that the file's own name says, else its folder, else the names of its data; None where none does.

    `of_its_name`: of the file's own name alone, or of a folder that is called after a method and nothing else.
    """
    file = next((item.file for item in sheet.written.values() if item.file), None)
    parts = (file or "").replace("\\", "/").split("/")[-2:]
    own = [parts[-1], *(folder for folder in parts[:-1] if METHODS.fullmatch(folder))]
    for name in own if of_its_name else (*reversed(parts), *_names(sheet)):
        found = METHODS.search(name)
        if found is not None:
            return found[1].lower()
    return None


def _names(sheet: Sheet) -> Iterator[str]:
    for key, item in sheet.written.items():
        if OF_DATA.match(key):
            yield from _texts(item.value)
            below = key.partition(".")[2]
            if below and not isinstance(item.value, str):
                yield below  # `dataset_mixer: {NAME: 1.0}`


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from (str(key), *_texts(one))
    elif isinstance(value, list):
        for one in value:
            yield from _texts(one)
