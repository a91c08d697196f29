"""Keys and certificates of a federation: a certificate authority, a server certificate, a key pair for each node.

openssl and ssh-keygen make the same files, see docs/deployment.md. Only their owner can read private keys.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

YEARS = 2


def write_private(path: Path, data: bytes) -> None:
    """Creates a file with mode 0600 before its first byte is written."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def make_certificates(folder: Path, hosts: Sequence[str]) -> None:
    """Writes `ca.crt`, `server.crt` and `server.key`. The key of the authority signs once and is not stored."""
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = _name("Fedveil federation")
    signed_root = (
        _certificate(root, root, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    signed = (
        _certificate(_name(hosts[0]), root, server)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / "ca.crt").write_bytes(signed_root.public_bytes(serialization.Encoding.PEM))
    (folder / "server.crt").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    write_private(folder / "server.key", _pem(server, serialization.PrivateFormat.PKCS8))


def make_node_key(folder: Path) -> None:
    """Writes `key` and `key.pub`: an elliptic-curve key pair in OpenSSH format."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_private(folder / "key", _pem(key, serialization.PrivateFormat.OpenSSH))
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def _pem(key: ec.EllipticCurvePrivateKey, form: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    today = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(today - datetime.timedelta(hours=1))
        .not_valid_after(today + datetime.timedelta(days=365 * YEARS))
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
