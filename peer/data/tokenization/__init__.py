"""Sentences, tokenizers and token ids.

`tokenizers` loads a run's tokenizer, `encoding` turns documents into chunks of ids, and `training`
learns a vocabulary. Other folders import these three, `special_tokens`, `words` and `inspection`,
but not `sentences` and `sentencepiece`.
"""
