"""TLS settings of clients and servers: certificates and trusted authorities from PEM files.

A client trusts the authorities in the PEM file `tls_ca`, or those of the system, and checks that the server's
certificate is for the host that it connects to. It shows the certificate in `tls_cert` with `tls_key`, if it has one.
For settings that are not given it uses the environment: POCKETMQ_TLS (1, true, yes, on; 0, false, no, off),
POCKETMQ_TLS_CA, POCKETMQ_TLS_CERT and POCKETMQ_TLS_KEY. An authority or a certificate turns TLS on, unless it is turned
off. Calls of a client with a user are signed: POCKETMQ_USER, and POCKETMQ_SECRET or the file POCKETMQ_SECRET_FILE.

A server shows a certificate, followed by those between it and a root, and has its key. It may require clients to show a
certificate of one of the authorities in a file; all others are refused at the handshake.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from .. import __version__
from .access.signing import own_credentials, signed_now
from .errors import ConfigError
from .renamed import VARIABLES

#: Imported only where needed: most commands use plaintext, and cryptography takes 100 ms to import.
if TYPE_CHECKING:
    import ssl

    from cryptography import x509

    from .rpc.channels import Channel, Dial, Metadata
    from .rpc.listening import Certificate

TLS_VARIABLE: Final = "POCKETMQ_TLS"
CA_VARIABLE: Final = "POCKETMQ_TLS_CA"
CERT_VARIABLE: Final = "POCKETMQ_TLS_CERT"
KEY_VARIABLE: Final = "POCKETMQ_TLS_KEY"
TLS_VARIABLES: Final = (TLS_VARIABLE, CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE)
_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """The authorities that a client trusts, and its certificate. TLS None: use TLS if either is given."""

    tls: bool | None = None
    ca: str = ""
    cert: str = ""
    key: str = ""
    #: The user that signs calls (access/signing.py); empty: calls are not signed.
    user: str = ""
    secret: str = field(default="", repr=False)

    def or_environment(self) -> Trust:
        """Return this with the missing values from the environment. Raises ConfigError."""
        for old, new in VARIABLES.items():
            if os.environ.get(old):
                raise ConfigError(f"${old} was renamed: set ${new}", field=old)
        word = os.environ.get(TLS_VARIABLE, "").strip().lower()
        if word and word not in _WORDS:
            raise ConfigError(
                f"${TLS_VARIABLE} is {word!r:.40}: write 1 for TLS, or 0 for plaintext",
                field="tls",
                value=word,
            )
        tls, cert, key = self.tls, self.cert, self.key
        if tls is None:
            tls = True if self.ca or cert else _WORDS.get(word)
        if not (cert or key):
            cert, key = os.environ.get(CERT_VARIABLE, ""), os.environ.get(KEY_VARIABLE, "")
        user, secret = own_credentials(os.environ, self.user, self.secret) or ("", "")
        ca = self.ca or os.environ.get(CA_VARIABLE, "")
        return Trust(tls=tls, ca=ca, cert=cert, key=key, user=user, secret=secret)

    @property
    def wanted(self) -> bool:
        """Is TLS used?"""
        return bool(self.ca or self.cert) if self.tls is None else self.tls

    def context(self) -> ssl.SSLContext | None:
        """Return the context of handshakes; None: use plaintext. Raises ConfigError for files that cannot be used."""
        if bool(self.cert) != bool(self.key):
            missing = "tls_key" if self.cert else "tls_cert"
            raise ConfigError(
                f"{missing} is empty: give a certificate and its key together, or neither",
                field=missing,
            )
        if not self.wanted:
            return None
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION
        context.set_alpn_protocols(["h2"])
        if self.ca:
            _load("tls_ca", self.ca, partial(context.load_verify_locations, cafile=self.ca))
        else:
            context.load_default_certs()
        if self.cert:
            files = f"{self.cert} with {self.key}"
            # Without this, OpenSSL would ask for a password on the terminal.
            load = partial(context.load_cert_chain, self.cert, self.key, password=_no_password)
            _load("tls_cert", files, load)
        return context

    def dial(self, sign: Callable[[], Metadata] | None = None) -> Dial:
        """Return a factory of channels. Calls are signed by `user`, or by SIGN. Raises ConfigError."""
        from .rpc.channel import Http2Channel

        tls = self.context()

        def dial(address: str) -> Channel:
            signature = signed_now(self.user, self.secret) if self.user else ()
            return Http2Channel(
                address, user_agent=f"pocketmq/{__version__}", tls=tls, metadata=sign or signature
            )

        return dial


def _no_password() -> str:
    raise ValueError("the key has a password: use one without")


def _load(field: str, files: str, load: Callable[[], None]) -> None:
    """Call LOAD, which reads FILES; raise ConfigError, with the name of FIELD, if they are invalid."""
    try:
        load()
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors.
        reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or error
        raise ConfigError(
            f"{field}: {files} cannot be used: {str(reason).lower().replace('_', ' ')}. Give PEM files",
            field=field,
            value=files,
        ) from error


def check_tls(section: str, certificate: str, key: str) -> None:
    """Raise ConfigError unless SECTION.tls_cert and SECTION.tls_key are both given, or neither."""
    if bool(certificate) != bool(key):
        missing = "tls_key" if certificate else "tls_cert"
        raise ConfigError(
            f"{section}.{missing} is empty: set a certificate and its key together, or neither",
            field=missing,
        )


def read_certificate(
    read: Callable[[str], bytes], section: str, chain_path: str, key_path: str
) -> Certificate:
    """Return the content of the operator's files, which READ reads.

    Settings SECTION.tls_cert and SECTION.tls_key name the files.
    """
    from .rpc.listening import Certificate

    chain_field = "tls_cert"
    chain = read_pem(read, section, chain_field, chain_path)
    key = read_pem(read, section, "tls_key", key_path)
    try:
        parsed_certificate(chain, key)
    except ValueError as error:
        raise ConfigError(
            f"{section}.{chain_field}: {chain_path} with {key_path} cannot be used:"
            f" {error}. Give PEM files, the key without a password",
            field=chain_field,
        ) from error
    return Certificate(chain=chain, key=key)


def read_pem(read: Callable[[str], bytes], section: str, field: str, path: str) -> bytes:
    """Return the bytes at PATH, which setting SECTION.FIELD names. Raises ConfigError."""
    try:
        return read(path)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(
            f"{section}.{field}: {path} cannot be read: {reason}", field=field
        ) from error


def read_authorities(read: Callable[[str], bytes], section: str, field: str, path: str) -> bytes:
    """Return the PEM at PATH (setting SECTION.FIELD): the authorities that sign the other side's certificates.

    Raises ConfigError.
    """
    import ssl

    found = read_pem(read, section, field, path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(
            cadata=found.decode("ascii", "replace")
        )
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise ConfigError(
            f"{section}.{field}: {path} cannot be used: {reason}. Give a PEM file with certificates of authorities",
            field=field,
        ) from error
    return found


def parsed_certificate(chain: bytes, key: bytes) -> x509.Certificate:
    """Return the first certificate of CHAIN; raise ValueError unless KEY is its key."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    certificate = x509.load_pem_x509_certificates(chain)[0]
    try:
        private = load_pem_private_key(key, password=None)
    except (
        TypeError,
        UnsupportedAlgorithm,
    ) as error:  # The key has a password, or is of an unknown kind.
        raise ValueError(str(error)) from error
    if private.public_key() != certificate.public_key():
        raise ValueError("the key does not belong to the certificate")
    return certificate
