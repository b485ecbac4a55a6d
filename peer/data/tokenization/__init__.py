"""Sentences, tokenizers and token ids.

`tokenizers` loads a run's tokenizer, `encoding` turns documents into chunks of ids, and `training`
learns a vocabulary. `special_tokens`, `words` and `inspection` are also used by other folders;
`sentences` and `sentencepiece` are internal.
"""
