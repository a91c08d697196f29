"""Keys and certificates of a federation: a certificate authority, a server certificate, a key pair for each node.

openssl and ssh-keygen make the same files, see docs/deployment.md. Only their owner can read private keys. The key of the
authority is stored apart from the server, in `authority/`, and is needed only to renew certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedveil.core.errors import ConfigError

YEARS = 2  # for the server's certificate, which `deploy renew` replaces
AUTHORITY_YEARS = 10
PASSWORD = "FEDVEIL_CA_PASSWORD"  # environment variable: encrypts the key of the authority


def replace_private(path: Path, data: bytes) -> None:
    """Writes a file with mode 0600 under a new name and moves it to its place."""
    made = path.with_name(f".{path.name}.new")
    made.unlink(missing_ok=True)
    write_private(made, data)
    os.replace(made, path)


def write_private(path: Path, data: bytes) -> None:
    """Creates a file with mode 0600 before its first byte is written."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def public_bytes(path: Path) -> bytes:
    """The key in a public key file (OpenSSH format), in the encoding by which Flower identifies keys."""
    key: Any = serialization.load_ssh_public_key(path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise ValueError(f"{path} holds no key of an elliptic curve")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    return bytes(key.public_bytes(serialization.Encoding.PEM, form))


def make_authority(folder: Path) -> None:
    """Writes `ca.crt` and `ca.key`. The key is encrypted if the environment has a password for it."""
    folder.mkdir(mode=0o700)
    key, name = ec.generate_private_key(ec.SECP384R1()), _name("Fedveil federation")
    signed = (
        _certificate(name, name, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "ca.key", _pem(key, serialization.PrivateFormat.PKCS8, os.environ.get(PASSWORD, "")))


def make_server_certificate(authority: Path, folder: Path, hosts: Sequence[str]) -> None:
    """Writes `server.crt` and `server.key` for these names, signed by the authority; replaces earlier ones."""
    password = os.environ.get(PASSWORD, "")
    try:
        signer: Any = serialization.load_pem_private_key(
            (authority / "ca.key").read_bytes(), password.encode() if password else None
        )
        root = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes())
    except FileNotFoundError as error:
        takes = "is needed to sign: bring the folder of the authority back to renew, and take it away again"
        raise ConfigError("authority", str(error.filename), takes) from None
    except (ValueError, TypeError) as error:
        raise ConfigError(
            "authority", str(authority / "ca.key"), f"cannot be read: {error}; is {PASSWORD} set?"
        ) from None
    key = ec.generate_private_key(ec.SECP384R1())
    signed = (
        _certificate(_name(hosts[0]), root.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    replace_private(folder / "server.key", _pem(key, serialization.PrivateFormat.PKCS8))
    (folder / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))


def make_node_key(folder: Path) -> None:
    """Writes `key` and `key.pub`, an elliptic-curve key pair in OpenSSH format; replaces earlier ones."""
    key = ec.generate_private_key(ec.SECP384R1())
    replace_private(folder / "key", _pem(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat, password: str = "") -> bytes:
    kept: Any = serialization.BestAvailableEncryption(password.encode()) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, form, kept)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    years = AUTHORITY_YEARS if subject == issuer else YEARS
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(hours=1))
        .not_valid_after(today + datetime.timedelta(days=365 * years))
    )


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
