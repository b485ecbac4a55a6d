"""A BERT that is made within a tenth of a second, with a tokenizer of whole words: what evaluations are tried on."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SENTENCES = "ada grace lives works in near the berlin paris . a good bad film was very he she is not"
WORDS = (*SENTENCES.split(), "as", "where", "who", "doctor", "nurse", "?")
MAX_LENGTH = 32


def save_tiny_bert(folder: Path, seed: int = 0) -> Path:
    """Model and tokenizer in a folder that plain transformers loads; other weights for each seed."""
    vocabulary = {token: number for number, token in enumerate((*SPECIAL, *WORDS))}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    ends = [("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=MAX_LENGTH,
    )
    torch.manual_seed(seed)
    model = BertForMaskedLM(
        BertConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=MAX_LENGTH,
        )
    )
    model.save_pretrained(folder)
    fast.save_pretrained(folder)
    return folder
