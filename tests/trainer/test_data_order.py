"""Text becomes sequences, and their order depends on the seed and the step alone."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kronos.api.training import Data
from kronos_trainer.sampler import Sampler, permute
from kronos_trainer.text import open_corpus


@given(size=st.integers(1, 400), key=st.binary(min_size=1, max_size=80))
def test_each_position_goes_to_exactly_one_place(size: int, key: bytes) -> None:
    assert sorted(permute(position, size, key) for position in range(size)) == list(range(size))


@given(sequences=st.integers(1, 60), batch=st.integers(1, 16), seed=st.integers(0, 2**53 - 1))
def test_each_epoch_visits_each_sequence_once(sequences: int, batch: int, seed: int) -> None:
    sampler = Sampler(sequences, batch, seed)
    steps = -(-3 * sequences // batch)
    visited = [sampler.sequence(step, slot) for step in range(steps) for slot in range(batch)]
    for epoch in range(3):
        part = visited[epoch * sequences : (epoch + 1) * sequences]
        assert sorted(part) == list(range(sequences))


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {
        tuple(Sampler(100, 100, seed).sequence(step, slot) for slot in range(100))
        for seed in (0, 1)
        for step in (0, 1)
    }
    assert len(orders) == 4
    assert tuple(range(100)) not in orders


def test_a_huge_data_set_needs_no_list_of_its_sequences() -> None:
    sampler = Sampler(10**15, 4096, 3)
    drawn = {sampler.sequence(10**6, slot) for slot in range(50)}
    assert len(drawn) == 50
    assert max(drawn) > 10**13


@given(
    contents=st.lists(st.binary(max_size=40), min_size=1, max_size=6).filter(
        lambda parts: sum(map(len, parts)) > 8
    ),
    length=st.integers(1, 7),
)
def test_sequences_are_slices_of_all_files_laid_end_to_end(contents: list[bytes], length: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for index, content in enumerate(contents):
            (Path(folder) / f"{index}.bin").write_bytes(content)
        corpus = open_corpus(Data(path=folder), length)
        whole = b"".join(contents)
        assert corpus.sequences == (len(whole) - 1) // length
        for sequence in range(corpus.sequences):
            start = sequence * length
            assert corpus.read(sequence) == whole[start : start + length + 1]


def test_files_are_chosen_by_pattern_and_sorted_by_name(tmp_path: Path) -> None:
    for name in ("b/x.py", "a.py", "b/a.txt", "c.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    corpus = open_corpus(Data(path=str(tmp_path), include=("**/*.py", "*.md", "a.*")), 1)
    assert [file.relative_to(tmp_path).as_posix() for file in corpus.files] == ["a.py", "b/x.py", "c.md"]


@pytest.mark.parametrize("name", ["whole.txt"])
def test_data_may_be_a_single_file(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("0123456789")
    assert open_corpus(Data(path=str(tmp_path / name)), 4).read(1) == b"45678"
