"""The device that `--device` means, on machines with and without GPUs, and when compiling layers is worth a try."""

from __future__ import annotations

import pytest

from auth.errors import ConfigError
from peer.runtime.devices import CompileMode, Stay, Trial, check_device_name, gpu_numbers, pick_device, worth_trying


@pytest.mark.parametrize(
    ("name", "gpus", "tpu", "mps", "device"),
    [
        ("auto", 0, False, False, "cpu"),
        ("auto", 1, False, False, "cuda:0"),
        ("auto", 3, False, False, "cuda:0,1,2"),
        ("auto", 0, False, True, "mps"),
        ("auto", 1, False, True, "cuda:0"),
        ("auto", 1, True, False, "tpu"),
        ("cpu", 3, True, True, "cpu"),
        ("cuda", 4, True, False, "cuda:0,1,2,3"),
        ("cuda:1", 4, True, False, "cuda:1"),
        ("cuda:2,0", 4, True, False, "cuda:0,2"),
        ("cuda:3,3", 4, True, False, "cuda:3"),
        ("tpu", 1, False, False, "tpu"),
        ("jax", 1, False, False, "jax"),
    ],
)
def test_a_device_is_picked(name: str, gpus: int, tpu: bool, mps: bool, device: str) -> None:
    """Unasked the best one, all GPUs or those whose numbers are given; JAX finds its devices when it starts."""
    assert pick_device(name, gpus, tpu, mps) == device


@pytest.mark.parametrize(
    ("name", "gpus", "sentence"),
    [
        ("cuda", 0, "`--device cuda`: PyTorch finds no GPU here; use `--device cpu`"),
        ("cuda:1", 0, "`--device cuda:1`: PyTorch finds no GPU here"),
        ("cuda:1", 1, "`--device cuda:1`: there is no GPU 1 here; only `cuda:0` is."),
        ("cuda:0,5", 3, "there is no GPU 5 here; `cuda:0` to `cuda:2` are."),
        ("mps", 1, "`--device mps`: PyTorch finds no Apple GPU here; use `--device cpu`."),
    ],
)
def test_a_missing_device_is_one_clear_error(name: str, gpus: int, sentence: str) -> None:
    """Who asks for what is not there reads what is."""
    with pytest.raises(ConfigError) as raised:
        pick_device(name, gpus, tpu=False)
    assert sentence in str(raised.value)


@pytest.mark.parametrize(
    "name", ["abacus", "cuda:", "cuda:x", "cuda:0,", "cuda:-1", "cuda: 1", "cpu:0", "", "cuda:99999"]
)
def test_what_no_machine_has_is_one_clear_error(name: str) -> None:
    """The error names what was asked for and what is allowed; the command says it before anything starts."""
    for check in check_device_name, lambda name: pick_device(name, gpus=1, tpu=False):
        with pytest.raises(ConfigError, match=r"must be auto, cpu, cuda, mps, tpu or jax; `cuda:1`"):
            check(name)


def test_names_that_list_no_gpu_have_no_numbers() -> None:
    """Neither `cuda`, which means all of them, nor another device."""
    assert gpu_numbers("cuda:2,0,2") == (0, 2)
    assert gpu_numbers("cuda") == gpu_numbers("cpu") == ()


LONG = Stay(steps_left=10_000, hours=None)


@pytest.mark.parametrize(
    ("mode", "on_gpus", "stay", "wanted", "reason"),
    [
        ("auto", True, LONG, True, ""),
        ("auto", True, Stay(10_000, hours=8.0), True, ""),
        ("auto", False, LONG, False, "no GPU"),
        ("auto", True, Stay(50, hours=None), False, "only 50 steps left"),
        ("auto", True, Stay(10_000, hours=0.5), False, "short"),
        ("on", False, Stay(1, hours=0.1), True, "--compile on"),
        ("off", True, LONG, False, "--compile off"),
    ],
)
def test_it_has_to_pay_off(mode: CompileMode, on_gpus: bool, stay: Stay, wanted: bool, reason: str) -> None:
    """Unasked only on GPUs, for long enough; what was asked for is done."""
    found, why = worth_trying(mode, on_gpus, stay)
    assert found is wanted
    assert reason in why


def test_a_little_faster_is_not_enough() -> None:
    """Compiled layers are kept for five percent and more."""
    assert Trial(plain_s=1.0, compile_s=60.0, compiled_s=0.9).pays
    assert not Trial(plain_s=1.0, compile_s=0.0, compiled_s=0.97).pays
    assert not Trial(plain_s=1.0, compile_s=0.0, compiled_s=1.2).pays
