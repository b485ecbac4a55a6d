"""Keys: what they are on disk, and that libp2p and hivemind read them as we do."""

from __future__ import annotations

import base64
import ssl
import stat
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from auth.errors import RequestError, StorageError
from auth.keys import (
    TLS_NAME,
    AuthorityKey,
    DeviceKey,
    certificate_fingerprint,
    challenge_bytes,
    create_tls_certificate,
    peer_id_of,
    verify_signature,
)

FIXED_KEY = (  # of nobody
    "MIIEowIBAAKCAQEAui2agXRVnmlc+ELC3Pq2Bl9Y+BSfOhIbskWgUgPB6sjDeXcbNHrUn4GCwRSiKNFofdvHW6ZPcvTiX5ts1AGQXV+i"
    "OPVy2jD7Fu1XvB18N1LP+dNX+RFcM+t/gVAb7JR+iNCkK1axyozPuaw0YLr6BZ1HUVolDQaus87qHwO4R5bAkzgWm3BV/4swfV4aBZlA"
    "q9K/06Din4w2YyKBtGhHvaVkb/L5zzOoVgtUD33bd1CNO607xeivo9UPnkHcp/CrTM4sbiKEsDkN/j3+EvMz43XgS8+zJyYEvg4W0E2I"
    "euUGwpwCuJlsYcZpY5OPjw40pKKnV5BKYDm4ibXGLoA2lwIDAQABAoIBAAafk7USSe96SRvt6BfLdYlRgA1HUojS1xhnALaaOp5bKRUb"
    "pySdUA4iod+zl7dDB+geVv/MMVxiGOGU2nDKY3Pm8JL9LGpVvsEIjYv8MoyXTh3RpnoOY4zXTnBvxKaMe9nrLkP6cBXIH6W32h8s17M2"
    "brCWt+W4PKPZ8xtKWxZ012nvLHWWX9zJzw2V1nM9vJdoELmXANWYKtdyaJXdmSBnOHcV3cFkB88fHRzgg05uM5cPfl2dGJEhRNrvsXEN"
    "wOk12QWJYvwdPjeGH8idqxAZw8iAbyrw+RgL/lY+m1wAo/AjxOW+f/wVhBe1Y9QG4VqqH7HugjOGper9LxyhiuUCgYEA7ncNaoCaHnym"
    "sX8tDiHwHCImqjm+/PQJ92CZ3EfGuVLcokFZ4fRHCr05YDekHCWd7lwNPR9+SCkWOvHdXVSztmVG/1ewFe1V0qGRhugeSI/tdAMpQBPQ"
    "1+TxPhvCgmn+t4jJuxIHAOOXtuPdS/YJk+yqqhHSC/EjBMO0thZzGqMCgYEAx95I0wAeXH8H3ofyyR80/ftoiufs8L/ETFaPAtWimavp"
    "qIKPHmo8zZAnhC1RBofwN2milUjeqcYySaSzgyQcu+wAXtcMGJ9lo3qAgvHLrSZQYe7rVKynW2a+7MXJtVnAmXmlznv7COH9tPHaAAZN"
    "OBLi0DF2a3LIldZ2idQDR30CgYEA2jdPq5orbqKa1+qNDFW6J8SIpVValJetVxarNYzpKUXOaRxsZ/zl1cn66zV/k9JIh4rtAnYDVX1j"
    "vmT+MR4Fpm9fXOKdXDNnSexYA5/9tmEe5f7OjLiVcDstF6zHfhgI42LlV67TgdjDSLWUGKL5eMgmFKNiF1N+vClrAQXiJwkCgYAJt2Ku"
    "70iKkppdVRqWcG/xEPHKHvBD2+69D1AwgRZAhjz7ti0i+2MtUx64rENOH/mrl/URcNNySXJUZi9b5ruG3zg9ZBLwd39HbUMmGn8eUciC"
    "mkzSdvpD1UDe3daqfEyCqYlH+nr/uYzN6RwB+Ex0t2ZTXLQ3EQNzVVO565alOQKBgE8OHlaicHoWl76hfM1EIZ06+ziGLTzyO0cZeIko"
    "56XWMvT/h8ZPSBQZpspGppwV3OYmKm40g88dNTay7AKm5Tdn7dyT4w6TuSVhgx7LHWATC53wjiMvR9WVRZdfOjo9qjwVgG+RZqXQCXfh"
    "6aLb2tiLgvOAM1lxlUS9M8AHxEGp"
)
FIXED_PSEUDONYM = "8b75e4ab6abedcf1517a819eedc54e5d6c50b17cc29f03897e68035b1fdd869e"


@pytest.fixture(scope="module")
def identity_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("device") / "device.key"
    DeviceKey.load_or_create(path)
    return path


@pytest.fixture(scope="module")
def key(identity_file: Path) -> DeviceKey:
    return DeviceKey.load_or_create(identity_file)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_authority_key_survives_saving(tmp_path: Path) -> None:
    """A saved authority key is private and loads as the same key."""
    authority = AuthorityKey.generate()
    authority.save(tmp_path / "authority.key")
    assert AuthorityKey.load(tmp_path / "authority.key").public_bytes == authority.public_bytes
    assert len(authority.public_bytes) == 32
    assert mode(tmp_path / "authority.key") == 0o600


