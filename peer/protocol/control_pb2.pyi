from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ChallengeRequest(_message.Message):
    __slots__ = ("protocol_version",)
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    def __init__(self, protocol_version: _Optional[int] = ...) -> None: ...

class ChallengeReply(_message.Message):
    __slots__ = ("nonce", "server_time", "run_name", "protocol_version", "software_version", "login_providers", "software_address")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_FIELD_NUMBER: _ClassVar[int]
    RUN_NAME_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOGIN_PROVIDERS_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    server_time: float
    run_name: str
    protocol_version: int
    software_version: str
    login_providers: _containers.RepeatedCompositeFieldContainer[LoginProvider]
    software_address: str
    def __init__(self, nonce: _Optional[bytes] = ..., server_time: _Optional[float] = ..., run_name: _Optional[str] = ..., protocol_version: _Optional[int] = ..., software_version: _Optional[str] = ..., login_providers: _Optional[_Iterable[_Union[LoginProvider, _Mapping]]] = ..., software_address: _Optional[str] = ...) -> None: ...

class LoginProvider(_message.Message):
    __slots__ = ("name", "title")
    NAME_FIELD_NUMBER: _ClassVar[int]
    TITLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    title: str
    def __init__(self, name: _Optional[str] = ..., title: _Optional[str] = ...) -> None: ...

class JoinRequest(_message.Message):
    __slots__ = ("nonce", "public_key", "signature", "invite_code", "role", "software_version", "receipt_key")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    INVITE_CODE_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_KEY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    public_key: bytes
    signature: bytes
    invite_code: str
    role: str
    software_version: str
    receipt_key: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., invite_code: _Optional[str] = ..., role: _Optional[str] = ..., software_version: _Optional[str] = ..., receipt_key: _Optional[bytes] = ...) -> None: ...

class RunFile(_message.Message):
    __slots__ = ("name", "size_bytes", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size_bytes: int
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class JoinReply(_message.Message):
    __slots__ = ("token", "authority_key", "run_config_json", "files", "initial_peers", "revocations", "member", "device_id", "device_number", "relays")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    AUTHORITY_KEY_FIELD_NUMBER: _ClassVar[int]
    RUN_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    INITIAL_PEERS_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    DEVICE_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    RELAYS_FIELD_NUMBER: _ClassVar[int]
    token: str
    authority_key: bytes
    run_config_json: str
    files: _containers.RepeatedCompositeFieldContainer[RunFile]
    initial_peers: _containers.RepeatedScalarFieldContainer[str]
    revocations: str
    member: str
    device_id: str
    device_number: int
    relays: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, token: _Optional[str] = ..., authority_key: _Optional[bytes] = ..., run_config_json: _Optional[str] = ..., files: _Optional[_Iterable[_Union[RunFile, _Mapping]]] = ..., initial_peers: _Optional[_Iterable[str]] = ..., revocations: _Optional[str] = ..., member: _Optional[str] = ..., device_id: _Optional[str] = ..., device_number: _Optional[int] = ..., relays: _Optional[_Iterable[str]] = ...) -> None: ...

class LoginRequest(_message.Message):
    __slots__ = ("nonce", "public_key", "signature", "provider", "role", "software_version", "receipt_key")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    PROVIDER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_KEY_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    public_key: bytes
    signature: bytes
    provider: str
    role: str
    software_version: str
    receipt_key: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., provider: _Optional[str] = ..., role: _Optional[str] = ..., software_version: _Optional[str] = ..., receipt_key: _Optional[bytes] = ...) -> None: ...

class LoginPrompt(_message.Message):
    __slots__ = ("title", "user_code", "address", "complete_address", "expires_in_s")
    TITLE_FIELD_NUMBER: _ClassVar[int]
    USER_CODE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_IN_S_FIELD_NUMBER: _ClassVar[int]
    title: str
    user_code: str
    address: str
    complete_address: str
    expires_in_s: float
    def __init__(self, title: _Optional[str] = ..., user_code: _Optional[str] = ..., address: _Optional[str] = ..., complete_address: _Optional[str] = ..., expires_in_s: _Optional[float] = ...) -> None: ...

