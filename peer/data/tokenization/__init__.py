"""Sentences, tokenizers and token ids.

`tokenizers` loads a run's tokenizer, `encoding` turns documents into chunks of ids, `training` learns a vocabulary.
Other packages import these three and `special_tokens`, `words`, `inspection`.
"""
