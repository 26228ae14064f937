"""What is wrong with TLS for good, among the errors that redis-py calls a lost contact. Pure."""

import ssl

_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
"""A server that goes away in the middle: another attempt may do."""


def tls_refusal(error: BaseException | None) -> str | None:
    """Return what is wrong with certificates, files or the protocol; None where another attempt may do.

    ``error`` was raised while a connection by TLS was made, or its first words were exchanged.
    """
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return f"the server's certificate is refused ({error.verify_message})"
        if isinstance(error, ssl.SSLError) and not isinstance(error, _CUT_OFF):
            return _said(error)
        if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
            return f"a file that the address names cannot be read ({error.strerror})"
        error = error.__cause__ or error.__context__
    return None


def _said(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    if reason == "WRONG_VERSION_NUMBER":
        return "what answers there speaks no TLS"
    if "ALERT" in reason:
        return f"the server refuses us or our certificate ({reason})"
    return f"certificate, key or authority cannot be used ({reason or error.strerror or 'no reason is given'})"
