"""Construction of a run's model, its evaluation mode, and its description in checkpoints.

`FAMILIES` defines each model family's transformers configuration and its functions for a training
batch. Every family is a transformers module, run in two parts, `encode` and `token_logits`, so that
the head, expensive with a large vocabulary, is computed only at positions with a label. ALBERT has
faster functions in `peer.models.albert`. `peer.models.objectives` calls these functions.

Some parameters have a gradient of zero by construction. In floating point this gradient is rounding
noise, which LAMB would turn into steps of the usual length. Peers would not diverge, because all
peers get identical averages, but the steps would be random, grow during the run and affect the
norms by which LAMB scales steps. Such parameters are therefore frozen. The most important one is
the bias of attention's keys, which adds the same value to all scores of a row and is cancelled by
softmax. If positions are scored against keys (DeBERTa's p2c), the bias has an effect and is
trained.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.models.deberta.modeling_deberta import DisentangledSelfAttention

from auth.errors import ConfigError
from peer.config.model import Model, generator_of, reformer_settings
from peer.config.run import RunConfig
from peer.data.tokenization.special_tokens import SpecialIds
from peer.models import albert
from peer.models.albert import use_onednn
from peer.models.packing import encode_apart
from peer.models.replaced_tokens import ReplacedTokens

if TYPE_CHECKING:
    from peer.data.batching.batches import Batch

HASH_SEED = 0  # seed of Reformer's random hashing when a loss must be reproducible
Settings = dict[str, Any]


def encode(model: Any, batch: Batch, wanted: Tensor, **more: Any) -> Tensor:
    """Return the last layer's output (n, hidden) at the flat token positions `wanted` (n,)."""
    segments = {} if batch.token_type_ids is None else {"token_type_ids": batch.token_type_ids}
    outputs = model.base_model(batch.input_ids, attention_mask=batch.attention_mask, **segments, **more)
    hidden: Tensor = outputs.last_hidden_state  # (b, l, hidden)
    return hidden.flatten(0, 1).index_select(0, wanted)


def compile_layers(model: Any, compiler: str | None) -> None:
    """Compile a model's layers with a backend on the next call; with None, undo the compilation."""
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == model.config.num_hidden_layers:
            for layer in module:
                layer._compiled_call_impl = None  # `nn.Module.compile` has no inverse
                if compiler is not None:
                    layer.compile(backend=compiler)


@dataclass(frozen=True)
class Family:
    """A model family; its functions take an instance of the class named by `model`."""

    model: str  # transformers' class with the objective's head
    settings: Callable[[Model, SpecialIds], Settings]  # keyword arguments for its transformers configuration
    token_logits: Callable[[Any, Tensor], Tensor]  # hidden (n, hidden) -> (n, vocabulary)
    encode: Callable[[Any, Batch, Tensor], Tensor] = encode
    order_logits: Callable[[Any, Tensor], Tensor] | None = None  # hidden of [CLS] (b, hidden) -> (b, 2)
    untrained: Callable[[Model], tuple[str, ...]] = lambda _: ()  # name patterns of frozen parameters
    prepare: Callable[[Any], None] = use_onednn  # called with the new module
    compile_layers: Callable[[Any, str | None], None] = compile_layers  # None: do not compile
    own_checkpointing: bool = False  # `encode` itself reads the encoder's `gradient_checkpointing`


def _sizes(model: Model, special: SpecialIds) -> dict[str, Any]:
    """Return the settings that have the same names in most families."""
    return {
        "hidden_size": model.hidden_size,
        "num_hidden_layers": model.num_hidden_layers,
        "num_attention_heads": model.num_attention_heads,
        "intermediate_size": model.intermediate_size,
        "max_position_embeddings": model.max_position_embeddings,
        "hidden_dropout_prob": model.hidden_dropout_prob,
        "attention_probs_dropout_prob": model.attention_probs_dropout_prob,
        "pad_token_id": _padding(special),
        "bos_token_id": None,
        "eos_token_id": None,
    }


def _padding(special: SpecialIds) -> int | None:
    """Return the padding token's id, or None if it is also the separator, which must be trained."""
    return None if special.pad == special.sep else special.pad


