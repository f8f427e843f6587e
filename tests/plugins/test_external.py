"""The method `external`: a shell script and a Python program are trained, predicted with, limited and ended."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from textwrap import dedent
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fakes.bench import Bench
from toy import make_run, toy_data

from xmcbench.errors import XMCBenchError
from xmcbench.plugins.registry import ONLY, registry
from xmcbench.trial.budget import TooLargeError
from xmcbench.trial.method import Method
from xmcbench.trial.programs import ProgramError
from xmcbench_plugins.external import External, PythonProgram

# Answers each query with label 3, then with the number that `fit` wrote, whatever the query says.
SHELL = """
    set -eu
    if [ "$1" = fit ]; then
        head -n 1 "$2/targets.npz" > /dev/null
        wc -l < "$2/train.txt" > "$2/model/count"
        echo '{"fraction": 0.5, "metrics": {"loss": 2}}' >> "$2/progress.jsonl"
        echo '{"epochs": 2, "num_parameters": 7}' > "$2/spent.json"
    else
        second=$(( $(cat "$2/model/count") % 7 + 4 ))
        while read -r _; do echo "$second:0.25 3:0.5"; done < "$2/queries.txt" > "$2/predictions.txt"
    fi
"""

# The labels of the nearest training query by shared words: imports the helper module, which needs scipy and numpy.
PYTHON = """
    import numpy as np, scipy.sparse as sp
    from xmcbench_task import Task
    task = Task()
    if task.stage == "fit":
        (task.model / "texts.txt").write_text("\\n".join(task.texts("train")))
        sp.save_npz(task.model / "targets.npz", task.matrix())
        task.progress(1.0)
        task.spend(epochs=1)
    else:
        train = [set(line.split()) for line in (task.model / "texts.txt").read_text().split("\\n")]
        shared = [[len(set(text.split()) & words) for words in train] for text in task.texts("queries")]
        task.predict(sp.csr_matrix(np.array(shared, np.float32)) @ sp.load_npz(task.model / "targets.npz"))
"""


def external(tmp_path: Path, content: str, name: str = "program.sh", interpreter: str = "sh") -> Method:
    path = tmp_path / name
    path.write_text(dedent(content))
    return External(External.Config(command=(interpreter, str(path))))


def run(tmp_path: Path, **budget: Any) -> Any:
    made = make_run(tmp_path, budget or {"device_seconds": 60})
    made.checkpoint.mkdir(parents=True)
    return made


def test_a_shell_script_trains_reports_spends_and_predicts(tmp_path: Path) -> None:
    method, data, given, heard = external(tmp_path, SHELL), toy_data(), run(tmp_path), []
    object.__setattr__(given, "report", heard.append)
    method.fit(data, given)
    assert [(progress.fraction, dict(progress.metrics)) for progress in heard] == [(0.5, {"loss": 2.0})]
    assert given.ledger.epochs == 2
    unknown = {"steps", "queries", "pool_labels", "encoder_tokens", "encoder_flops", "scoring_flops", "solver_flops"}
    assert {*given.ledger.not_counted} == unknown | {"flops"}, "what nobody counted is not 0"
    assert not given.ledger.as_dict().keys() & {*given.ledger.not_counted}
    assert given.ledger.stage_seconds["train"] > 0
    assert method.num_parameters == 7
    predictions = method.predict(["one", "two\nlines", ""], 4)
    assert predictions.indices.tolist() == [[3, 60 % 7 + 4, -1, -1]] * 3
    method.save(tmp_path / "saved")
    loaded = External(method.config)
    loaded.load(tmp_path / "saved")
    assert (loaded.predict(["one"], 4).indices == predictions.indices[:1]).all()


def test_a_program_that_states_operations_has_a_known_sum(tmp_path: Path) -> None:
    given = run(tmp_path)
    external(tmp_path, 'echo \'{"scoring_flops": 8}\' > "$2/spent.json"').fit(toy_data(), given)
    assert given.ledger.as_dict()["flops"] == 8
    assert "encoder_flops" in given.ledger.not_counted


def test_a_program_of_another_python_needs_nothing_of_xmcbench(tmp_path: Path) -> None:
    """The program imports numpy, scipy and the helper module `xmcbench_task`, but not xmcbench."""
    method = external(tmp_path, PYTHON, "program.py", sys.executable)
    data = toy_data()
    method.fit(data, run(tmp_path))
    best = method.predict(data.texts[:6], 5)
    own = [data.targets[[query]].indices for query in range(6)]
    assert all(labels[0] in row for labels, row in zip(own, best.indices.tolist(), strict=True) if len(labels))


# Predicts the number of times that its model was loaded, and notes each; ends, or fails, where a query says so.
COUNTING = """
    import os
    from xmcbench_task import Task
    task = Task()
    notes = task.model / "loads.txt"
    def load(path):
        with open(path, "a") as file:
            file.write("loaded\\n")
        return path
    if task.stage == "predict":
        queries = task.texts("queries")
        if "end" in queries:
            os._exit(3)
        if "fail" in queries:
            raise ValueError("a\\nfault")
        path = task.loaded(load, notes)
        print("some output")
        task.predict_rows([[(len(path.read_text().split()), 1.0)] for _ in queries])
