"""Who is who in the cluster: an authority, what it signs, and kubeconfig files with that inside."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

VALID = datetime.timedelta(days=30)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    digital_signature=True,
    crl_sign=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    encipher_only=False,
    decipher_only=False,
)
"""From 3.13 on, Python takes no authority that does not say so."""


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    return key


def _name(common: str, organization: str | None) -> x509.Name:
    words = [x509.NameAttribute(NameOID.COMMON_NAME, common)]
    if organization:
        words.append(x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(words)


def _unsigned(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


class Authority:
    """Its files are in one folder: `ca.crt`, and NAME.crt, NAME.key for each it has signed for."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.certificate = folder / "ca.crt"
        self._key = _new_key(folder / "ca.key")
        self._subject = _name("headway-test", None)
        known = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._signed_by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(known)
        certificate = (
            _unsigned(self._subject, self._subject, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS, critical=True)
            .add_extension(known, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def new_key(self, name: str) -> None:
        """A key without a certificate: for the tokens of service accounts."""
        _new_key(self.folder / f"{name}.key")

    def issue(
        self, name: str, user: str, group: str | None = None, hosts: Sequence[str] = ()
    ) -> None:
        """`user` and `group` are what Kubernetes takes them for; `hosts` are where it serves."""
        key = _new_key(self.folder / f"{name}.key")
        names = [_host(host) for host in (*hosts, name)]
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        certificate = (
            _unsigned(_name(user, group), self._subject, key.public_key())
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.ExtendedKeyUsage(usage), critical=False)
            .add_extension(self._signed_by, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        path = self.folder / f"{name}.crt"
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def kubeconfig(self, name: str, server: str, path: Path) -> None:
        """For one the authority has signed for; everything is inside, so it can be moved."""
        cluster = {"server": server, "certificate-authority-data": _text(self.certificate)}
        user = {
            "client-certificate-data": _text(self.folder / f"{name}.crt"),
            "client-key-data": _text(self.folder / f"{name}.key"),
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "headway-test",
            "clusters": [{"name": "headway-test", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [
                {"name": "headway-test", "context": {"cluster": "headway-test", "user": name}}
            ],
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(content, sort_keys=False))


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _text(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
