"""Whatever is wrong with what a command is given: one sentence that says what to change, exit code 2, no traceback."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from support.commands import Answer, manifest, plan
from support.searches import fabric, job

JOB: dict[str, Any] = yaml.safe_load(manifest(job()))
FABRIC: dict[str, Any] = yaml.safe_load(manifest(fabric()))


def changed(document: dict[str, Any], path: str, value: Any = None) -> dict[str, Any]:
    """A copy with another value at a dotted path, or without it."""
    copied = copy.deepcopy(document)
    *parents, last = path.split(".")
    here: Any = copied
    for parent in parents:
        here = here[int(parent) if parent.isdigit() else parent]
    if value is None:
        del here[last]
    else:
        here[last] = value
    return copied


FIELD = "error: standard input, KronosTrainingJob job-1, "
CASES = [
    pytest.param(
        changed(JOB, "spec.model.layers", 0),
        FIELD + "spec.model.layers: is 0 and must be greater than or equal to 1; change it",
        id="a number too small",
    ),
    pytest.param(
        changed(JOB, "spec.model.layers", "12"),
        FIELD + "spec.model.layers: is '12' and must be a whole number; change it",
        id="text where a number belongs",
    ),
    pytest.param(
        changed(JOB, "spec.model.layers"),
        FIELD + "spec.model.layers: is missing; add it",
        id="a missing field",
    ),
    pytest.param(
        changed(JOB, "spec.model.hiddensize", 64),
        FIELD + "spec.model.hiddensize: is no field that Kronos knows; change it to hiddenSize, or drop it",
        id="a misspelt field",
    ),
    pytest.param(
        changed(JOB, "spec.accelerators.zzz", 64),
        FIELD
        + "spec.accelerators.zzz: is no field that Kronos knows; drop it, or use one of resource, min, max",
        id="an unknown field",
    ),
    pytest.param(
        changed(JOB, "spec.model", [1]),
        FIELD + "spec.model: is a list and must hold fields; write them below it, indented",
        id="a list where fields belong",
    ),
    pytest.param(
        changed(JOB, "spec.strategy.mode", "Magic"),
        FIELD + "spec.strategy.mode: is 'Magic' and must be 'Auto' or 'Fixed'; change it",
        id="an unknown choice",
    ),
    pytest.param(
        changed(JOB, "spec.model.hiddenSize", 770),
        FIELD + "spec.model: hiddenSize 770 must be an even multiple of 12 heads; change one of them",
        id="two fields that don't go together",
    ),
    pytest.param(
        changed(JOB, "spec.accelerators.min", 9),
        FIELD + "spec.accelerators: min 9 must not exceed max 8; lower min or raise max",
        id="min above max",
    ),
    pytest.param(
        changed(JOB, "spec.data.path", "data"),
        FIELD + "spec.data.path: is 'data' and must match the pattern '^/'; change it",
        id="text that doesn't match",
    ),
    pytest.param(
        changed(JOB, "spec.data.include", []),
        FIELD + "spec.data.include: has 0 items and must have at least 1; change it",
        id="an empty list",
    ),
    pytest.param(
        changed(JOB, "spec.template.env", [{"name": "A"}, {"name": "1"}]),
        FIELD + "spec.template.env[1].name: is '1' and must match the pattern",
        id="a field in a list",
    ),
    pytest.param(changed(JOB, "spec"), FIELD + "spec: is missing; add it", id="no spec"),
    pytest.param(
        changed(JOB, "metadata.name"),
        "error: standard input, document 1, metadata.name: is missing; add a name",
        id="no name",
    ),
    pytest.param(
        changed(JOB, "metadata.name", "Not-A-Name"),
        "error: standard input, KronosTrainingJob Not-A-Name, metadata.name: must begin with a letter",
        id="a name that no Service can have",
    ),
    pytest.param(
        changed(JOB, "metadata.namespace", 5),
        FIELD + "metadata.namespace: is no text; change it to the name of a namespace",
        id="a namespace that is no text",
    ),
    pytest.param(
        changed(JOB, "apiVersion", "training.kronos.dev/v9"),
        FIELD + "apiVersion: is training.kronos.dev/v9; set it to training.kronos.dev/v1alpha1",
        id="another version",
    ),
    pytest.param(changed(JOB, "apiVersion"), FIELD + "apiVersion: is missing; set it to ", id="no version"),
    pytest.param(
        changed(JOB, "kind"),
        "error: standard input, document 1, kind: is missing; set it to KronosTrainingJob or KronosFabric",
        id="no kind",
    ),
    pytest.param(
        changed(JOB, "accelerators", {}),
        FIELD + "accelerators: is no field that Kronos knows; drop it, or move it into spec",
        id="a field beside spec",
    ),
    pytest.param(
        changed(JOB, "spec.placement.required", "room"),
        "error: job-1, spec.placement.required: is room, a level that the fabric default lacks; change it to one of "
        "spine, leaf, node",
        id="a level that the fabric lacks",
    ),
]


@pytest.mark.parametrize(("document", "sentence"), CASES)
def test_a_bad_job_gets_a_sentence(document: dict[str, Any], sentence: str):
    answer = plan(manifest(document, FABRIC))
    assert answer.code == 2
    assert answer.output == ""
    assert answer.errors.startswith(sentence)
    assert answer.errors.count("\n") == 1


def test_a_bad_fabric_gets_a_sentence():
    answer = plan(manifest(JOB, changed(FABRIC, "spec.levels.0.latencyMicroseconds", -1)))
    assert answer.code == 2
    assert answer.errors == (
        "error: standard input, KronosFabric default, spec.levels[0].latencyMicroseconds: is -1 and must be greater "
        "than or equal to 0; change it\n"
    )


def test_every_mistake_is_told_at_once():
    bad = changed(changed(JOB, "spec.model.layers", 0), "spec.optimization.steps", 0)
    answer = plan(manifest(bad, changed(FABRIC, "apiVersion")))
    assert answer.code == 2
    assert [
        line.partition(": ")[2].partition(":")[0].rpartition(", ")[2] for line in answer.errors.splitlines()
    ] == [
        "spec.model.layers",
        "spec.optimization.steps",
        "apiVersion",
    ]


TEXTS = [
    pytest.param(
        manifest(JOB, FABRIC).replace("name: default", 'name: "\\ud800"'),
        "KronosFabric \\ud800, holds something that isn't text",
        id="half a character",
    ),
    pytest.param("a: [", "line 1, column 5: this is no YAML: ", id="half a list"),
    pytest.param("a: b: c", "line 1, column 5: this is no YAML: ", id="two colons"),
    pytest.param(
        "kind: A\nkind: B", "line 2, column 1: this is no YAML: kind is given twice", id="a field twice"
    ),
    pytest.param("\x00", "this is no YAML: ", id="no text"),
    pytest.param("[" * 5000, "the YAML is nested too deeply", id="too deep"),
    pytest.param("a: !!int x", "a value isn't what its YAML tag says", id="no number"),
    pytest.param("a: !!python/object:os.system x", "this is no YAML: ", id="a foreign tag"),
    pytest.param("- kind: KronosTrainingJob", "this is no object", id="a list"),
    pytest.param("just words", "this is no object", id="a text"),
    pytest.param("", "holds no KronosTrainingJob", id="nothing"),
    pytest.param("---\n---\n", "holds no KronosTrainingJob", id="empty documents"),
    pytest.param(manifest(FABRIC), "holds no KronosTrainingJob; give a file with one", id="no job"),
    pytest.param(
        manifest(JOB),
        "no KronosFabric was given, which describes the network and the accelerators",
        id="no fabric",
    ),
    pytest.param(
        manifest(JOB, changed(FABRIC, "metadata.name", "a"), changed(FABRIC, "metadata.name", "b")),
        "job-1, spec.placement.fabric: is default, and the fabrics that were given are a, b; name one of those",
        id="two fabrics of other names",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("layers: 12", "layers: .nan"),
        "spec.model.layers: is '.nan' and must be a whole number",
        id="not a number",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("bf16: 989.0", "bf16: 1e999"),
        "default, holds something that isn't text, a finite number",
        id="an infinite number",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("layers: 12", "layers: &a [*a]"),
        "document 1: holds more than 100,000 values with its aliases (*) written out",
        id="a circle",
    ),
    pytest.param(
        "kind: KronosFabric\nspec: &a0 [1, 1]\n"
        + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)),
        "document 1: holds more than 100,000 values",
        id="aliases of aliases",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("layers: 12", "layers: 1:30"),
        "spec.model.layers: is '1:30' and must be a whole number",
        id="a time of day",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("layers: 12", "layers: " + "9" * 50),
        "and must be less than or equal to 1000",
        id="more digits than a number has",
    ),
    pytest.param(
        manifest(JOB, FABRIC).replace("layers: 12", "layers: " + "9" * 5000),
        "a value isn't what its YAML tag says",
        id="more digits than anybody reads",
    ),
]


def test_an_unknown_model_of_accelerator_gets_one_sentence_that_names_the_known_one():
    answer = plan(
        manifest(JOB, changed(FABRIC, "spec.accelerators", [{"resource": "x.y/z", "model": "H100"}]))
    )
    assert answer.code == 2
    assert "write H100-80GB instead of H100, or give memoryGiB and peakTflops" in answer.errors
    assert answer.errors.count("\n") == 1


@pytest.mark.parametrize(("text", "sentence"), TEXTS)
def test_a_bad_text_gets_a_sentence(text: str, sentence: str):
    answer = plan(text)
    assert answer.code == 2
    assert sentence in answer.errors
    assert answer.errors.count("\n") == 1


def test_no_fabric_says_where_an_example_lies():
    assert (
        "add one with --fabric (manifests/examples/fabric.yaml is one to start from)"
        in plan(manifest(JOB)).errors
    )


def test_numbers_are_read_as_kubectl_reads_them():
    text = manifest(JOB, FABRIC).replace("learningRate: 0.0003", "learningRate: 3e-4")
    assert "3e-4" in text
    assert plan(text).code == 0


@pytest.mark.parametrize("layers", ["12.0", "1.2e1", "0xc", "0b1100", "014", "1_2"])
def test_a_whole_number_may_be_written_as_kubectl_takes_it(layers: str):
    assert plan(manifest(JOB, FABRIC).replace("layers: 12", f"layers: {layers}")).code == 0


def test_a_thousand_mistakes_are_not_told_at_once():
    answer = plan(manifest(JOB | {f"field{number}": 1 for number in range(1000)}, FABRIC))
    assert answer.code == 2
    assert answer.errors.splitlines()[-1] == "error: and 980 more; correct these first"
    assert answer.errors.count("\n") == 21


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (
            ("--slots", "node"),
            "--slots node: is no level with a number of accelerators from 1 to 999999999; write for example node=8",
        ),
        (("--slots", "node=0"), "--slots node=0: is no level"),
        (("--slots", "node=-1"), "--slots node=-1: is no level"),
        (("--slots", "node=x,leaf=2"), "--slots node=x: is no level"),
        (("--slots", ""), "--slots : is no level"),
        (("--slots", "node=8,node=4"), "--slots node=4: node is given twice; drop one"),
        (
            ("--slots", "leaf=4"),
            "--slots leaf=4: a leaf can't have fewer accelerators than a node inside it, 8; raise it to 8, or lower node",
        ),
        (("--slots", "room=8"), "--slots: the fabric has no level room; its levels are spine, leaf, node"),
        (("--fabric", "-"), "standard input can be read once"),
        (("--fabric", "nowhere.yaml"), "nowhere.yaml can't be read (No such file or directory)"),
        (("--fabric", "/"), "/ can't be read (Is a directory)"),
    ],
)
def test_a_bad_option_gets_a_sentence(options: tuple[str, ...], sentence: str):
    answer = plan(manifest(JOB, FABRIC), *options)
    assert answer.code == 2
    assert sentence in answer.errors
    assert answer.errors.count("\n") == 1


def test_an_unknown_output_is_refused():
    assert plan(manifest(JOB, FABRIC), "-o", "xml").code == 2


def test_a_file_that_is_no_text_gets_a_sentence(tmp_path: Path):
    source = tmp_path / "job.yaml"
    source.write_bytes(b"\xff\xfe")
    answer = Answer("plan", str(source))
    assert answer.code == 2
    assert "is no text in UTF-8; give a manifest in YAML" in answer.errors


COMMAND = [sys.executable, "-m", "kronos.cli", "plan", "-"]


def test_standard_input_that_is_no_text_gets_a_sentence():
    answer = subprocess.run(
        COMMAND, input=b"\xff\xfe", capture_output=True, env={**os.environ, "LC_ALL": "C"}, check=False
    )
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert answer.stderr == b"error: standard input is no text in UTF-8; give a manifest in YAML\n"


def test_a_closed_standard_input_gets_a_sentence():
    answer = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *COMMAND], capture_output=True, text=True, check=False
    )
    assert answer.returncode == 2
    assert answer.stderr == "error: standard input is closed; give a file with a manifest\n"


def test_an_answer_that_has_no_place_to_go_is_an_error():
    with Path("/dev/full").open("wb") as full:
        answer = subprocess.run(
            COMMAND, input=manifest(JOB, FABRIC).encode(), stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert answer.returncode == 1
    assert answer.stderr == (
        b"error: the answer can't be written (No space left on device); write it somewhere else\n"
    )


def test_a_reader_that_leaves_early_is_no_reason_for_a_traceback():
    answer = subprocess.run(
        ["sh", "-c", '"$@" -o json | true', "sh", *COMMAND],
        input=manifest(JOB, FABRIC).encode(),
        capture_output=True,
        check=False,
    )
    assert answer.stderr == b""


def test_a_fabric_file_without_a_fabric_gets_a_sentence(tmp_path: Path):
    source = tmp_path / "fabric.yaml"
    source.write_text(manifest(JOB))
    answer = plan(manifest(JOB, FABRIC), "--fabric", str(source))
    assert answer.code == 2
    assert "holds no KronosFabric; give a file with one to --fabric" in answer.errors


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(
    path=st.sampled_from(
        [
            "kind",
            "apiVersion",
            "metadata",
            "metadata.name",
            "metadata.namespace",
            "spec",
            "spec.model",
            "spec.model.layers",
            "spec.data",
            "spec.accelerators",
            "spec.accelerators.max",
            "spec.strategy",
            "spec.template.env",
        ]
    ),
    value=ANYTHING.filter(lambda value: value is not None),
)
def test_whatever_stands_in_a_field_ends_in_words(path: str, value: Any):
    if path == "spec.accelerators.max" and isinstance(value, int):
        value = min(value, 64)
    answer = plan(manifest(changed(JOB, path, value), FABRIC))
    assert answer.code in (0, 2, 3)
    assert answer.code != 2 or answer.errors.startswith(("error: ", "note: "))


@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60) | st.text("{}[]:-&*!#|>'\"% \nab1.", max_size=30))
def test_whatever_text_is_given_ends_in_words(text: str):
    answer = plan(text)
    assert answer.code == 2
    assert answer.errors.startswith(("error: ", "note: "))
