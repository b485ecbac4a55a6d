"""A run file's sections, each a frozen pydantic model; `run` puts them together and reads the file.

Every process imports `run`; nothing here imports torch. A section is imported from its own module.
"""
