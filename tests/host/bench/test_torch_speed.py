"""PyTorch timed here: the right tokens, no look at the host that would stop a GPU, the right figures from samples."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import host.bench.torch_report as torch_report
import host.bench.torch_speed as torch_speed
from host.bench.gpt2_lengths import Length
from host.bench.processor import processor_flags, processor_name
from host.bench.torch_report import Setup, torch_row
from host.bench.torch_speed import Generation, GraphedGeneration, Sample, samples
from host.errors import BadInput
from sw.models.gpt2 import GPT2
from sw.models.gpt2_config import GPT2Config, load_config

TINY = str(Path(__file__).resolve().parents[3] / "checkpoints" / "gpt2-tiny")
IDS = torch.tensor([[5, 81, 33, 7]])
ON_HOST = {"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero", "aten::item"}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Handing such small work to another thread takes longer than the work."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def model() -> GPT2:
    return GPT2.from_directory(TINY)


class HostLooks(TorchDispatchMode):
    """Operations that hand a value of a tensor to the host: a GPU would have to finish first, a capture would fail."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().split(".")[0]
        if name in ON_HOST:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


def _greedy(model: GPT2, output: int) -> list[int]:
    """The continuation by the model's own forward, everything anew for each token."""
    ids = IDS
    for _ in range(output):
        ids = torch.cat([ids, model(ids)[:, -1:].argmax(-1)], 1)
    return ids[0, IDS.shape[1] :].tolist()


def test_the_tokens_are_the_models_own(model: GPT2) -> None:
    with torch.inference_mode():
        generation = Generation(model, IDS, 12)
        generation.prefill()
        generation.decode()
        first = generation.tokens[0].tolist()
        assert first == _greedy(model, 12)
        generation.tokens.fill_(0)
        generation.prefill()  # again on the same buffers: what replaying a graph does
        generation.decode()
        assert generation.tokens[0].tolist() == first
        generation.tokens[0, 0] = 99  # twin: decode goes on from the token that prefill wrote
        generation.decode()
        assert generation.tokens[0, 1:].tolist() != first[1:]


def test_nothing_looks_at_values_on_the_host(model: GPT2) -> None:
    with torch.inference_mode():
        generation = Generation(model, IDS, 6)
        with HostLooks() as looks:
            generation.prefill()
            generation.decode()
        assert looks.found == []
        with HostLooks() as looks:  # twin
            model(IDS)
        assert looks.found


def test_samples_are_taken_behind_the_warm_ups(model: GPT2) -> None:
    ticks = itertools.count()
    found = samples(model, IDS, Length(4, 5), warm_ups=2, repeats=3, now=lambda: next(ticks) ** 2)
    # the clock is looked at thrice a run: at n, n+1 and n+2 of the squares, the first timed run at n = 6
    assert found == [Sample((n + 1) ** 2 - n**2, (n + 2) ** 2 - (n + 1) ** 2) for n in (6, 9, 12)]


