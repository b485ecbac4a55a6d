"""Keys of the authority, the devices and the TLS server, and libp2p's encoding of RSA keys.

The authority (Ed25519) signs tokens and revocations. A device's RSA key is also its libp2p identity
(hivemind signs with RSA), so the transport and the control plane prove the same identity. Receipts
are published, so they are signed with a separate key per run, which does not reveal this identity.
It also signs DHT records, because its signatures are short. The coordinator's TLS certificate is
self-signed; peers trust it because the join link contains its fingerprint.

This module reimplements libp2p's encoding: importing hivemind's would load torch in the agent.
"""

from __future__ import annotations

import hashlib
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Literal

import base58
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import NameOID

from auth.errors import RequestError, StorageError
from auth.files import write_private

_RSA = b"\x08\x00\x12"  # protobuf field 1 (key type) = 0 (RSA), then the tag of field 2 (the key in DER)
_SHA256 = b"\x12\x20"  # multihash prefix: code of SHA-256, length of the digest
Purpose = Literal["join", "login", "name", "renew", "session"]
RSA_BITS = 2048
RSA_EXPONENT = 65537
MAX_RSA_BITS = 4096
MAX_PUBLIC_KEY_BYTES = 1024
MOST_PARSED = 4096  # maximum number of cached public keys; above the devices of the largest run
TLS_NAME = "manyhands"  # the certificate's only name; clients verify it regardless of the address
# Trust is based on the fingerprint, so strict validity dates would only cause failures on machines
# with a wrong clock. The end date is RFC 5280's "no well-defined expiration date".
_VALID_FROM = datetime(2020, 1, 1, tzinfo=timezone.utc)
_VALID_UNTIL = datetime(9999, 12, 31, 23, 59, 59, tzinfo=timezone.utc)
CHALLENGE_LABEL = b"manyhands-challenge-v1"
RECEIPT_KEY_LABEL = b"manyhands receipt key v1"
RECEIPT_KEY_BYTES = 32  # size of the Ed25519 public key
_RSA_PADDING = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=padding.PSS.MAX_LENGTH)


@dataclass(frozen=True)
class AuthorityKey:
    """The run's Ed25519 key, whose holder controls admission to the run."""

    private_key: ed25519.Ed25519PrivateKey
    handover: str = ""  # previous key's signature over this key, or ""; sent with each signature

    @classmethod
    def generate(cls) -> AuthorityKey:
        """Generate the authority key of a new run."""
        return cls(ed25519.Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path) -> AuthorityKey:
        """Read a key file written by `save`."""
        try:
            return cls(ed25519.Ed25519PrivateKey.from_private_bytes(_read_key(path)))
        except ValueError as error:
            raise StorageError(f"{path} does not hold an authority key of 32 bytes.") from error

    def save(self, path: Path) -> None:
        """Write the raw key to a file that only the owner can read."""
        write_private(path, self.private_key.private_bytes_raw())

    @property
    def public_bytes(self) -> bytes:
        """The raw public key (32 bytes), which every peer receives on joining."""
        return self.private_key.public_key().public_bytes_raw()


@dataclass(frozen=True)
class ReceiptKey:
    """The Ed25519 key for a device's receipts and DHT records in one run; it does not identify the device."""

    private_key: ed25519.Ed25519PrivateKey

    @property
    def public_bytes(self) -> bytes:
        """The raw public key (32 bytes), which the coordinator receives with every join."""
        return self.private_key.public_key().public_bytes_raw()

    @property
    def pseudonym(self) -> str:
        """The device's name in receipts: the public key in hexadecimal."""
        return self.public_bytes.hex()


@dataclass(frozen=True)
class DeviceKey:
    """A device's RSA key, stored in the identity file of hivemind's p2p daemon."""

    private_key: rsa.RSAPrivateKey

    @classmethod
    def load_or_create(cls, path: Path) -> DeviceKey:
        """Load the device's key, or create it on first use; concurrent processes get the same key."""
        if not path.exists():
            private_key = rsa.generate_private_key(public_exponent=RSA_EXPONENT, key_size=RSA_BITS)
            write_private(path, encode_key(cls(private_key).private_der), replace=False)
        try:
            key = serialization.load_der_private_key(decode_key(_read_key(path)), password=None)
        except (ValueError, UnsupportedAlgorithm) as error:
            raise StorageError(f"{path} does not hold a libp2p RSA key: move it away to get a new one.") from error
        if not isinstance(key, rsa.RSAPrivateKey):
            raise StorageError(f"{path} holds a key that is not RSA: move it away to get a new one.")
        return cls(key)

    @property
    def private_der(self) -> bytes:
        """The private key in PKCS#1 DER, the format of the identity file."""
        return self.private_key.private_bytes(
            serialization.Encoding.DER, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )

    @property
    def public_key(self) -> bytes:
        """The public key in OpenSSH format, as in hivemind's DHT records."""
        return _openssh(self.private_key.public_key())

    @property
    def peer_id(self) -> str:
        """The libp2p peer ID in base58."""
        return peer_id_of(self.public_key)

    def sign(self, data: bytes) -> bytes:
        """Return the RSA-PSS signature of `data` with SHA-256."""
        return self.private_key.sign(data, _RSA_PADDING, hashes.SHA256())

    def receipt_key(self, run: str) -> ReceiptKey:
        """Derive the receipt key for a run from the device key, so that no storage is needed."""
        derivation = HKDF(hashes.SHA256(), RECEIPT_KEY_BYTES, salt=None, info=RECEIPT_KEY_LABEL + run.encode())
        return ReceiptKey(ed25519.Ed25519PrivateKey.from_private_bytes(derivation.derive(self.private_der)))


