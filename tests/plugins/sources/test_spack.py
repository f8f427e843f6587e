"""A clone of spack's packages becomes a dataset without running what it contains."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from xmcbench.data.source import own_source
from xmcbench.errors import XMCBenchError
from xmcbench_plugins.sources.debian import in_test
from xmcbench_plugins.sources.spack import PACKAGES, import_spack, read_package

BODY = '''
raise SystemExit("this file was run")

class Example(Package):
    """An   example
    of two lines."""

    depends_on("cmake@3.12: +ssl", type="build")
    with when("+mpi"):
        depends_on("mpi")
    for version in ("1", "2"):
        depends_on(f"py-numpy@{version}")
        depends_on("zlib@" + version)
        depends_on("hdf5@{}".format(version))
        depends_on(f"{version}-tools")
        depends_on(f"half{version}")
    conflicts("gcc")
    depends_on("example")
'''


def write(clone: Path, name: str, content: str = BODY) -> Path:
    path = clone / PACKAGES / name.replace("-", "_") / "package.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_names_are_read_as_far_as_they_are_written_out(tmp_path: Path) -> None:
    text, needed = read_package(write(tmp_path, "example"))
    assert text == "An example of two lines."
    assert needed == {"cmake", "mpi", "py-numpy", "zlib", "hdf5", "example"}


def test_a_clone_becomes_a_dataset(tmp_path: Path) -> None:
    names = [f"package-{i}" for i in range(20)]
    for name in names:
        write(tmp_path, name, BODY.replace("example", name))
    write(tmp_path, "user", 'class User(Package):\n    depends_on("package-0")\n')
    write(tmp_path, "alone", "class Alone(Package):\n    pass\n")
    report = import_spack(tmp_path, tmp_path / "data" / "spack")
    assert report.train + report.test == 21
    dataset = own_source(tmp_path / "data" / "spack").read(tmp_path / "data")
    own = "package-0: An package-0 of two lines."
    assert list(dataset.label_texts) == ["cmake", "hdf5", "mpi", own, "py-numpy", "zlib"]
    assert dataset.card.licence == "Apache-2.0 or MIT"
    tested = {text.partition(":")[0] for text in dataset.test.texts}
    assert tested == {name for name in [*names, "user"] if in_test(name)}
    ignored = dataset.ignore_test if in_test("package-0") else dataset.ignore_train
    assert ignored.nnz == 1
    assert ignored.indices.tolist() == [3]  # package-0 itself, which no method has to rule out


def test_what_is_no_python_and_no_clone_is_named(tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match="expected a clone of spack-packages"):
        import_spack(tmp_path, tmp_path / "made")
    write(tmp_path, "broken", "class Broken(\n")
    with pytest.raises(XMCBenchError, match=r"broken/package\.py: .*, expected Python"):
        import_spack(tmp_path, tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_the_written_lines_are_json(tmp_path: Path) -> None:
    for i in range(20):
        write(tmp_path, f"p{i}", 'class P(Package):\n    """Gr\u00f6\u00dfe"""\n    depends_on("x")\n')
    import_spack(tmp_path, tmp_path / "made")
    first = json.loads((tmp_path / "made" / "trn.json").read_text(encoding="utf-8").splitlines()[0])
    assert first["target_ind"] == [0]
    assert first["title"].endswith(": Gr\u00f6\u00dfe")