def test_damaged_authority_key_is_refused(tmp_path: Path) -> None:
    """A file of the wrong length is a StorageError that names it."""
    (tmp_path / "authority.key").write_bytes(b"short")
    with pytest.raises(StorageError, match=r"authority\.key"):
        AuthorityKey.load(tmp_path / "authority.key")


def test_device_key_is_made_once(identity_file: Path, key: DeviceKey) -> None:
    """The second call reads what the first wrote, in a private file."""
    assert DeviceKey.load_or_create(identity_file).public_key == key.public_key
    assert mode(identity_file) == 0o600


def test_simultaneous_first_uses_agree(tmp_path: Path) -> None:
    """Two users that start together end up with one key."""
    with ThreadPoolExecutor(2) as pool:
        keys = list(pool.map(lambda _: DeviceKey.load_or_create(tmp_path / "device.key").public_key, range(2)))
    assert keys[0] == keys[1]
    assert [path.name for path in tmp_path.iterdir()] == ["device.key"]


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x12\x05short", b"\x08\x00\x12\x80\x01" + bytes(128)])
def test_damaged_device_key_is_refused(tmp_path: Path, content: bytes) -> None:
    """A file that is no libp2p RSA key is a StorageError that says what to do, never silently replaced."""
    (tmp_path / "device.key").write_bytes(content)
    with pytest.raises(StorageError, match="move it away"):
        DeviceKey.load_or_create(tmp_path / "device.key")
    assert (tmp_path / "device.key").read_bytes() == content


def test_hivemind_reads_the_identity_file(identity_file: Path, key: DeviceKey) -> None:
    """hivemind's parser finds our peer ID and private key in the file, and writes the public key as we do."""
    from hivemind.p2p import PeerID
    from hivemind.proto import crypto_pb2
    from hivemind.utils.crypto import RSAPublicKey

    content = identity_file.read_bytes()
    message = crypto_pb2.PrivateKey.FromString(content)
    assert message.data == key.private_der
    assert message.SerializeToString() == content
    assert PeerID.from_identity(content).to_base58() == key.peer_id
    assert RSAPublicKey.from_bytes(key.public_key).to_bytes() == key.public_key


def test_signature_proves_the_key_and_the_data(key: DeviceKey) -> None:
    """A signature holds for its key and data only; rubbish is False, not an error."""
    signature = key.sign(b"data")
    assert verify_signature(key.public_key, b"data", signature)
    assert not verify_signature(key.public_key, b"other", signature)
    assert not verify_signature(key.public_key, b"data", b"")
    assert not verify_signature(b"rubbish", b"data", signature)


def openssh(key: rsa.RSAPrivateKey) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)


def test_unusable_public_keys_are_refused(key: DeviceKey) -> None:
    """Other kinds, weak keys, long and second spellings of a key are refused: one device cannot appear as two."""
    weak = openssh(rsa.generate_private_key(public_exponent=65537, key_size=1024))  # noqa: S505  # weak on purpose
    odd = openssh(rsa.generate_private_key(public_exponent=3, key_size=2048))
    ed25519 = AuthorityKey.generate().private_key.public_key()
    other_kind = ed25519.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    for bad in (b"", b"ssh-rsa AAAA", weak, odd, other_kind, key.public_key + b" me@home", b"x" * 2000):
        with pytest.raises(RequestError, match="public key"):
            peer_id_of(bad)


def test_challenges_are_unambiguous() -> None:
    """Purpose, run, nonce, keys each change the challenge, and bytes moved between fields do too."""
    challenges = {
        challenge_bytes(purpose, run, nonce, public_key, *further)
        for purpose, run, nonce, public_key, further in product(
            ("join", "renew", "session"), ("a", "ab"), (b"", b"b", b"bc"), (b"", b"c"), ((), (b"",), (b"c",))
        )
    }
    assert len(challenges) == 3 * 2 * 3 * 2 * 3


def test_a_receipt_key_follows_from_the_device_and_the_run(key: DeviceKey, tmp_path: Path) -> None:
    """The same after a restart, another for another run or device; and never another than in an earlier version."""
    again = DeviceKey.load_or_create(tmp_path / "other.key")
    names = {key.receipt_key("a").pseudonym, key.receipt_key("b").pseudonym, again.receipt_key("a").pseudonym}
    assert len(names) == 3
    restarted = DeviceKey.load_or_create(tmp_path / "other.key")
    assert again.receipt_key("a").pseudonym == restarted.receipt_key("a").pseudonym
    assert key.receipt_key("a").pseudonym == key.receipt_key("a").public_bytes.hex()
    fixed = DeviceKey(serialization.load_der_private_key(base64.b64decode(FIXED_KEY), password=None))  # type: ignore[arg-type]
    assert fixed.receipt_key("sahaj-বাংলা").pseudonym == FIXED_PSEUDONYM


def test_certificate_is_pinned_and_carries_our_name(tmp_path: Path) -> None:
    """The certificate names `manyhands`, has a private key file, and one fingerprint in PEM and DER."""
    create_tls_certificate(tmp_path / "tls.key", tmp_path / "tls.crt")
    pem = (tmp_path / "tls.crt").read_text()
    names = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    assert names.value.get_values_for_type(x509.DNSName) == [TLS_NAME]
    assert mode(tmp_path / "tls.key") == 0o600
    fingerprints = {certificate_fingerprint(form) for form in (pem, pem.encode(), ssl.PEM_cert_to_DER_cert(pem))}
    assert len(fingerprints) == 1
    assert len(fingerprints.pop()) == 64
    ssl.create_default_context(cadata=pem).load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
