"""While a method fits and predicts, its Python code reaches no other machine, unless a teacher or a download does."""

from __future__ import annotations

import socket

import pytest
from fakes import install_own
from fakes.bench import Bench

from xmcbench.files.network import allow_network, forbid_network
from xmcbench.trial.record import Status

ELSEWHERE = ("192.0.2.1", 9)  # reserved for documentation: nobody answers
CALLER = f"""
import socket
from xmcbench import hookimpl
from xmcbench_fakes import Ok

def call():
    socket.create_connection({ELSEWHERE}, timeout=0.1)

class FitCaller(Ok):
    name = "fit-caller"
    def fit(self, train, run):
        call()

class PredictCaller(Ok):
    name = "predict-caller"
    def predict(self, texts, k):
        call()

@hookimpl
def register_methods(register):
    register(FitCaller)
    register(PredictCaller)
"""


@pytest.mark.parametrize("address", [ELSEWHERE, ("2001:db8::1", 80)])
def test_other_machines_are_out_of_reach(address: tuple[str, int]) -> None:
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family) as caller, forbid_network():
        caller.settimeout(0.1)
        with pytest.raises(PermissionError, match="no network while a method fits and predicts"):
            caller.connect(address)


def test_datagrams_are_out_of_reach_too() -> None:
    caller = socket.socket(type=socket.SOCK_DGRAM)
    with caller, forbid_network(), pytest.raises(PermissionError):
        caller.sendto(b"labels", ELSEWHERE)


def test_this_machine_may_be_reached() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, forbid_network():
        for host in ("127.0.0.1", "localhost"):
            with socket.socket() as caller:
                caller.connect((host, server.getsockname()[1]))


def test_what_is_allowed_may_call() -> None:
    with socket.socket() as caller, forbid_network(), allow_network():
        caller.settimeout(0.01)
        with pytest.raises(OSError, match=r"timed out|unreachable|refused") as caught:
            caller.connect(ELSEWHERE)
    assert not isinstance(caught.value, PermissionError)


def test_a_method_that_calls_fails(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    install_own(bench.root / "site", monkeypatch, "caller", CALLER)
    records = bench.run(bench.suite({"f": {"method": "fit-caller"}, "p": {"method": "predict-caller"}}))
    for label, stage in (("f", "fit"), ("p", "predict")):
        failure = records[label].failure
        assert records[label].status is Status.ERROR
        assert failure is not None
        assert (failure.type, failure.stage) == ("PermissionError", stage)
        assert "no network while a method fits and predicts" in failure.message
