from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Statement(_message.Message):
    __slots__ = ("group_id", "digests")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    digests: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group_id: _Optional[bytes] = ..., digests: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Question(_message.Message):
    __slots__ = ("wanted", "reducer", "part", "attestations")
    WANTED_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    ATTESTATIONS_FIELD_NUMBER: _ClassVar[int]
    wanted: bool
    reducer: int
    part: int
    attestations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, wanted: _Optional[bool] = ..., reducer: _Optional[int] = ..., part: _Optional[int] = ..., attestations: _Optional[_Iterable[int]] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("group_id", "tensor", "digests", "attestations")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    ATTESTATIONS_FIELD_NUMBER: _ClassVar[int]
    group_id: bytes
    tensor: bytes
    digests: bytes
    attestations: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, group_id: _Optional[bytes] = ..., tensor: _Optional[bytes] = ..., digests: _Optional[bytes] = ..., attestations: _Optional[_Iterable[bytes]] = ...) -> None: ...