"""


def test_a_resident_program_loads_its_model_once(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(dedent(COUNTING))

    class Counting(PythonProgram):
        name, program, info = "counting", path, External.info
        environment = SimpleNamespace(python=lambda: sys.executable)  # type: ignore[assignment]

    def loads(method: Method) -> int:
        return int(method.predict(["one", "two"], 1).indices[0, 0])

    method = Counting(Counting.Config())
    method.fit(toy_data(), run(tmp_path))
    assert [loads(method) for _ in range(2)] == [1, 2]
    with method.resident():
        assert [loads(method) for _ in range(3)] == [3, 3, 3]
        (child,) = [own for own in psutil.Process().children() if "xmcbench_resident" in " ".join(own.cmdline())]
        with pytest.raises(XMCBenchError, match=r"counting: ValueError: a\nfault"):
            method.predict(["fail"], 1)
        assert loads(method) == 3
        with pytest.raises(ProgramError, match="ended instead of an answer"):
            method.predict(["end"], 1)
        assert loads(method) == 4, "it starts again"
    assert not child.is_running()
    assert not [own for own in psutil.Process().children() if "xmcbench_resident" in " ".join(own.cmdline())]
    assert loads(method) == 5


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("exit 3", r"sh program\.sh fit ended with code 3"),
        ('echo "{}" >> $2/progress.jsonl', r'progress\.jsonl: found .* expected \{"fraction": 0\.5\}'),
        ('echo "{\\"gold\\": 1}" > $2/spent.json', r"spent\.json: found gold = 1, expected amounts of epochs"),
    ],
)
def test_a_program_that_breaks_the_contract_is_told(content: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(XMCBenchError, match=message):
        external(tmp_path, content).fit(toy_data(), run(tmp_path))


def test_predictions_that_are_missing_or_wrong_are_told(tmp_path: Path) -> None:
    method = external(tmp_path, '[ "$1" = fit ] || [ -z "$(cat $2/queries.txt)" ] || echo "99:1" > $2/predictions.txt')
    method.fit(toy_data(), run(tmp_path))
    with pytest.raises(XMCBenchError, match=r"found the files none, expected one predictions\.\*"):
        method.predict([""], 3)
    with pytest.raises(XMCBenchError, match=r"predictions\.txt: line 1: found label 99, expected 0 to 39"):
        method.predict(["a"], 3)


def runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_time_is_enforced_and_no_child_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a child that left the process group and whose parent has ended. An hour passes once the child is there."""
    written = tmp_path / "pid"
    later = SimpleNamespace(monotonic=lambda: 3600.0 if written.exists() and written.read_text() else 0.0)
    monkeypatch.setattr("xmcbench.trial.programs.time", later)
    away = f'(setsid sh -c "echo \\$\\$ > {tmp_path}/pid; exec sleep 60" &) ; sleep 60'
    given = run(tmp_path, device_seconds=60)
    given.ledger.clock = "wall"  # as beside a GPU
    with pytest.raises(ProgramError, match=r"was ended after .* seconds of wall clock"):
        external(tmp_path, away).fit(toy_data(), given)
    assert not runs(int(written.read_text()))


def test_processor_time_is_charged_and_enforced_however_many_processes_compute(tmp_path: Path) -> None:
    """Two processes that compute for a second of processors each, one after the other or at once, take two."""
    burn = "import time\nwhile time.process_time() < 1: pass"
    for name, words in {"at once": f"python -c '{burn}' & python -c '{burn}'; wait", "in turn": ""}.items():
        words = words.replace("python", sys.executable) or f"for i in 1 2; do {sys.executable} -c '{burn}'; done"
        given = run(tmp_path / name)
        external(tmp_path, words).fit(toy_data(), given)
        assert 2.0 <= given.ledger.device_seconds == pytest.approx(2.0, abs=0.5)
    with pytest.raises(ProgramError, match=r"was ended after .* seconds of processors"):
        external(tmp_path, "while :; do :; done").fit(toy_data(), run(tmp_path / "spins", device_seconds=0.5))


def test_memory_of_all_its_processes_is_enforced(tmp_path: Path) -> None:
    hog = f"{sys.executable} -c \"import time; x = b'1' * 300_000_000; time.sleep(60)\""
    with pytest.raises(TooLargeError, match=r"took 0\..* GB of memory, allowed 0\.20 GB"):
        external(tmp_path, hog).fit(toy_data(), run(tmp_path, peak_bytes=2e8, steps=1))


def test_another_program_is_another_configuration(tmp_path: Path) -> None:
    before = external(tmp_path, SHELL).config
    assert External.Config.model_validate(before.model_dump()) == before
    assert external(tmp_path, SHELL + "# changed\n").config != before
    with pytest.raises(XMCBenchError, match="its files changed since the trial was planned"):
        External.Config.model_validate(before.model_dump())


def test_a_trial_ends_ok_and_keeps_the_model(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ONLY, "xmcbench")
    registry.cache_clear()
    program = bench.root / "program.sh"
    program.write_text(dedent(SHELL))
    method = {"method": "external", "command": ["sh", str(program)]}
    record = bench.run(bench.suite({"shell": method}, datasets=["catalog-100"]))["shell"]
    assert record.status == "ok", record.failure
    assert record.num_parameters == 7
    assert record.spent["epochs"] == 2
    assert "flops" in record.not_counted
    assert not {"flops", "steps", "encoder_tokens"} & record.spent.keys()
    task = json.loads((bench.store.directory(record.key) / "trial.json").read_bytes())
    assert task["trial"]["config"]["program"]
    assert not (bench.store.directory(record.key) / "checkpoint").exists()
    assert os.listdir(bench.store.directory(record.key) / "model" / "program") == ["count"]  # noqa: PTH208