def _albert(model: Model, special: SpecialIds) -> Settings:
    own = {
        "embedding_size": model.embedding_size,
        "num_hidden_groups": model.num_hidden_groups,
        "hidden_act": "gelu_new",
        "classifier_dropout_prob": model.hidden_dropout_prob,
    }
    return _sizes(model, special) | own | model.options


def _bert(model: Model, special: SpecialIds) -> Settings:
    return _sizes(model, special) | model.options


def _roberta(model: Model, special: SpecialIds) -> Settings:
    own = {
        "type_vocab_size": 1,
        "layer_norm_eps": 1e-5,
        # Positions start after the padding id; lower positions are never used.
        "max_position_embeddings": model.max_position_embeddings + special.pad + 1,
        "bos_token_id": special.cls,
        "eos_token_id": special.sep,
    }
    return _sizes(model, special) | own | model.options


def _electra(model: Model, special: SpecialIds) -> Settings:
    return _sizes(model, special) | {"embedding_size": model.embedding_size} | model.options


def _deberta(model: Model, special: SpecialIds) -> Settings:
    """Return the settings of DeBERTa's base model; transformers' defaults are those of BERT."""
    own = {"relative_attention": True, "position_biased_input": False, "pos_att_type": ["c2p", "p2c"]}
    return _sizes(model, special) | own | model.options


