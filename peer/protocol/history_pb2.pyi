from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class AverageAfter(_message.Message):
    __slots__ = ("era", "step")
    ERA_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    era: int
    step: int
    def __init__(self, era: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...
