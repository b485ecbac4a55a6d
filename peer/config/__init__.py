"""The sections of a run file as frozen pydantic models; `run` combines them and loads the file.

Every process imports `run`; import other sections from their modules. No section imports torch.
"""
