r"""Patterns of secrets in text, and names of fields whose values are secrets. `redact` applies them.

Every pattern runs in linear time: repeats are bounded, or end the pattern. A match counts only
if `SecretRule.is_secret` accepts it, so that a name in code or prose is not redacted.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable

from msgspec import Struct

from sessiontree.export.token_shapes import COMMON_TOKENS, MORE_TOKENS, SERVICES, SHORT_TOKENS, TOKEN_END

SecretMatch = re.Match[str]

REDACTED_PREFIX = "[redacted"
"""The start of every replacement. It marks text that is already redacted."""
SECRET_NAMES = (
    *("password", "passwd", "pass phrase", "pass code", "secret", "secret key", "secret access key", "api key"),
    *("access key", "account key", "master key", "private key", "signing key", "encryption key", "access token"),
    *("api token", "auth token", "bearer token", "id token", "refresh token", "session token"),
    *("authorization", "cookie", "credential", "credentials", "client key data"),
    *("ssh pass", "db pass", "smtp pass", "become pass", "mysql pwd"),
)
"""Names whose value is always a secret. `dbPassword`, `X-Api-Key` and `client_secret` end with one of them."""

MIN_TOKEN_LENGTH = 13
"""The minimum length of a token."""
SECRET_NAME_HINTS = ("token", "pass", "pwd", "auth", "jwt", "otp", "key")
"""Last words of names whose value is a secret if it looks random. The value of `token` may also be a word of a
parser."""

_GAP = r"[ \t]{0,20}"
_FIRST = "".join(sorted({name[0] for name in SECRET_NAMES}))
_STRONG = (  # check the first letter first: this pattern is tried at every position
    f"(?i:(?=[{_FIRST}])(?:"
    + "|".join(name.replace(" ", "[ _.-]?") for name in sorted(SECRET_NAMES, key=len, reverse=True))
    + "))"
)
_WEAK = (  # the last word of a name: a_b, a-b or aB
    "(?=[ajkoptAJKOPT])(?:(?<![A-Za-z])(?i:" + "|".join(SECRET_NAME_HINTS[:-1]) + ")|(?<=[A-Za-z0-9][_-])(?i:key)"
    "|(?<=[a-z0-9])(?:" + "|".join(hint.title() for hint in SECRET_NAME_HINTS) + "))"
)
_CLOSED = r"(?:\\{0,8}[\"'`]|&quot;)?\]?\*{0,2}"
_TYPED = r":[ \t]{0,8}[A-Za-z_][A-Za-z0-9_.\[\]| ]{0,40}(?:(?<= )=|=(?![=\s,;)}]|$))"
"""A type before a value, not a base64 value that ends with `=`."""
_ASSIGNED = rf"(?:{_TYPED}|:=|=>|[=!]=={{0,1}}|=|:|%3[Dd]|\\u003[Dd])\*{{0,2}}{_GAP}"
_QUOTED = r"[bBfFrRuU]{0,2}(?P<quote>\\{0,8}[\"'`]|&quot;)(?P<quoted>(?:\\[^\n]?|[^\\\n])*?)(?=(?P=quote)|$)"
_BLOCK = r"[|>][-+0-9]{0,2}[ \t]{0,20}\r?\n(?P<indent>[ \t]+)(?P<block>[^\n]*(?:\n(?P=indent)[^\n]*)*)"
_BARE = r"(?P<bare>[^\s\"'`\\,;&<>{}|)]+)"
_ARGUMENT = (
    rf"(?!{re.escape(REDACTED_PREFIX)}|[$])"
    r"(?:(?P<quote>[\"'])(?P<quoted>[^\n]*?)(?=(?P=quote)|$)|(?P<bare>[^\s\"'|;&]+))"
)
"""The rest of a command that gives a password as an argument."""
_MARGIN = r"(?:[+-]|[ \t]{0,8}[0-9]{1,6}(?:\t|→|:[ ]?|-))?+"
"""What a diff, a reading tool or `grep -n` adds before a line."""
_DATA = (
    rf"^{_MARGIN}(?P<level>[ \t]{{0,40}})(?:- )?[\"']?(?:data|stringData)[\"']?:[ \t]{{0,8}}\r?\n"
    rf"(?P<secret>{_MARGIN}(?P=level)[ \t]+[^\n]*(?:\n{_MARGIN}(?P=level)[ \t]+[^\n]*){{0,500}}+)(?:\n|\Z)"
)
"""The indented values of a YAML manifest."""
_SECRETS = ("secret", "quoted", "block", "bare")
"""Groups of a pattern that hold the secret. Without any of them, the whole match is the secret."""

_REFERENCE = re.compile(
    rf"\$|%[A-Za-z(]|(?:[A-Za-z0-9_.]{{0,60}}[_.])?(?:{_STRONG}|{_WEAK}|(?<=\.)key)$"
    r"|[A-Za-z_][A-Za-z0-9_.]{0,60}[(\[]"
    r"|(?:self|this|cls|args|config|settings|options|opts|os|env|environ|process|request|req|data|params|props|st)\."
)
"""Values that are code: variables, fields, calls."""
_COMMON = frozenset(
    {"str", "string", "bytes", "int", "bool", "boolean", "number", "any", "none", "null", "undefined", "true", "false"}
    | {"optional", "required", "secretstr", "char", "varchar", "text", "object", "unknown", "option", "self", "nil"}
    | {"value", "omit", "include", "bearer", "basic", "token"}
)
"""Common values that are not secrets."""
_PROSE = re.compile(r"[ \t]+[A-Za-z]")
_FILLED_IN = re.compile(r"(?i)\$?\{[^}\n]{0,200}\}|\b(?:bearer|basic|token) ")
_WORDS = re.compile(r"(?:[A-Za-z]+[0-9]?|[0-9]{1,4}[a-z]?)(?:[-_./:]+(?:[A-Za-z]+[0-9]?|[0-9]{1,4}[a-z]?))*[-_./:]*")
_MADE_UP = re.compile(r"(?![/.~$])[A-Za-z0-9_.~+/=@!#$%^*:-]{8,}")


class SecretRule(Struct, frozen=True):
    kind: str
    pattern: re.Pattern[str]
    is_secret: Callable[[SecretMatch], bool]
    """Whether a match is a secret."""
    keywords: tuple[str, ...] = ()
    """Lower-case words. The rule is tried only on texts that contain one of them."""
    min_length: int = 0
    """The minimum length of a text that the rule is tried on."""


def find_secret_span(found: SecretMatch) -> tuple[int, int]:
    """Return the position of the secret in the text."""
    groups = found.re.groupindex
    return next((found.span(name) for name in _SECRETS if name in groups and found[name] is not None), found.span())


def is_random(text: str) -> bool:
    """Whether a value looks random: a mix of letters and digits that is not a word, number, version or path."""
    return (
        _MADE_UP.fullmatch(text) is not None
        and any(letter.isdigit() for letter in text)
        and any(letter.isalpha() for letter in text)
        and _WORDS.fullmatch(text) is None
    )


def rate_name(name: str) -> str | None:
    """Rate the name of a field: `certain` if its value is a secret, `likely` if it is one when it looks random."""
    name = re.sub(r"(?:[_-]?[Vv]alue|[_-]?[0-9]{1,3})$", "", name[-80:])
    squeezed = re.sub(r"[ _.-]", "", name).lower()
    if squeezed.endswith(_SQUEEZED):
        return "certain"
    return "likely" if re.search(f"{_WEAK}$", name) else None


def _accept_any(found: SecretMatch) -> bool:
    return True


def _is_random_match(found: SecretMatch) -> bool:
    start, end = find_secret_span(found)
    return is_random(found.string[start:end])


def _is_spelled_out(found: SecretMatch) -> bool:
    """Whether a match contains the value of a secret, not a reference to it."""
    start, end = find_secret_span(found)
    value = found.string[start:end]
    if not value or value.startswith(REDACTED_PREFIX) or (found["bare"] and _REFERENCE.match(value)):
        return False
    if found["certain"] is None:
        return is_random(value)
    if value.lower() in _COMMON or value.lower() == found["certain"].lower():
        return False
    spelled_out = _FILLED_IN.sub("", value)
    if found["bare"] is None:
        return len(spelled_out) >= 3 and any(letter.isalnum() for letter in spelled_out)
    # In `password=word other`, a shell takes the whole word; with a space or a colon before it, it may be a sentence.
    is_word = value.isalpha() and (value.islower() or value.istitle() or value.isupper())
    goes_on = is_word and found.string[start - 1] != "=" and _PROSE.match(found.string, end)
    return len(spelled_out) >= 4 and not value.endswith(":") and not goes_on


def _is_bot_token(found: SecretMatch) -> bool:
    """Whether the first part of a possible Discord token is a base64 number."""
    first = found["id"]
    try:
        return base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)).isdigit()
    except ValueError:
        return False


def _is_pgpass(found: SecretMatch) -> bool:
    """Whether a line is from a PostgreSQL password file, by its port or because the text mentions such a file."""
    if found["port"] == "*" or found["port"].startswith(("543", "643")):
        return True
    return found.string.rfind("pgpass", max(0, found.start() - 2000), found.start()) >= 0


def _is_passphrase(found: SecretMatch) -> bool:
    """Whether consecutive words are a passphrase and not a sentence. Three words must be all of a `passphrase: ...`."""
    words = re.split(r"[ \t-]+", found["secret"].strip().lower())
    if _SENTENCE.intersection(words):
        return False
    if len(words) > 3:
        return len(words) <= 24
    is_alone = found["sign"] in (":", "=") and _LINE_END.match(found.string, found.end("secret")) is not None
    return is_alone and not _DESCRIPTION.intersection(words)


_SENTENCE = frozenset(
    {"a", "an", "the", "is", "are", "was", "be", "to", "of", "for", "and", "or", "not", "in", "on", "at", "by", "it"}
    | {"you", "your", "we", "our", "i", "my", "that", "this", "which", "with", "from", "must", "should", "can", "will"}
    | {"if", "when", "used", "use", "set", "has", "have", "does", "do", "no", "as", "least", "more", "than", "only"}
)
"""Words that occur in sentences but not in passphrases."""
_DESCRIPTION = frozenset(
    {"string", "text", "value", "type", "field", "input", "default", "optional", "required", "empty", "none", "null"}
    | {"wrong", "invalid", "incorrect", "missing", "unknown", "failed", "error", "accepted", "changed", "stored"}
    | {"enter", "entered", "please", "try", "again", "new", "old", "same", "see", "below", "above", "here", "hidden"}
    | {"passphrase", "password", "secret", "key", "file", "word", "words", "letters", "characters", "random", "prompt"}
)
"""Words that occur where a text or a manual describes a passphrase."""
_LINE_END = re.compile(r"[.!]?[ \t]{0,20}$", re.MULTILINE)


def _is_header(found: SecretMatch) -> bool:
    start, end = find_secret_span(found)
    value = found.string[start:end]
    return not value.startswith(REDACTED_PREFIX) and _SPELLED_OUT.search(value) is not None


_SPELLED_OUT = re.compile(r"[0-9]|[A-Za-z]=[^\s=]|[A-Za-z+/_-]{16}")
_NEEDS = {
    "named secret": (*SECRET_NAME_HINTS, "secret", "cookie", "credential", "sig", "curl"),
    "authorization": ("authorization", "cookie", "bearer", "basic"),
    "private key": ("private",),
    "webhook": ("webhook", "hooks.slack.com", "hooks.zapier.com"),
    "kubernetes secret": ("secret",),
}
_SQUEEZED = tuple(name.replace(" ", "") for name in SECRET_NAMES)


RuleRow = (
    tuple[str, str, Callable[[SecretMatch], bool]] | tuple[str, str, Callable[[SecretMatch], bool], tuple[str, ...]]
)
"""The arguments of a rule. The keywords are given if they differ from the keywords of the kind."""


def _build_rules(rows: Iterable[RuleRow]) -> tuple[SecretRule, ...]:
    return tuple(
        SecretRule(
            kind,
            re.compile(pattern, re.MULTILINE),
            is_secret,
            keywords[0] if keywords else _NEEDS.get(kind, ()),
            MIN_TOKEN_LENGTH if kind in ("token", "webhook") else 0,
        )
        for kind, pattern, is_secret, *keywords in rows
    )


RULES = _build_rules(
    (
        (
            "private key",
            r"-----BEGIN (?P<what>[A-Z0-9 ]{0,40}PRIVATE KEY[A-Z ]{0,20})-----(?s:.*?)(?:-----END (?P=what)-----|\Z)",
            _accept_any,
        ),
        (  # the end of a key whose beginning is missing
            "private key",
            r"^(?:[ \t]{0,20}[A-Za-z0-9+/=]{1,80}\r?\n)++(?P<end>[ \t]{0,20}-----END [A-Z0-9 ]{0,40}PRIVATE KEY)?",
            lambda found: found["end"] is not None,
        ),
        (
            "private key",
            r"(?<=Private-Lines: )[0-9]{1,4}\s++(?:[A-Za-z0-9+/=]{1,80}(?:\r?\n|\Z))++",
            _accept_any,
        ),  # PuTTY
        ("token", "(?<![A-Za-z0-9])(?:" + "|".join(COMMON_TOKENS) + ")", _accept_any),
        *(("token", f"(?<![A-Za-z0-9]){pattern}", _accept_any, (part,)) for part, pattern in MORE_TOKENS),
        *(("token", rf"(?<![A-Za-z0-9/+_.-]){pattern}", _is_random_match, (part,)) for part, pattern in SHORT_TOKENS),
        (  # SERVICE = "..."
            "token",
            rf"(?i:{'|'.join(SERVICES)})[A-Za-z0-9_.-]{{0,20}}[\"'`]?{_GAP}(?:=>|:=|=|:){_GAP}[\"'`]?"
            rf"(?P<secret>[A-Za-z0-9_=-]{{16,100}}){TOKEN_END}",
            _is_random_match,
            SERVICES,
        ),
        (
            "token",
            r"(?:(?<![A-Za-z0-9])|(?<=bot))[0-9]{6,12}:A[A-Za-z0-9_-]{34}(?![A-Za-z0-9_-])",
            _accept_any,
            (":a",),
        ),  # Telegram
        (  # Discord
            "token",
            rf"(?<![A-Za-z0-9_.-])(?P<secret>(?P<id>(?:[MN][DTjz]|O[DT])[A-Za-z0-9_-]{{21,27}})\.[A-Za-z0-9_-]{{6,7}}"
            rf"\.[A-Za-z0-9_-]{{27,40}}){TOKEN_END}",
            _is_bot_token,
            (".",),
        ),
        (  # Airtable, the old format
            "token",
            r"(?i:airtable)[^\n]{0,60}?(?<![A-Za-z0-9])(?P<secret>key[A-Za-z0-9]{14})(?![A-Za-z0-9])",
            _is_random_match,
            ("airtable",),
        ),
        (
            "webhook",
            r"(?:hooks\.slack\.com/(?:services|workflows|triggers)/|discord(?:app)?\.com/api/(?:v[0-9]{1,2}/)?webhooks/"
            r"|webhook\.office\.com/webhookb2/|hooks\.zapier\.com/hooks/catch/)(?P<secret>[A-Za-z0-9_@/+-]{12,})",
            _accept_any,
        ),
        (  # kind: Secret, then its data
            "kubernetes secret",
            rf"^{_MARGIN}[ \t]{{0,40}}(?:- )?[\"']?kind[\"']?:[ \t]{{0,8}}[\"']?Secret[\"']?,?[ \t]{{0,8}}\r?\n"
            rf"(?:(?!---)[^\n]{{0,300}}\n){{0,40}}?{_DATA}",
            _accept_any,
        ),
        (  # the same keys in alphabetical order
            "kubernetes secret",
            rf"{_DATA}(?=(?:(?!---)[^\n]{{0,300}}\n){{0,40}}?{_MARGIN}[ \t]{{0,40}}"
            r"[\"']?kind[\"']?:[ \t]{0,8}[\"']?Secret\b)",
            _accept_any,
        ),
        (
            "kubernetes secret",
            r"\"kind\\{0,8}\":[ \t]{0,8}\\{0,8}\"Secret\\{0,8}\"[^{}]{0,500}(?:\{[^{}]{0,500}\}[^{}]{0,500}){0,3}?"
            r"\"(?:data|stringData)\\{0,8}\":\s{0,20}\{(?P<secret>[^{}]+)",
            _accept_any,
        ),
        (
            "kubernetes secret",
            r"\"(?:data|stringData)\\{0,8}\":\s{0,20}\{(?P<secret>[^{}]{1,20000})\}"
            r"(?=[^{}]{0,500}\"kind\\{0,8}\":[ \t]{0,8}\\{0,8}\"Secret\\{0,8}\")",
            _accept_any,
        ),
        # user:password@, also with a @ in the password, or with a / that does not follow a port
        ("password in an address", r"(?<=://)[^\s/:@'\"\[]*:[^\s/'\"]+(?=@)", _accept_any),
        ("password in an address", r"(?<=://)[^\s/:@'\"\[]*:(?![0-9]{1,5}[/?#])[^\s@'\"]{1,200}(?=@)", _accept_any),
        ("password in an address", r"(?<=://)(?=[A-Za-z_.~%-]{0,200}[0-9])[A-Za-z0-9_.~%-]{16,}(?=@)", _accept_any),
        (
            "authorization",
            r"(?P<open>\\{0,8}[\"'`])?(?i:\b(?:proxy-)?authorization|\b(?:set-)?cookie)(?P<shut>\\{0,8}[\"'`])?"
            rf"{_GAP}:{_GAP}(?:{_QUOTED}|(?P<bare>(?(open)(?(shut)[^\s,}}]+|(?:\\[^\n]?|[^\\\n])*?(?=(?P=open)|$))"
            r"|(?:(?!\\+[nr])[^\n])+)))",
            _is_header,
        ),
        (
            "authorization",
            r"(?i)\b(?:(?<=bearer )[A-Za-z0-9._~+/=-]{12,}|(?<=basic )[A-Za-z0-9+/=]{12,})",
            lambda found: re.search(r"[0-9=+/]|[a-z][A-Z]", found[0]) is not None,
        ),
        (  # <password>...</password>
            "named secret",
            rf"<(?P<tag>[A-Za-z0-9_.:-]{{0,40}}?{_STRONG})>(?P<secret>[^<]+)(?=</(?P=tag)>)",
            _accept_any,
        ),
        (  # password=..., "apiKey": "...", DB_PASS: ..., password: |
            "named secret",
            rf"(?:(?P<certain>{_STRONG})|{_WEAK})(?i:[_-]?(?:value|[0-9]{{1,3}}))?{_CLOSED}{_GAP}{_ASSIGNED}"
            rf"(?:{_QUOTED}|{_BLOCK}|(?:\r?\n[ \t]{{1,40}})?{_BARE})",
            _is_spelled_out,
        ),
        (  # the password is ..., | password | ... |, login ada password ...
            "named secret",
            rf"{_STRONG}\*{{0,2}}[\"'`]?[ \t]{{1,20}}(?:(?:is|was|\|)[ \t]{{1,20}})?[\"'`]?{_BARE}",
            _is_random_match,
        ),
        (  # .netrc: machine host login ada password ...
            "named secret",
            r"\blogin\s{1,40}[^\s]{1,200}\s{1,40}password[ \t]{1,40}"
            rf"(?!{re.escape(REDACTED_PREFIX)}|[$])(?P<secret>[^\s]{{3,}})",
            lambda found: found.string.rfind("machine", max(0, found.start() - 500), found.start()) >= 0,
            ("machine",),
        ),
        (  # --token ...
            "named secret",
            rf"(?<![A-Za-z0-9-])--[A-Za-z-]{{0,30}}?(?:{_STRONG}|(?:{'|'.join(SECRET_NAME_HINTS)}))"
            rf"[ \t]{{1,20}}[\"']?{_BARE}",
            _is_random_match,
        ),
        (  # ?sig=...
            "named secret",
            r"(?i:[?&;][A-Za-z_-]{0,40}?(?:key|sig|signature|token|pass|pwd|auth)=)(?P<bare>[^\s\"'`\\,;&<>{}|)]+)",
            _is_random_match,
        ),
        (
            "named secret",
            r"\bcurl\b[^\n]{0,300}?[ \t](?:-u|--user)[ =]?[\"']?[^\s:'\"]{1,100}:"
            rf"(?!{re.escape(REDACTED_PREFIX)})(?P<secret>[^\s'\"]+)",
            _accept_any,
        ),
        (  # mysql -p..., docker login -p ..., redis-cli -a ..., sshpass -p ...
            "named secret",
            r"\b(?:(?:mysql|mariadb)[a-z_-]{0,12}\b[^\n|;&]{0,300}?[ \t]-p(?=[^\s-])"
            r"|(?:docker|podman|helm registry|oras|az)[ \t]{1,8}login\b[^\n|;&]{0,300}?[ \t]-p[ \t=]{1,8}(?!-)"
            r"|mongo(?:sh|dump|restore|import|export)\b[^\n|;&]{0,300}?[ \t]-p[ \t]{1,8}(?!-)"
            r"|ldap(?:add|delete|modify|passwd|search|whoami)\b[^\n|;&]{0,300}?[ \t]-w[ \t]{1,8}(?!-)"
            r"|openssl[ \t]{1,8}enc\b[^\n|;&]{0,300}?[ \t]-k[ \t]{1,8}(?!-)"
            r"|smbclient\b[^\n|;&]{0,300}?[ \t]-U[ \t]{0,8}[^\s%'\"|;&]{1,100}%"
            r"|redis-cli\b[^\n|;&]{0,300}?[ \t]-a[ \t]{1,8}"
            rf"|sshpass\b[^\n|;&]{{0,80}}?[ \t]-p[ \t]{{0,8}}){_ARGUMENT}",
            _accept_any,
            ("mysql", "mariadb", "login", "redis-cli", "sshpass", "mongo", "ldap", "openssl", "smbclient"),
        ),
        (  # htpasswd -b FILE USER ..., htpasswd -nb USER ...
            "named secret",
            r"\bhtpasswd(?=[^\n|;&]{0,60}?[ \t]-[A-Za-z]{0,8}b)(?P<printed>(?=[^\n|;&]{0,60}?[ \t]-[A-Za-z]{0,8}n))?"
            r"(?:[ \t]{1,8}-[A-Za-z]{1,8}(?:[ \t]{1,4}[0-9]{1,2}(?=[ \t]))?){1,6}[ \t]{1,8}(?!-)[^\s|;&]{1,200}"
            r"(?(printed)|(?:[ \t]{1,8}[^\s|;&]{1,200}(?=[ \t]{1,8}[^\s|;&<>#`]))?)"
            rf"[ \t]{{1,8}}{_ARGUMENT}",
            _accept_any,
            ("htpasswd",),
        ),
        (  # echo ... | sudo -S, echo ... | docker login --password-stdin, echo user:... | chpasswd
            "named secret",
            r"\b(?:echo|printf)(?:[ \t]{1,8}-[neE]{1,3})?(?:[ \t]{1,8}[\"']?%s(?:\\n)?[\"']?)?[ \t]{1,8}"
            rf"(?P<mark>[\"']?)(?!{re.escape(REDACTED_PREFIX)}|[$])"
            r"(?P<secret>(?:[^\s\"'|;&$`]|(?(mark)[ \t]|(?!))){1,200})(?P=mark)[ \t]{0,8}\|[ \t]{0,8}"
            r"(?:sudo\b[^\n|;&]{0,80}?[ \t](?:-[A-Za-z]{0,6}S\b|--stdin\b)|[^\n|;&]{0,200}?[ \t]--password-stdin\b"
            r"|(?:sudo[ \t]{1,8})?(?:passwd\b[^\n|;&]{0,80}?[ \t]--stdin|chpasswd)\b)",
            _accept_any,
            ("sudo", "-stdin", "passwd"),
        ),
        (  # gpg --passphrase ..., openssl -passin pass:..., ssh-keygen -N ...
            "named secret",
            r"(?:(?<![A-Za-z0-9])--?passphrase[ \t=]{1,8}|(?<![A-Za-z0-9])-(?:pass|passin|passout)[ \t]{1,8}[\"']?pass:"
            r"|\bssh-keygen\b[^\n|;&]{0,200}?[ \t]-[NP][ \t]{0,8})"
            rf"(?!{re.escape(REDACTED_PREFIX)}|[$])(?:(?P<quote>[\"'])(?P<quoted>[^\n]*?)(?=(?P=quote)|$)|(?P<bare>[^\s\"'|;&-][^\s\"'|;&]*))",
            _accept_any,
            ("pass", "ssh-keygen"),
        ),
        (  # passphrase: correct horse battery staple
            "named secret",
            r"(?i:pass[ _-]?phrase|(?:seed|recovery)[ _-]phrase|mnemonic)[\"'`]?"
            r"[ \t]{0,8}(?P<sign>:|=|\bis\b)[ \t]{0,8}[\"'`]?"
            r"(?P<secret>[A-Za-z0-9]{2,16}(?:[ \t-][A-Za-z0-9]{2,16}){2,24})(?![A-Za-z0-9])",
            _is_passphrase,
            ("phrase", "mnemonic"),
        ),
        (  # kubectl create secret ... --from-literal=name=...
            "kubernetes secret",
            r"--from-literal[ =](?P<mark>[\"'])?[A-Za-z0-9_.-]{1,253}="
            rf"(?!{re.escape(REDACTED_PREFIX)}|[$])[\"']?(?P<secret>(?:[^\s\"'|;&]|(?(mark)[ \t]|(?!)))+)",
            lambda found: found.string.rfind(" secret ", max(0, found.start() - 2000), found.start()) >= 0,
            ("--from-literal",),
        ),
        (  # host:5432:database:user:password, alone on a line or as the argument of echo
            "named secret",
            r"(?:^[+-]?[ \t]{0,8}|(?<![A-Za-z0-9_.*/-])(?P<mark>[\"']?))"
            r"(?:[A-Za-z0-9_.*-]{1,255}|\[[0-9A-Fa-f:]{2,45}\]|/[A-Za-z0-9_./-]{1,100})"
            r":(?P<port>[0-9]{1,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:"
            r"(?P<secret>(?:\\(?!n\b)[^\n]|(?(mark)[^\s\\\"']|[^\s\\]))+)",
            _is_pgpass,
            (":*:", ":543", ":643", "pgpass"),
        ),
        (
            "home path",
            r"(?<![A-Za-z0-9_.-])(?:/(?:home|Users)/[^/\s\"'`:;,<>|\\]+|/root(?![A-Za-z0-9_.-]))",
            _accept_any,
        ),
        ("home path", r"(?i)\b[A-Z]:\\{1,4}Users\\{1,4}[^\\/\s\"'`:;,<>|]+", _accept_any),
        ("home path", r"(?i)(?<![A-Za-z0-9])--?(?:home|Users)-[^-/\s\"'`:;,<>|]+", _accept_any),
    )
)


def build_rule(what: str, pattern: re.Pattern[str]) -> SecretRule:
    """Return a rule that accepts every match."""
    return SecretRule(what, pattern, _accept_any)