def verify_signature(public_key: bytes, data: bytes, signature: bytes) -> bool:
    """Return whether a signature by `DeviceKey.sign` is valid for `data` and `public_key`."""
    try:
        _parse_public_key(public_key).verify(signature, data, _RSA_PADDING, hashes.SHA256())
    except (RequestError, InvalidSignature):
        return False
    return True


def peer_id_of(public_key: bytes) -> str:
    """Return the libp2p peer ID of an OpenSSH public key: the multihash of its libp2p encoding.

    Raises `RequestError` unless the key is a canonically encoded RSA key of 2048 to 4096 bits.
    """
    info = _parse_public_key(public_key).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return peer_id_from(info)


def challenge_bytes(purpose: Purpose, run: str, nonce: bytes, public_key: bytes, *further: bytes) -> bytes:
    """Return the versioned challenge that a device signs to prove possession of its key.

    The encoding is unambiguous: different fields give different bytes. The purpose and the run are
    included, so a signature is valid only for one purpose and one run. `further` adds fields, such
    as the public key for receipts.
    """
    fields = (CHALLENGE_LABEL, purpose.encode(), run.encode(), nonce, public_key, *further)
    return b"".join(len(field).to_bytes(4, "big") + field for field in fields)


def create_tls_certificate(path_key: Path, path_cert: Path) -> None:
    """Write a new private key (PEM, mode 0600) and its self-signed certificate (PEM)."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, TLS_NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_VALID_FROM)
        .not_valid_after(_VALID_UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    write_private(
        path_key,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    write_private(path_cert, certificate.public_bytes(serialization.Encoding.PEM))


def certificate_fingerprint(certificate: str | bytes) -> str:
    """Return the SHA-256 of the DER form of a certificate (PEM or DER), as 64 hex digits."""
    if isinstance(certificate, bytes) and not certificate.startswith(b"-----BEGIN"):
        der = certificate
    else:
        pem = certificate if isinstance(certificate, str) else certificate.decode("ascii")
        der = ssl.PEM_cert_to_DER_cert(pem)
    return hashlib.sha256(der).hexdigest()


@lru_cache(maxsize=MOST_PARSED)
def _parse_public_key(public_key: bytes) -> rsa.RSAPublicKey:
    """Parse an OpenSSH RSA key; reject all but the canonical encoding, so each key has one form."""
    if len(public_key) > MAX_PUBLIC_KEY_BYTES:
        raise RequestError(f"The public key has {len(public_key)} bytes; {MAX_PUBLIC_KEY_BYTES} are allowed.")
    try:
        key = serialization.load_ssh_public_key(public_key)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise RequestError("The public key is not in OpenSSH format.") from error
    if not isinstance(key, rsa.RSAPublicKey) or not RSA_BITS <= key.key_size <= MAX_RSA_BITS:
        raise RequestError(f"The public key must be RSA with {RSA_BITS} to {MAX_RSA_BITS} bits.")
    if key.public_numbers().e != RSA_EXPONENT or _openssh(key) != public_key:
        raise RequestError(f"The public key must have the exponent {RSA_EXPONENT} and no comment.")
    return key


def _openssh(key: rsa.RSAPublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def _read_key(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StorageError(f"Cannot read the key {path} ({error.strerror}).") from error


def encode_key(der: bytes) -> bytes:
    """Encode an RSA key as libp2p's `PublicKey` or `PrivateKey` (the content of the identity file)."""
    return _RSA + _varint(len(der)) + der


def decode_key(message: bytes) -> bytes:
    """Return the DER form of a key encoded by `encode_key`.

    Raises `ValueError` unless the message is an encoded RSA key; the DER form is not parsed.
    """
    der = message[len(_RSA) + 2 :]  # the DER form has 128 to 16 383 bytes, so its length is a two-byte varint
    if encode_key(der) != message:
        raise ValueError("not a libp2p RSA key")
    return der


def peer_id_from(public_info_der: bytes) -> str:
    """Return the base58 peer ID of a public key, given as DER SubjectPublicKeyInfo."""
    digest = hashlib.sha256(encode_key(public_info_der)).digest()
    return base58.b58encode(_SHA256 + digest).decode("ascii")


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