class LoginUpdate(_message.Message):
    __slots__ = ("prompt", "admitted")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    prompt: LoginPrompt
    admitted: JoinReply
    def __init__(self, prompt: _Optional[_Union[LoginPrompt, _Mapping]] = ..., admitted: _Optional[_Union[JoinReply, _Mapping]] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("nonce", "public_key", "signature")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    public_key: bytes
    signature: bytes
    def __init__(self, nonce: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class ChooseNameRequest(_message.Message):
    __slots__ = ("nonce", "public_key", "signature", "display_name", "anonymous")
    NONCE_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    ANONYMOUS_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    public_key: bytes
    signature: bytes
    display_name: str
    anonymous: bool
    def __init__(self, nonce: _Optional[bytes] = ..., public_key: _Optional[bytes] = ..., signature: _Optional[bytes] = ..., display_name: _Optional[str] = ..., anonymous: _Optional[bool] = ...) -> None: ...

class ChooseNameReply(_message.Message):
    __slots__ = ("shown", "hidden")
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    HIDDEN_FIELD_NUMBER: _ClassVar[int]
    shown: str
    hidden: bool
    def __init__(self, shown: _Optional[str] = ..., hidden: _Optional[bool] = ...) -> None: ...

class FetchFileRequest(_message.Message):
    __slots__ = ("token", "name")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    token: str
    name: str
    def __init__(self, token: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class FileChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class CheckpointRequest(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: str
    def __init__(self, token: _Optional[str] = ...) -> None: ...

class CheckpointReply(_message.Message):
    __slots__ = ("address", "step", "swarm_step", "files")
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SWARM_STEP_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    address: str
    step: int
    swarm_step: int
    files: _containers.RepeatedCompositeFieldContainer[RunFile]
    def __init__(self, address: _Optional[str] = ..., step: _Optional[int] = ..., swarm_step: _Optional[int] = ..., files: _Optional[_Iterable[_Union[RunFile, _Mapping]]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("token", "signature", "hardware", "software_version")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    HARDWARE_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    token: str
    signature: bytes
    hardware: str
    software_version: str
    def __init__(self, token: _Optional[str] = ..., signature: _Optional[bytes] = ..., hardware: _Optional[str] = ..., software_version: _Optional[str] = ...) -> None: ...

class StepReport(_message.Message):
    __slots__ = ("seq", "step", "samples", "loss", "mlm_loss", "sop_loss", "group_size", "group_samples", "averaging_s", "samples_per_second", "lost_samples", "lost_reason", "data_wait_s", "era", "time", "elapsed_s", "averaged_bytes", "lost", "receipt")
    class LostEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SEQ_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    MLM_LOSS_FIELD_NUMBER: _ClassVar[int]
    SOP_LOSS_FIELD_NUMBER: _ClassVar[int]
    GROUP_SIZE_FIELD_NUMBER: _ClassVar[int]
    GROUP_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    AVERAGING_S_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LOST_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    LOST_REASON_FIELD_NUMBER: _ClassVar[int]
    DATA_WAIT_S_FIELD_NUMBER: _ClassVar[int]
    ERA_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    AVERAGED_BYTES_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    seq: int
    step: int
    samples: int
    loss: float
    mlm_loss: float
    sop_loss: float
    group_size: int
    group_samples: int
    averaging_s: float
    samples_per_second: float
    lost_samples: int
    lost_reason: str
    data_wait_s: float
    era: int
    time: float
    elapsed_s: float
    averaged_bytes: int
    lost: _containers.ScalarMap[str, int]
    receipt: str
    def __init__(self, seq: _Optional[int] = ..., step: _Optional[int] = ..., samples: _Optional[int] = ..., loss: _Optional[float] = ..., mlm_loss: _Optional[float] = ..., sop_loss: _Optional[float] = ..., group_size: _Optional[int] = ..., group_samples: _Optional[int] = ..., averaging_s: _Optional[float] = ..., samples_per_second: _Optional[float] = ..., lost_samples: _Optional[int] = ..., lost_reason: _Optional[str] = ..., data_wait_s: _Optional[float] = ..., era: _Optional[int] = ..., time: _Optional[float] = ..., elapsed_s: _Optional[float] = ..., averaged_bytes: _Optional[int] = ..., lost: _Optional[_Mapping[str, int]] = ..., receipt: _Optional[str] = ...) -> None: ...

class Presence(_message.Message):
    __slots__ = ("step", "own_samples", "samples_per_second", "state", "relay_addresses", "device", "apart")
    STEP_FIELD_NUMBER: _ClassVar[int]
    OWN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    RELAY_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    APART_FIELD_NUMBER: _ClassVar[int]
    step: int
    own_samples: int
    samples_per_second: float
    state: str
    relay_addresses: _containers.RepeatedScalarFieldContainer[str]
    device: str
    apart: bool
    def __init__(self, step: _Optional[int] = ..., own_samples: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., state: _Optional[str] = ..., relay_addresses: _Optional[_Iterable[str]] = ..., device: _Optional[str] = ..., apart: _Optional[bool] = ...) -> None: ...

class PeerMessage(_message.Message):
    __slots__ = ("hello", "report", "presence", "goodbye", "suspicion", "lost")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    SUSPICION_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    report: StepReport
    presence: Presence
    goodbye: Goodbye
    suspicion: Suspicion
    lost: Lost
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[StepReport, _Mapping]] = ..., presence: _Optional[_Union[Presence, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., suspicion: _Optional[_Union[Suspicion, _Mapping]] = ..., lost: _Optional[_Union[Lost, _Mapping]] = ...) -> None: ...

class Suspicion(_message.Message):
    __slots__ = ("peer_id", "kind", "step", "detail")
    PEER_ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    peer_id: str
    kind: str
    step: int
    detail: str
    def __init__(self, peer_id: _Optional[str] = ..., kind: _Optional[str] = ..., step: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Lost(_message.Message):
    __slots__ = ("seq", "time", "step", "by_cause")
    class ByCauseEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    time: float
    step: int
    by_cause: _containers.ScalarMap[str, int]
    def __init__(self, seq: _Optional[int] = ..., time: _Optional[float] = ..., step: _Optional[int] = ..., by_cause: _Optional[_Mapping[str, int]] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class SessionChallenge(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: bytes
    def __init__(self, nonce: _Optional[bytes] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("session_id", "member", "software_version", "hears_suspicions", "hears_losses", "software_address", "last_seq")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_VERSION_FIELD_NUMBER: _ClassVar[int]
    HEARS_SUSPICIONS_FIELD_NUMBER: _ClassVar[int]
    HEARS_LOSSES_FIELD_NUMBER: _ClassVar[int]
    SOFTWARE_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQ_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    member: str
    software_version: str
    hears_suspicions: bool
    hears_losses: bool
    software_address: str
    last_seq: int
    def __init__(self, session_id: _Optional[str] = ..., member: _Optional[str] = ..., software_version: _Optional[str] = ..., hears_suspicions: _Optional[bool] = ..., hears_losses: _Optional[bool] = ..., software_address: _Optional[str] = ..., last_seq: _Optional[int] = ...) -> None: ...

class ReportAck(_message.Message):
    __slots__ = ("seq", "accepted", "reason", "ahead")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    seq: int
    accepted: bool
    reason: str
    ahead: bool
    def __init__(self, seq: _Optional[int] = ..., accepted: _Optional[bool] = ..., reason: _Optional[str] = ..., ahead: _Optional[bool] = ...) -> None: ...

class ServerNotice(_message.Message):
    __slots__ = ("level", "text", "announced")
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_FIELD_NUMBER: _ClassVar[int]
    level: str
    text: str
    announced: bool
    def __init__(self, level: _Optional[str] = ..., text: _Optional[str] = ..., announced: _Optional[bool] = ...) -> None: ...

class Standing(_message.Message):
    __slots__ = ("own_samples", "rank", "members", "samples_per_second", "time_left_s")
    OWN_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    TIME_LEFT_S_FIELD_NUMBER: _ClassVar[int]
    own_samples: int
    rank: int
    members: int
    samples_per_second: float
    time_left_s: float
    def __init__(self, own_samples: _Optional[int] = ..., rank: _Optional[int] = ..., members: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., time_left_s: _Optional[float] = ...) -> None: ...

class CoordinatorMessage(_message.Message):
    __slots__ = ("server_time", "challenge", "welcome", "ack", "token", "revocations", "notice", "standing", "revoked", "swarm", "pace")
    SERVER_TIME_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    NOTICE_FIELD_NUMBER: _ClassVar[int]
    STANDING_FIELD_NUMBER: _ClassVar[int]
    REVOKED_FIELD_NUMBER: _ClassVar[int]
    SWARM_FIELD_NUMBER: _ClassVar[int]
    PACE_FIELD_NUMBER: _ClassVar[int]
    server_time: float
    challenge: SessionChallenge
    welcome: Welcome
    ack: ReportAck
    token: str
    revocations: str
    notice: ServerNotice
    standing: Standing
    revoked: RevokedNotice
    swarm: SwarmAddresses
    pace: PresencePace
    def __init__(self, server_time: _Optional[float] = ..., challenge: _Optional[_Union[SessionChallenge, _Mapping]] = ..., welcome: _Optional[_Union[Welcome, _Mapping]] = ..., ack: _Optional[_Union[ReportAck, _Mapping]] = ..., token: _Optional[str] = ..., revocations: _Optional[str] = ..., notice: _Optional[_Union[ServerNotice, _Mapping]] = ..., standing: _Optional[_Union[Standing, _Mapping]] = ..., revoked: _Optional[_Union[RevokedNotice, _Mapping]] = ..., swarm: _Optional[_Union[SwarmAddresses, _Mapping]] = ..., pace: _Optional[_Union[PresencePace, _Mapping]] = ...) -> None: ...

class PresencePace(_message.Message):
    __slots__ = ("every_s",)
    EVERY_S_FIELD_NUMBER: _ClassVar[int]
    every_s: float
    def __init__(self, every_s: _Optional[float] = ...) -> None: ...

class SwarmAddresses(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, addresses: _Optional[_Iterable[str]] = ...) -> None: ...

class RevokedNotice(_message.Message):
    __slots__ = ("reason", "quarantined")
    REASON_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    reason: str
    quarantined: bool
    def __init__(self, reason: _Optional[str] = ..., quarantined: _Optional[bool] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("run_config_json", "swarm_addresses", "observed_address", "samples_per_second")
    RUN_CONFIG_JSON_FIELD_NUMBER: _ClassVar[int]
    SWARM_ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    run_config_json: str
    swarm_addresses: _containers.RepeatedScalarFieldContainer[str]
    observed_address: str
    samples_per_second: float
    def __init__(self, run_config_json: _Optional[str] = ..., swarm_addresses: _Optional[_Iterable[str]] = ..., observed_address: _Optional[str] = ..., samples_per_second: _Optional[float] = ...) -> None: ...

class ProbeUp(_message.Message):
    __slots__ = ("download_bytes", "data")
    DOWNLOAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    download_bytes: int
    data: bytes
    def __init__(self, download_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class ProbeDown(_message.Message):
    __slots__ = ("received_bytes", "data")
    RECEIVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    received_bytes: int
    data: bytes
    def __init__(self, received_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("port", "udp_port")
    PORT_FIELD_NUMBER: _ClassVar[int]
    UDP_PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    udp_port: int
    def __init__(self, port: _Optional[int] = ..., udp_port: _Optional[int] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("word",)
    WORD_FIELD_NUMBER: _ClassVar[int]
    word: bytes
    def __init__(self, word: _Optional[bytes] = ...) -> None: ...