def test_graphs_are_captured_behind_warm_runs_and_replayed(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of torch.cuda's calls, with stand-ins for them: there is no GPU where tests run."""
    log: list[str] = []

    class Stream:
        def wait_stream(self, other: object) -> None:
            log.append("wait")

    class Graph:
        def __init__(self) -> None:
            self.number = sum(line.startswith("new graph") for line in log)
            log.append(f"new graph {self.number}")

        def replay(self) -> None:
            log.append(f"replay {self.number}")

    @contextlib.contextmanager
    def within(what: object) -> Iterator[None]:
        name = f"graph {what.number}" if isinstance(what, Graph) else "stream"
        log.append(f"enter {name}")
        yield
        log.append(f"leave {name}")

    class Logged(Generation):
        def prefill(self) -> None:
            log.append("prefill")

        def decode(self) -> None:
            log.append("decode")

    side, current = Stream(), Stream()
    for name, value in {
        "Stream": lambda: side,
        "current_stream": lambda: current,
        "stream": within,
        "CUDAGraph": Graph,
        "graph": within,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    graphed = GraphedGeneration(Logged(model, IDS, 3))
    graphed.prefill()
    graphed.decode()
    warm = ["prefill", "decode"] * 3
    assert log == [
        *("wait", "enter stream", *warm, "leave stream", "wait", "new graph 0", "new graph 1"),
        *("enter graph 0", "prefill", "leave graph 0", "enter graph 1", "decode", "leave graph 1"),
        *("replay 0", "replay 1"),
    ]


def test_a_gpu_is_idle_at_every_look_at_the_clock(model: GPT2, monkeypatch: pytest.MonkeyPatch) -> None:
    class OnGpu:
        """A model that says it is on a GPU."""

        class wte:
            class weight:
                device = torch.device("cuda", 0)

    class Idle:
        def __init__(self, *_: object) -> None:
            pass

        def prefill(self) -> None:
            log.append("prefill")

        def decode(self) -> None:
            log.append("decode")

    log: list[str] = []
    monkeypatch.setattr(torch_speed, "Generation", Idle)
    monkeypatch.setattr(torch_speed, "GraphedGeneration", Idle)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: log.append(f"idle {device}"))
    for graphed in (False, True):
        log.clear()

        def now() -> float:
            log.append("clock")
            return 0.0

        samples(OnGpu(), IDS, Length(4, 5), graphed=graphed, warm_ups=0, repeats=1, now=now)  # type: ignore[arg-type]
        look = ["idle cuda:0", "clock"]
        assert log == [*look, "prefill", *look, "decode", *look]


def test_a_row_from_its_samples() -> None:
    config, setup = load_config(TINY), Setup("cpu", ("fp32",), 2, repeats=3)
    found = [Sample(0.010, 0.040), Sample(0.030, 0.020), Sample(0.020, 0.024)]
    row = torch_row("gpt2-tiny", config, setup, "fp32", "eager", Length(8, 5), found)
    assert (row["first_token_ms"], row["total_ms"], row["decode_ms_per_token"]) == pytest.approx((20, 50, 6))
    assert row["decode_tokens_per_s"] == pytest.approx(1000 / 6)
    assert row["tokens_per_s_with_prompt"] == pytest.approx(5000 / 50)
    parameters = sum(p.numel() for name, p in GPT2(config).named_parameters() if name != "wpe.weight")
    cache = 2 * config.n_layer * config.n_embd * 4  # bytes a position
    attended = (9 + 10 + 11 + 12) / 4  # of the four decode steps
    assert row["bytes_per_token"] == 4 * parameters + cache * attended
    assert row["decode_gb_s"] == pytest.approx(row["bytes_per_token"] / 6e-3 / 1e9)
    assert row["prefill_gb_s"] == pytest.approx((4 * parameters + cache * 8) / 20e-3 / 1e9)
    assert row["spread"] == {"first_token_ms": [10, 30], "decode_ms_per_token": [5, 10]}
    assert row["source"] == "measured" and row["device_name"] == processor_name() and row["threads"] == 2
    half = torch_row("gpt2-tiny", config, setup, "fp16", "eager", Length(8, 5), found)
    assert half["bytes_per_token"] == row["bytes_per_token"] / 2
    single = torch_row("gpt2-tiny", config, setup, "fp32", "eager", Length(8, 1), [Sample(0.01, 0.0)])
    assert single["decode_ms_per_token"] is single["decode_gb_s"] is single["bytes_per_token"] is None
    assert single["total_ms"] == pytest.approx(10)


def test_a_report_of_the_shipped_checkpoint() -> None:
    threads = torch.get_num_threads()
    setup = Setup.of_machine("cpu", ("fp32", "bf16"), 1, 0, 1, 0)
    report = torch_report.torch_report([TINY], [Length(4, 3), Length(5, 2)], setup)
    assert [(row["dtype"], row["in"], row["out"]) for row in report["rows"]] == [
        ("fp32", 4, 3),
        ("fp32", 5, 2),
        ("bf16", 4, 3),
        ("bf16", 5, 2),
    ]
    assert all(row["total_ms"] > row["first_token_ms"] > 0 and row["decode_gb_s"] > 0 for row in report["rows"])
    assert report["conditions"]["torch"] == torch.__version__ and report["conditions"]["threads"] == 1
    assert all("V100" in one["device"] and one["source"].startswith("published by") for one in report["published"])
    assert torch.get_num_threads() == threads


def test_what_a_machine_measures_with(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {"threads": None, "warm_ups": 1, "repeats": 3, "seed": 0}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch_report, "processor_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    own = Setup.of_machine("auto", (), **chosen)
    assert (own.device, own.dtypes, own.modes, own.threads) == (
        "cpu",
        ("fp32", "bf16"),
        ("eager",),
        torch.get_num_threads(),
    )
    monkeypatch.setattr(torch_report, "processor_flags", frozenset)
    assert Setup.of_machine("cpu", (), **chosen).dtypes == ("fp32",)
    assert Setup.of_machine("cpu", ("fp16", "fp16"), **chosen).dtypes == ("fp16",)
    with pytest.raises(BadInput, match="no CUDA device"):
        Setup.of_machine("cuda", (), **chosen)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "GPU of a test")
    gpu = Setup.of_machine("auto", (), **chosen)
    assert (gpu.device, gpu.dtypes, gpu.modes) == ("cuda", ("fp16",), ("eager", "cuda graph"))
    assert gpu.facts()["device_name"] == "GPU of a test" and "synchronize" in str(gpu.facts()["clock"])
    assert Setup.of_machine("cpu", (), **chosen).modes == ("eager",)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"device": "tpu"}, "unknown device 'tpu'"),
        ({"dtypes": ("fp8",)}, "unknown dtype 'fp8'"),
        ({"threads": 0}, "--threads must be 1 or more"),
        ({"warm_ups": -1}, "--warm-ups must be 0 or more"),
        ({"repeats": 0}, "--repeats must be 1 or more"),
    ],
)
def test_bad_input(facts: dict[str, Any], message: str) -> None:
    usual = {"device": "cpu", "dtypes": (), "threads": 1, "warm_ups": 1, "repeats": 1, "seed": 0}
    with pytest.raises(BadInput, match=message):
        Setup.of_machine(**{**usual, **facts})


def test_a_length_beyond_the_model() -> None:
    setup = Setup("cpu", ("fp32",), 1, warm_ups=0, repeats=1)
    positions = load_config(TINY).n_positions
    with pytest.raises(BadInput, match=f"takes {positions + 1} positions"):
        torch_report.torch_report([TINY], [Length(positions, 2)], setup)


def test_the_processor() -> None:
    assert processor_name() and all(" " not in flag for flag in processor_flags())


def test_a_model_on_its_own_positions() -> None:
    """The last position is used, and no more are needed."""
    small = GPT2(GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=6, vocab_size=20)).eval()
    found = samples(small, torch.tensor([[1, 2, 3]]), Length(3, 4), warm_ups=0, repeats=1)
    assert len(found) == 1
