"""libp2p's encoding of RSA keys and peer IDs, written by hand: hivemind's own would bring torch into the agent."""

from __future__ import annotations

import hashlib

import base58

_RSA = b"\x08\x00\x12"  # protobuf: field 1 (key type) = 0 (RSA), then the tag of field 2 (the key's DER form)
_SHA256 = b"\x12\x20"  # multihash: the code of SHA-256, then its length


def encode_key(der: bytes) -> bytes:
    """libp2p's `PublicKey` or `PrivateKey` message for an RSA key; the latter is the p2p daemon's identity file."""
    return _RSA + _varint(len(der)) + der


def decode_key(message: bytes) -> bytes:
    """The DER form inside an `encode_key` message of an RSA key with 2048 bits or more; raises `ValueError`."""
    der = message[len(_RSA) + 2 :]  # such a key's DER form has 128 to 16 383 bytes: a length of two varint bytes
    if encode_key(der) != message:
        raise ValueError("not a libp2p RSA key")
    return der


def peer_id_from(public_info_der: bytes) -> str:
    """The base58 peer ID of a public key (DER, SubjectPublicKeyInfo): the multihash of its message."""
    digest = hashlib.sha256(encode_key(public_info_der)).digest()
    return base58.b58encode(_SHA256 + digest).decode("ascii")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