def _deberta_v2(model: Model, special: SpecialIds) -> Settings:
    """Return the settings of the original DeBERTa-v3 base model."""
    own = {"position_buckets": 256, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
    return _deberta(model, special) | own | model.options


def _modernbert(model: Model, special: SpecialIds) -> Settings:
    """Return the settings of ModernBERT's base model, whose only bias is in the output layer."""
    sizes = _sizes(model, special)
    dropout = sizes.pop("hidden_dropout_prob")
    own = {
        "embedding_dropout": dropout,
        "mlp_dropout": dropout,
        "attention_dropout": sizes.pop("attention_probs_dropout_prob"),
        "classifier_dropout": dropout,
        "cls_token_id": special.cls,
        "sep_token_id": special.sep,
    }
    return sizes | own | model.options


def _reformer(model: Model, special: SpecialIds) -> Settings:
    sizes = _sizes(model, special)
    del sizes["attention_probs_dropout_prob"]  # Reformer has one dropout rate per kind of attention
    own = {"feed_forward_size": sizes.pop("intermediate_size"), "eos_token_id": special.sep}
    return sizes | own | reformer_settings(model)


def _gpt2(model: Model, special: SpecialIds) -> Settings:
    return {
        "n_embd": model.hidden_size,
        "n_layer": model.num_hidden_layers,
        "n_head": model.num_attention_heads,
        "n_inner": model.intermediate_size,
        "n_positions": model.max_position_embeddings,
        "embd_pdrop": model.hidden_dropout_prob,
        "resid_pdrop": model.hidden_dropout_prob,
        "attn_pdrop": model.attention_probs_dropout_prob,
        "pad_token_id": _padding(special),
        "bos_token_id": special.sep,
        "eos_token_id": special.sep,
        **model.options,
    }


def _untrained_in_deberta_v2(model: Model) -> tuple[str, ...]:
    """Return the parameters whose gradient is rounding noise with these attention options."""
    relative = model.options.get("relative_attention", True)
    scores = model.options.get("pos_att_type", ["c2p", "p2c"])
    untrained = ["*.pos_key_proj.bias"]
    if not (relative and isinstance(scores, list) and "p2c" in scores):
        untrained += ["*.self.key_proj.bias", "deberta.encoder.LayerNorm.bias"]
    return (*untrained, *([] if relative else ["deberta.encoder.LayerNorm.weight"]))  # normalizes relative positions


def _prepare_gpt2(model: Any) -> None:
    """Zero the gradient of the key bias, the middle third of the query-key-value bias."""
    use_onednn(model)

    def without_key(gradient: Tensor) -> Tensor:
        query, key, value = gradient.chunk(3)
        return torch.cat([query, torch.zeros_like(key), value])

    for block in model.transformer.h:
        block.attn.c_attn.bias.register_hook(without_key)


def _prepare_deberta(model: Any) -> None:
    """Enable attention in half precision, by casting queries to autocast's dtype.

    transformers masks scores with the lowest value of the queries' dtype. A float32 bias turns the
    queries into float32, whose lowest value overflows in half precision.
    """
    use_onednn(model)
    for module in model.modules():
        if isinstance(module, DisentangledSelfAttention):
            module.transpose_for_scores = partial(_transpose_for_scores, module)  # type: ignore[method-assign]


def _transpose_for_scores(attention: DisentangledSelfAttention, values: Tensor) -> Tensor:
    """Return transformers' result, cast to autocast's dtype under autocast."""
    heads: Tensor = DisentangledSelfAttention.transpose_for_scores(attention, values)  # type: ignore[no-untyped-call]
    device = heads.device.type
    return heads.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else heads


def _encode_modernbert(model: Any, batch: Batch, wanted: Tensor) -> Tensor:
    apart = getattr(model, "documents_apart", False)
    return encode_apart(model, batch, wanted) if apart else encode(model, batch, wanted)


def _encode_by_generator(model: ReplacedTokens, batch: Batch, wanted: Tensor) -> Tensor:
    return encode(model.generator, batch, wanted)


def _compile_both(model: ReplacedTokens, compiler: str | None) -> None:
    for part in (model.generator, model.discriminator):
        compile_layers(part, compiler)


def _generated_logits(model: Any, hidden: Tensor) -> Tensor:
    """Return the logits of ELECTRA's masked language model: (n, hidden) -> (n, vocabulary)."""
    logits: Tensor = model.generator_lm_head(model.generator_predictions(hidden))
    return logits


_KEY_BIASES = ("*.attention.self.key.bias",)
FAMILIES: Mapping[str, Family] = {
    "albert": Family(
        model="AlbertForPreTraining",
        settings=_albert,
        token_logits=albert.token_logits,
        encode=albert.encode,
        order_logits=albert.order_logits,
        compile_layers=albert.compile_layers,
        own_checkpointing=True,
        prepare=lambda _: None,  # our forward pass always uses oneDNN
    ),
    "bert": Family("BertForMaskedLM", _bert, lambda model, hidden: model.cls(hidden), untrained=lambda _: _KEY_BIASES),
    "roberta": Family(
        model="RobertaForMaskedLM",
        settings=_roberta,
        token_logits=lambda model, hidden: model.lm_head(hidden),
        untrained=lambda _: _KEY_BIASES,
    ),
    "electra": Family(
        model="ElectraForMaskedLM",
        settings=_electra,
        token_logits=_generated_logits,
        untrained=lambda _: _KEY_BIASES,
    ),
    "deberta": Family(
        model="DebertaForMaskedLM",
        settings=_deberta,
        token_logits=lambda model, hidden: model.cls(hidden),
        prepare=_prepare_deberta,
    ),
    "deberta-v2": Family(
        model="DebertaV2ForMaskedLM",
        settings=_deberta_v2,
        token_logits=lambda model, hidden: model.cls(hidden),
        untrained=_untrained_in_deberta_v2,
    ),
    "modernbert": Family(
        model="ModernBertForMaskedLM",
        settings=_modernbert,
        token_logits=lambda model, hidden: model.decoder(model.head(hidden)),
        encode=_encode_modernbert,
    ),
    "reformer": Family(
        model="ReformerForMaskedLM",
        settings=_reformer,
        token_logits=lambda model, hidden: model.lm_head.decoder(hidden),
        encode=partial(encode, use_cache=False),
        untrained=lambda _: ("lm_head.bias",),  # transformers' head does not use this bias
    ),
    "gpt2": Family(
        model="GPT2LMHeadModel",
        settings=_gpt2,
        token_logits=lambda model, hidden: model.lm_head(hidden),
        encode=partial(encode, use_cache=False),
        prepare=_prepare_gpt2,
    ),
}
# ELECTRA with the objective `rtd`: the generator predicts the tokens.
REPLACED_TOKENS = Family(
    model="ElectraForPreTraining",
    settings=_electra,
    token_logits=lambda model, hidden: _generated_logits(model.generator, hidden),
    encode=_encode_by_generator,
    untrained=lambda _: _KEY_BIASES,
    compile_layers=_compile_both,
)


def build_model(config: RunConfig, vocab_size: int, special: SpecialIds) -> PreTrainedModel:
    """Build the run's model in training mode, with initial weights from the run's seed.

    The weights are equal on every machine. Weights that the objective does not use are frozen, so
    they do not decay. Raises `ConfigError` if transformers rejects the configuration.
    """
    replaced = config.objective.name == "rtd"
    family = REPLACED_TOKENS if replaced else FAMILIES[config.model.architecture]
    kind = getattr(transformers, family.model)

    def settings_of(model: Model) -> Any:
        return kind.config_class(vocab_size=vocab_size, **family.settings(model, special))

    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(config.run.seed)
            if replaced:
                generator = settings_of(generator_of(config.model, config.objective.generator_size))
                model: PreTrainedModel = ReplacedTokens(settings_of(config.model), generator)
            else:
                model = kind(settings_of(config.model))
    except Exception as error:  # transformers raises errors of many types for invalid sizes
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(f"This `model` cannot be built as a `{config.model.architecture}`: {reason:.300}.") from error
    _freeze(model, (*family.untrained(config.model), *_unused_heads(config)))
    family.prepare(model)
    model.documents_apart = not config.data.cross_document_attention  # type: ignore[assignment]
    model.train()
    return model


def copy_model(model: PreTrainedModel) -> PreTrainedModel:
    """Copy a model for training; reapply the family's `prepare`, as hooks are not copied."""
    copied = deepcopy(model)
    family_of(model).prepare(copied)
    return copied


def family_of(model: PreTrainedModel) -> Family:
    """Return the family of a model."""
    return REPLACED_TOKENS if isinstance(model, ReplacedTokens) else FAMILIES[model.config.model_type]


def checkpoint_config(model: PreTrainedModel) -> dict[str, Any]:
    """Return the content of `config.json`, from which transformers rebuilds this model."""
    content = model.config.to_dict() | {"architectures": [family_of(model).model]}
    return content | ({"hash_seed": HASH_SEED} if _hashing(model) else {})


def save_memory(model: PreTrainedModel) -> bool:
    """Enable gradient checkpointing (Chen et al. 2016, arXiv 1604.06174).

    Activations are then recomputed instead of stored. Returns False if checkpointing is already
    enabled, or if transformers does not support it for this family.
    """
    if _saves_memory(model):
        return False
    if family_of(model).own_checkpointing:
        model.base_model.get_submodule("encoder").gradient_checkpointing = True  # type: ignore[assignment]
    elif model.supports_gradient_checkpointing:
        # This name is deprecated in transformers 5.23, but is the only one in 5.20, the last for
        # Python 3.10.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    return _saves_memory(model)


def _saves_memory(model: PreTrainedModel) -> bool:
    return any(getattr(module, "gradient_checkpointing", False) for module in model.modules())


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Disable dropout and gradients and fix hashing within the context, for reproducible losses."""
    was_training, hashing = model.training, _hashing(model)
    devices = [model.device] if model.device.type == "cuda" else []
    model.train(False)
    for layer in hashing:
        layer.hash_seed = HASH_SEED
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            yield
    finally:
        for layer in hashing:
            layer.hash_seed = None
        model.train(was_training)


def _hashing(model: PreTrainedModel) -> list[Any]:
    """Return Reformer's layers with random hashing, which differs in each training pass."""
    return [module for module in model.modules() if hasattr(module, "hash_seed")]


def _unused_heads(config: RunConfig) -> tuple[str, ...]:
    without_order = config.model.architecture == "albert" and config.objective.name == "mlm"
    return ("albert.pooler.*", "sop_classifier.*") if without_order else ()


def _freeze(model: nn.Module, patterns: tuple[str, ...]) -> None:
    for name, parameter in model.named_parameters():
        if any(fnmatch(name, pattern) for pattern in patterns):
            parameter.requires_grad_(False)
