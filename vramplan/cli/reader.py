"""The words of a command line, one after the other, as options of a command."""

from __future__ import annotations

import re

from vramplan.cli import named
from vramplan.cli.typed import COMPARING, NODES, SCALE, STDIN, OptionReader, TypedOption, is_file
from vramplan.errors import UsageError

MAY_BE_PASTED = re.compile(
    r"\s|^[A-Za-z_]\w*=|^(--|torchrun|accelerate|deepspeed|trl|axolotl|llamafactory-cli|tune|swift|litgpt|composer|"
    r"python3?|uv|srun|mpirun|bash|sh|nohup)$"
)
"""What a word has with which the command of a training program may begin."""


class WordsReader(OptionReader):
    """Those of a whole command line: options, and the words beside them."""

    def __init__(self, reader: OptionReader) -> None:
        self.__dict__ = reader.__dict__  # one state: what is told of is told by who began to read
        self.subjects = [self.declared[one] for one in ("--model", "--gpu") if one in self.declared]
        self.takes_model = "--model" in self.declared and not any(
            one.param_type_name == "argument" for one in self.command.params
        )
        self.left = len(self.words)  # words behind those that stand for one that was read
        self.read_so: list[str] = []  # words beside the options, and what each stands for

    def read_on(self, found: list[TypedOption]) -> list[TypedOption]:
        """The options found, and all that are left. Raises UsageError."""
        self._complete(found)
        if self.command.name in COMPARING:
            self.words = named("vramplan.cli.told:with_sizes_apart")(self.words)
        if not {"k", "K"}.isdisjoint(self.words):
            self.words = named("vramplan.cli.told:with_thousands")(self.words)
        while self.words:
            word = self.words.pop(0)
            if MAY_BE_PASTED.search(word) and (self.takes_model or self.command.name == "read"):
                pasted = named("vramplan.cli.pasted:pasted")(self, word, found)
                if pasted:
                    found += pasted
                    continue
            if word == "--":
                found += [TypedOption(None, rest, None) for rest in self.words]
                break
            if word.startswith("-") and word.partition("#")[0] != "-":
                is_word = len(self.words) >= self.left
                found += [one._replace(is_word=is_word) for one in self.option(word)]
                self._complete(found)
            elif self.takes_model and (file := self._file(word)) is not None:
                found.append(file)
            elif found[-1:] and found[-1].name == "--targets" and TARGET.fullmatch(word):
                found[-1] = found[-1]._replace(value=f"{found[-1].value},{word}")
            elif self.takes_model:
                found += self._beside(word, found)
            else:
                found.append(named("vramplan.cli.told:beside_files")(self, word))
        if self.read_so:
            self.tell(", ".join(self.read_so))
        return found

    def note_reading(self, said: str, meant: str) -> None:
        """Keep what words stand for, which is told in one line when all are read."""
        self.read_so.append(f"{said!r} {'' if self.read_so else 'is read '}as {meant}")

    def behind(self) -> list[str]:
        """As any reader does, as far as a comma: `a100 40gb, h100` are two."""
        found = super().behind()
        end = next((at for at, one in enumerate(found) if one.endswith((",", ";"))), len(found))
        return [one.rstrip(",;") or one for one in found[: end + 1]]

    def _complete(self, found: list[TypedOption]) -> None:
        """Give the last option the words behind it that belong to the name which it has."""
        last = found[-1] if found else None
        if last is None or not last.value:
            return
        if last.parameter is self.declared.get("--gpus"):
            found[-1] = last = named("vramplan.cli.parted:gpus_by_name")(self, last)
        if last.parameter in self.subjects and self.behind():
            found[-1] = last._replace(value=self._whole(str(last.value), found[:-1]))

    def _beside(self, word: str, found: list[TypedOption]) -> list[TypedOption]:
        """What a word beside the options is: a technique or a number with what it counts, the GPU, the model."""
        given = {one.parameter.name for one in found if one.parameter is not None}
        is_named = "model" in given
        is_ended, word = word.endswith((",", ";")), word.rstrip(",;") or word
        if not word.strip():
            raise UsageError(f"what is {word!r}?", hint="an empty word, as of a variable that is not set: leave it out")
        is_both = self.behind()[:1] != [] and self.behind()[0].lower() in JOINS  # with and without
        if word.lower() in TIMES and found and found[-1].parameter is NODES and self.behind():
            return []  # 2 nodes x 8 h100
        if is_named and word.lower() in PLACES and self.behind() and not is_both:
            return []
        parted = named("vramplan.cli.told:parted")(self, word, is_model_named=is_named)
        if parted is not None:
            self.words = [*parted, *self.words]
            return []
        program = named("vramplan.cli.told:program")(self, word, found) if self.command.name == "convert" else None
        if program is not None:
            self.words = [*program, *self.words]
            return []
        is_gpu = word.lower() != ALL and all(self.names_a_gpu(one, behind=True) for one in word.split(","))
        is_known = is_gpu or (not is_named and self.names_a_model(word))
        if not is_known and self._is_spoken(word, found):
            return []
        if self.behind() and not is_ended:
            word = self._whole(word, found)
            is_known = is_known or self.names_a_gpu(word, behind=True)
        if self._is_gpu(word, found, behind=bool(given & {"model", "config", "job"})):
            return [TypedOption(self.declared["--gpu"], "--gpu", GIG.sub(" GB", word), is_word=True)]
        rank = re.fullmatch(r"(?:r(?:ank)?=)?([1-9]\d{0,4})", word) if "--rank" in self.declared else None
        is_counted = rank is not None and word.isdecimal() and named("vramplan.cli.spoken:counts")(self, word)
        is_rank = rank is not None and not is_counted and (not word.isdecimal() or int(word) < A_LENGTH)
        if is_rank and rank is not None and found[-1:] and found[-1].name == "--adapter" and found[-1].is_shortcut:
            self.tell(f"{found[-1].spelling} {word} is read as {found[-1].spelling} --rank {rank[1]}")
            return [TypedOption(self.declared["--rank"], found[-1].spelling, rank[1], "--rank")]
        if is_named and self._is_another_model(word):
            return [TypedOption(self.declared["--model"], "--model", word)]
        if not is_known and self._counts(word, found):
            return []
        if self.command.name == SCALE and (listed := named("vramplan.cli.told:numbers")(self, word)) is not None:
            return [TypedOption(self.declared["--gpus"], "--gpus", listed)]
        if is_named:
            seems = named("vramplan.cli.parted:a_gpu_it_seems")(self, word, found)
            return [] if seems is None else [seems]
        if self.names_a_model(word):
            return [TypedOption(self.declared["--model"], "--model", word)]
        return [named("vramplan.cli.parted:a_model")(self, word)]

    def _is_spoken(self, word: str, found: list[TypedOption]) -> bool:
        """Whether a word is a technique, or a text of several words: what they stand for is put before the rest.

        What an option says already is nothing new.
        """
        if re.search(r"\s|\w\(", word.strip()) and not word.lstrip().startswith(("{", "[")):
            inside = named("vramplan.cli.spoken:parts")(self, word)
            self.left = len(self.words)
            self.words = [*inside, *self.words]
            return bool(inside)
        meant = named("vramplan.cli.spoken:technique")(self, word)
        is_said = meant is not None and any([one.name or one.spelling, one.value] == meant for one in found)
        self.left = len(self.words)
        self.words = [*(() if is_said else meant or ()), *self.words]
        return meant is not None

    def _counts(self, word: str, found: list[TypedOption]) -> bool:
        """Whether a word is a number beside what it counts, or says nothing of a run."""
        meant = named("vramplan.cli.spoken:amount")(self, word, found)
        self.left = len(self.words)
        self.words = [*(meant or ()), *self.words]
        return meant is not None or named("vramplan.cli.spoken:filler")(self, word)

    def _file(self, word: str) -> TypedOption | None:
        """A file that stands for a job, in the option that takes it."""
        path, hash_sign, _ = word.partition("#")
        if hash_sign and "--job" in self.declared and is_file(path):
            return TypedOption(self.declared["--job"], "--job", word)
        if not is_file(word):
            return None
        kind = named("vramplan.cli.runs.configs:kind_of")(word)
        option = {"config": "--config", "job": "--job"}.get(kind)
        if option is None and word in STDIN:
            raise UsageError("standard input has the shape of a model", key=word, hint="--model FILE takes one")
        if option is None:
            return None
        if option not in self.declared:
            what = "job file" if kind == "job" else "file of a training program"
            hint = "name the model and the GPU; compare FILE --gpus 1,2,4 takes one"
            raise UsageError(f"{self.command.name} takes no {what}", key=word, hint=hint)
        return TypedOption(self.declared[option], option, word)

    def _is_gpu(self, word: str, found: list[TypedOption], *, behind: bool) -> bool:
        """Whether a word without an option is the GPU, behind the model or a file or before: `fit gpt2-xl 8xa100`."""
        gpu = self.declared.get("--gpu")
        if gpu is None or (self.command.name not in COMPARING and any(one.parameter is gpu for one in found)):
            return False
        called = named("vramplan.catalog.locate:shipped_called")
        if not behind and called("models", word) is not None:
            return False
        return all(self.names_a_gpu(one, behind=behind or SIZE.match(one) is not None) for one in word.split(","))

    @staticmethod
    def names_a_model(word: str) -> bool:
        """Whether a word is the name of a shipped model."""
        return named("vramplan.catalog.locate:shipped_called")("models", word) is not None

    def _whole(self, word: str, found: list[TypedOption]) -> str:
        """The name that a word begins, with the words behind it that belong to it."""
        is_named = any(one.parameter is self.declared["--model"] for one in found)
        count, whole = named("vramplan.cli.parted:joined")(word, self.behind(), is_model_named=is_named)
        del self.words[:count]
        return str(whole)

    def _is_another_model(self, word: str) -> bool:
        """Whether a second word without an option is one more model, where several may be compared."""
        called = named("vramplan.catalog.locate:shipped_called")
        return self.command.name == COMPARING[0] and all(called("models", one) is not None for one in word.split(","))

    @staticmethod
    def names_a_gpu(word: str, *, behind: bool) -> bool:
        """Whether a word names a GPU, with their number or without; `behind` a model a size is one too."""
        counted = named("vramplan.job.given.spelled:counted")(word)
        name = word.strip() if counted is None else counted[1]
        if behind and (
            (named("vramplan.job.given.keyed:is_size")(name) and not NO_SIZE.fullmatch(name)) or name.lower() == ALL
        ):
            return True
        called, rest = named("vramplan.catalog.locate:shipped_called"), name
        for rest in named("vramplan.catalog.gpus:names_in")(name):
            if called("gpus", rest) is not None:
                return True
        return SIZED.search(rest) is not None and named("vramplan.catalog.gpus:match_gpu")(rest) is not None


PLACES = ("on", "with", "using", "for", "in", "at", "a", "the")  # of a sentence, before its GPU
SIZED = re.compile(r"\S[\s_-]+\(?\d+\s?(gi?b|g)\)?$", re.IGNORECASE)  # a card with its own size behind it
TARGET = re.compile(
    r"[a-z]\w*_[a-z]\w*"
)  # a layer behind another one, as TRL takes --lora_target_modules q_proj v_proj
JOINS = ("and", "or", "vs", "vs.")
GIG = re.compile(r"(?<=\d)\s*gigs?\b", re.IGNORECASE)
TIMES = ("x", "*", "\u00d7")
SIZE = re.compile(r"\d+(\.\d+)?\s*gi?b?\b", re.IGNORECASE)  # of memory, which no model is called
A_LENGTH = 512  # the least number that stands alone for a length: no adapter has so large a rank
NO_SIZE = re.compile(r"[\d.]+[kKmMbB]|.*bits?", re.IGNORECASE)  # tokens, parameters, the bits of a weight
ALL = "all"  # of compare: each GPU whose rent is published
