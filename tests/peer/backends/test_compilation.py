"""Layers are compiled where that is faster, and nothing that goes wrong with it stops training."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.backends.compiled import CACHE_VARIABLE, VARIANTS, CompiledLayers
from peer.backends.devices import OUTCOMES_FILE, TrialOutcome, compile_if_it_pays
from peer.backends.memory import FoundSizes
from peer.backends.replicas import ReplicaBackend
from peer.backends.torch_cpu import TorchBackend
from peer.config.architectures import ARCHITECTURES
from peer.config.run import RunConfig
from peer.data.batching.batches import Batch
from peer.models.build import build_model
from peer.runtime.devices import CompileMode, Stay
from tests.support.programs import require
from tests.support.tiny_albert import SPECIAL, VOCABULARY, gradients, random_batch, tiny_config, tiny_model

EXACT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
CPU = torch.device("cpu")
KEY = f"PyTorch {torch.__version__}, work"
# Of Inductor's own making: it compiles with pre-compiled headers that it leaves open, and asks for what is deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Nothing is left of what other tests have compiled, nor for them."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def clock_of(*seconds: float) -> Callable[[], float]:
    """A clock by which the measured intervals take so long, in their order."""
    times = iter([moment for start, length in enumerate(seconds) for moment in (100.0 * start, 100.0 * start + length)])
    return lambda: next(times)


PLAIN, COMPILING, FASTER, SLOWER = (1.0,) * 3, (30.0,), (0.5,) * 3, (1.5,) * 3


def compiled_by(backend: Any, compiler: str) -> Any:
    """The backend, to be compiled by something quicker than Inductor."""
    backend.layers._compiler = compiler
    return backend


def attempt(backend: Any, directory: Path, seconds: tuple[float, ...], mode: CompileMode = "on") -> list[str]:
    """What the person is told."""
    told: list[str] = []
    stay = Stay(steps_left=10_000, hours=None)
    make_batch: Callable[[], Batch] = lambda: random_batch(1, samples=4)  # noqa: E731
    compile_if_it_pays(backend, mode, stay, "work", make_batch, directory, told.append, clock_of(*seconds))
    return told


def remembered(directory: Path) -> int | None:
    return FoundSizes(directory / OUTCOMES_FILE).get(KEY)


def assert_same_gradients(found: torch.nn.Module, expected: torch.nn.Module) -> None:
    ours = gradients(found)
    for name, gradient in gradients(expected).items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-4, atol=1e-4)


@pytest.mark.thorough
def test_really_compiled_layers_train_alike(tmp_path: Path) -> None:
    """Inductor's code gives the gradients that the plain layers give."""
    require("compiler")
    config = tiny_config(num_hidden_layers=1, **EXACT)  # one variant, as a C++ compiler takes its time
    plain, model = tiny_model(config), tiny_model(config)
    expected, backend = TorchBackend(config, plain), TorchBackend(config, model)
    told = attempt(backend, tmp_path, (*PLAIN, *COMPILING, *FASTER))
    assert told == ["Layers are compiled: a microbatch takes 500 ms with, 1000 ms without; compiling took 30 s."]
    assert backend.layers.on
    assert (remembered(tmp_path), any(tmp_path.glob("cache/**/*.so"))) == (TrialOutcome.FASTER, True)
    batch = random_batch(1, samples=4)
    assert backend.accumulate(batch).loss == pytest.approx(expected.accumulate(batch).loss, rel=1e-5)
    assert backend.layers.on
    assert_same_gradients(model, plain)


