"""The sections of a run file, one module for each group; `peer.run_config` puts them together.

base.py        what all sections have in common
data.py        sources, samples
model.py       model, objective
phases.py      phases
tokenizer.py   the run's tokenizer; tokenizer_presets.py, tokenizer_steps.py what it is made of
training.py    optimizer, schedule, averaging
validation.py  what is held out, and how much of it is evaluated
"""
