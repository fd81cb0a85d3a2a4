"""Text files as one row of byte tokens, read piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from kronos.api.training import Data
from kronos_trainer.exits import InputError


@dataclass(frozen=True)
class TextCorpus:
    """Files laid end to end in the order of their names; sequence i starts at token i x length."""

    files: tuple[Path, ...]
    ends: tuple[int, ...]
    """Offset of the end of each file in the whole row, in bytes."""
    length: int
    """Tokens per training sequence."""

    @property
    def sequences(self) -> int:
        """Number of whole sequences; each needs one token more than its length, for the last target."""
        return (self.ends[-1] - 1) // self.length

    def read(self, sequence: int) -> bytes:
        """The `length + 1` tokens of a sequence; InputError when a file has changed since the start."""
        assert 0 <= sequence < self.sequences
        offset, missing = sequence * self.length, self.length + 1
        index = bisect_right(self.ends, offset)
        pieces = []
        while missing:
            start = self.ends[index - 1] if index else 0
            count = min(missing, self.ends[index] - offset)
            pieces.append(_read_piece(self.files[index], offset - start, count))
            offset, missing, index = offset + count, missing - count, index + 1
        return b"".join(pieces)


def open_corpus(data: Data, length: int) -> TextCorpus:
    """Find the files of a data section; InputError when there is too little to read for one sequence."""
    files = _find_files(Path(data.path), data.include)
    sizes = [file.stat().st_size for file in files]
    total = sum(sizes)
    if total < length + 1:
        raise InputError(
            f"The data at {data.path} holds {total} bytes in {len(files)} files, too few for one sequence of "
            f"{length} tokens and its last target; add data or lower sequenceLength."
        )
    return TextCorpus(tuple(files), tuple(accumulate(sizes)), length)


def _find_files(root: Path, include: tuple[str, ...]) -> list[Path]:
    if root.is_file():
        return [root]
    if not root.is_dir():
        raise InputError(f"The data path {root} does not exist in this pod; check data.path and data.volume.")
    found: set[Path] = set()
    for pattern in include:
        try:
            found.update(path for path in root.glob(pattern) if path.is_file())
        except (NotImplementedError, ValueError) as error:
            raise InputError(
                f"data.include has {pattern!r}, which is no pattern relative to {root}: {error}."
            ) from error
    if not found:
        raise InputError(f"No file under {root} matches data.include ({', '.join(include)}).")
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _read_piece(file: Path, offset: int, count: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            piece = stream.read(count)
    except OSError as error:
        raise InputError(f"The data file {file} can't be read any more: {error}.") from error
    if len(piece) < count:
        raise InputError(f"The data file {file} is shorter than when training started; data must not change.")
    return piece
