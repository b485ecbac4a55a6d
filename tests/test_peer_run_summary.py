"""What strangers may know of a run."""

from __future__ import annotations

from peer.run_config import RunConfig
from peer.run_summary import public_part

CONFIG = {
    "run": {"name": "secretive", "description": "for friends", "language": "bn"},
    "model": {"architecture": "bert", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3},
    "objective": {"name": "mlm"},
    "tokenizer": {"path": "/home/ada/tokenizer", "vocab_size": 5000},
    "data": {
        "sources": [{"kind": "text", "path": "/home/ada/letters.txt"}],
        "sequence_length": 64,
        "microbatch_size": 2,
    },
    "averaging": {"target_batch_size": 100},
    "phases": [{"from_step": 10, "target_batch_size": 200}],
}


def test_sizes_are_public_and_sources_are_not() -> None:
    """A machine can be measured by it, and nothing says where the operator's text or tokenizer lies."""
    config = RunConfig.from_mapping(CONFIG)
    public = public_part(config)
    assert public.model == config.model
    assert public.objective == config.objective
    assert public.tokenizer.vocab_size == 5000
    assert (public.data.sequence_length, public.data.microbatch_size) == (64, 2)
    assert public.averaging.target_batch_size == 100
    assert "ada" not in public.to_json()
    assert "friends" not in public.to_json()


def test_it_is_that_of_the_phase() -> None:
    """Later in the run the later sizes are told."""
    assert public_part(RunConfig.from_mapping(CONFIG).at_step(10)).averaging.target_batch_size == 200


def test_it_travels_as_a_run_configuration() -> None:
    """What is sent is read by the same rules as the configuration of a join."""
    public = public_part(RunConfig.from_mapping(CONFIG))
    assert RunConfig.from_json(public.to_json()) == public