def test_a_missing_compiler_is_one_notice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Inductor finds no C++ compiler, training goes on with the plain layers, and no gradient is lost."""
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", (str(tmp_path / "no-compiler"),))
    config = tiny_config(**EXACT)
    plain, model = tiny_model(config), tiny_model(config)
    expected, backend = TorchBackend(config, plain), TorchBackend(config, model)
    (told,) = attempt(backend, tmp_path, (*PLAIN, *COMPILING, *PLAIN))
    assert told.startswith("Layers continue uncompiled: torch.compile has failed")
    assert remembered(tmp_path) == TrialOutcome.FAILED
    expected.accumulate(random_batch(2))
    assert backend.accumulate(random_batch(2)).finite
    assert_same_gradients(model, plain)


def test_a_failure_in_the_midst_of_training_costs_no_sample(tmp_path: Path) -> None:
    """A compiler that fails at a new shape, on one of two replicas: one notice, all go on plain."""
    config = tiny_config(**EXACT)
    plain, model = tiny_model(config), tiny_model(config)
    expected, backend = TorchBackend(config, plain), compiled_by(ReplicaBackend(config, model, [CPU, CPU]), "aot_eager")
    told = attempt(backend, tmp_path, (*PLAIN, *COMPILING, *FASTER))
    assert backend.layers.on

    def broken(*arguments: Any) -> torch.Tensor:
        raise ArithmeticError("no kernel for this shape. More follows.")

    for copied in backend.layers._models:
        copied.albert.encoder.compiled_forward = broken
    for samples in 5, 4:
        expected.accumulate(random_batch(9, samples))
        assert backend.accumulate(random_batch(9, samples)).samples == samples
    backend.collect()
    assert told[1:] == [
        "Layers continue uncompiled: torch.compile has failed (ArithmeticError: no kernel for this shape)."
    ]
    assert_same_gradients(model, plain)


def test_what_is_slower_is_given_up_and_remembered(tmp_path: Path) -> None:
    """`on` keeps it all the same."""
    config = tiny_config()
    backend = compiled_by(TorchBackend(config, tiny_model(config)), "aot_eager")
    (told,) = attempt(backend, tmp_path, (*PLAIN, *COMPILING, *SLOWER))
    assert "Layers are compiled: a microbatch takes 1500 ms with, 1000 ms without" in told
    assert (backend.layers.on, remembered(tmp_path)) == (True, TrialOutcome.SLOWER)
    backend.layers.switch_off()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchBackend, "on_gpus", True)  # what `auto` looks at
        assert attempt(backend, tmp_path, (), mode="auto") == []  # it needs no second trial
        assert not backend.layers.on
        (tmp_path / OUTCOMES_FILE).unlink()
        (told,) = attempt(backend, tmp_path, (*PLAIN, *COMPILING, *SLOWER), mode="auto")
    assert told.startswith("Layers stay uncompiled: a microbatch takes 1500 ms with")
    assert not backend.layers.on


@pytest.mark.parametrize("mode", ["auto", "off"])
def test_nothing_is_compiled_unasked_on_a_cpu(tmp_path: Path, mode: CompileMode) -> None:
    """Nor is anything said or measured."""
    config = tiny_config()
    backend = TorchBackend(config, tiny_model(config))
    assert attempt(backend, tmp_path, (), mode=mode) == []
    assert not backend.layers.on


def test_a_try_that_ended_with_the_process_is_not_repeated(tmp_path: Path) -> None:
    """A device that crashes while it compiles crashes once; it is said how to try again."""
    config = tiny_config()
    backend = TorchBackend(config, tiny_model(config))
    FoundSizes(tmp_path / OUTCOMES_FILE).put(KEY, TrialOutcome.BEGUN)
    (told,) = attempt(backend, tmp_path, ())
    assert "the last attempt crashed the process. To try again, delete compiled.json." in told
    assert not backend.layers.on


def test_a_crash_leaves_its_mark(tmp_path: Path) -> None:
    """The mark is on the disk before anything is compiled."""
    config = tiny_config()
    backend = TorchBackend(config, tiny_model(config))
    marks = []
    backend.rehearse = lambda batch: marks.append(remembered(tmp_path))  # type: ignore[method-assign]
    attempt(backend, tmp_path, (*PLAIN, *COMPILING, *PLAIN))
    assert set(marks) == {TrialOutcome.BEGUN}


@pytest.mark.parametrize("architecture", ["albert", "modernbert", "gpt2"])
def test_layers_are_compiled_once_for_all_and_for_few_shapes(architecture: str) -> None:
    """Many sizes and lengths need no more variants than one layer may have, and layers share them."""
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 64, **EXACT}
    config = RunConfig.from_mapping(
        {
            "model": {"architecture": architecture, "max_position_embeddings": 64, **sizes},
            "objective": {"name": ARCHITECTURES[architecture].objectives[0]},
            "data": {"sequence_length": 24},
        }
    )
    compiled: list[int] = []

    def counting(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        compiled.append(len(inputs))
        return graph

    plain, model = (build_model(config, VOCABULARY, SPECIAL) for _ in range(2))
    expected, backend = TorchBackend(config, plain), compiled_by(TorchBackend(config, model), counting)  # type: ignore[arg-type]
    backend.layers.switch_on(Path("unused"), pytest.fail)
    for seed, (samples, length) in enumerate([(3, 24), (3, 24), (2, 24), (5, 16), (4, 12), (7, 20), (1, 24), (6, 9)]):
        batch = cut(random_batch(seed, samples, sop=architecture == "albert"), length, architecture)
        assert backend.accumulate(batch).loss == pytest.approx(expected.accumulate(batch).loss, rel=1e-5)
    assert backend.layers.on
    assert 0 < len(compiled) <= VARIANTS
    assert_same_gradients(model, plain)


def cut(batch: Batch, length: int, architecture: str) -> Batch:
    """The batch with shorter samples."""
    rows, columns = batch.label_positions // 24, batch.label_positions % 24
    kept = columns < length
    several = ARCHITECTURES[architecture].token_types > 1
    types = None if batch.token_type_ids is None or not several else batch.token_type_ids[:, :length]
    return Batch(
        input_ids=batch.input_ids[:, :length],
        token_type_ids=types,
        attention_mask=None,
        label_positions=(rows * length + columns)[kept],
        labels=batch.labels[kept],
        sop_labels=batch.sop_labels,
    )


def test_switching_off_leaves_no_trace() -> None:
    """The layers are called as before."""
    model = tiny_model(tiny_config())
    layers = CompiledLayers([model], "eager")
    layers.switch_on(Path("unused"), pytest.fail)
    assert model.albert.encoder.compiled_forward is not None
    layers.switch_off()
    assert model.albert.encoder.compiled_forward is None
    assert not layers.give_up(ValueError("of another reason"))
