"""The sections of a run file as frozen pydantic models; `run` combines them and loads the file.

Every process imports `run`; other sections are imported from their modules. None imports torch.
"""
