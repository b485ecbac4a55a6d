"""From documents to batches: sources, sentences, tokens, packed samples, masks.

documents.py       a run's sources mixed, in the device's order, with a position to return to
source_stream.py   one source, read ahead in a thread: source_reader.py in blocks, blocks.py from unit to unit
dealing.py         which units a device takes up, and when
faults.py          what is done about those that cannot be read
units.py           what sources are cut into: file_units.py, dataset_units.py, builtin_corpus.py
addresses.py       files here, on the web, in object storage; file_reading.py their bytes, lines.py their documents
filters.py         which documents of a source are read
held_out.py        which ones are kept from training
whole_corpus.py    sources read once, in order, to prepare them
perplexity_sampling.py     which part of a corpus to keep, as functions of perplexities
scoring.py         what gives perplexities: kenlm_scoring.py, unigram_scoring.py
duplicates.py      copies, exact and near
corpus_sample.py   an even sample of what passes by
perplexity_tally.py        what was kept, counted
document_writer.py documents as JSON Lines
sentences.py       where one sentence ends and the next begins
tokenizers.py      the run's tokenizer: made or imported, saved, loaded
special_tokens.py  the tokens that are no text: names, ids
tokenizer_pipelines.py     its normalizers and pre-tokenizers, as the run file lists them
tokenizer_training.py      its vocabulary, learnt from a stream
rare_words.py              what is not worth a trainer's memory
sentencepiece_training.py  the same by the sentencepiece library
sentencepiece_models.py    sentencepiece's models as tokenizers
tokenizer_fit.py           how well it fits a text
tokenizer_inspection.py    what it is made of, and what is strange about it
encoding.py        documents -> chunks of token ids, each text tokenized once at most
word_memory.py     the ids of the words that have come before
packing.py         chunks -> pairs of segments of exactly the sequence length; no token lost
contiguous_packing.py  chunks -> a plain run of text cut into full samples; no token lost
samples.py         packed tokens -> samples with special tokens, segments and labels
word_starts.py     where words begin among token ids
masking.py         samples -> masked samples
labels.py          samples with what is to be guessed
hashing.py        a document's hash: what all peers decide alike
prefetch.py        an iterator that runs ahead in a thread
batches.py         all of it together: `open_batches`
"""
