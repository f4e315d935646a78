"""An authority that signs certificates, as an operator makes one for the replicas of a set."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pocketmq.proto.rpc import Certificate


class Authority:
    """It signs what it is asked to."""

    def __init__(self, name: str = "replicas") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.pem = self._sign(self._name, self._key.public_key(), is_authority=True)

    def certificate(
        self, *, valid_days: int = 1, name: str = "replica", addresses: Iterable[str] = ()
    ) -> Certificate:
        """Return a new certificate of NAME, for ADDRESSES, and for whoever believes this authority alone."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        return Certificate(
            chain=self._sign(subject, key.public_key(), valid_days=valid_days, addresses=addresses),
            key=key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            ),
            authorities=self.pem,
        )

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        *,
        is_authority: bool = False,
        valid_days: int = 1,
        addresses: Iterable[str] = (),
    ) -> bytes:
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=7))
            .not_valid_after(now + timedelta(days=valid_days))
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        names = [x509.IPAddress(ip_address(address)) for address in addresses]
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
