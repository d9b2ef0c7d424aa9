"""Planted secrets are redacted in every field, and the session stays readable."""

import json
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st_

import sessiontree as st
from sessiontree.core.entries import HEAD_RECORD, Custom
from sessiontree.errors import InvalidOperation
from sessiontree.export import FORMATS, Redactor, export
from sessiontree.export.snapshot import read_snapshot
from sessiontree.format.codec import write_entry
from sessiontree.format.json_line import read_object, write_object
from tests.export.hostile import make_hostile_lines
from tests.export.sessions import SECRET, make_story

PEM = "-----BEGIN OPENSSH PRIVATE KEY-----\nb3BlbnNzaC1rZXktdjEAAAA\nAAAA\n-----END OPENSSH PRIVATE KEY-----"
SHAPES = {
    "token": [
        SECRET,
        "sk-proj-" + "aB3_" * 10,
        "ghp_" + "a1B2" * 9,
        "github_pat_11ABCDE_" + "x" * 30,
        "glpat-" + "a1B2c" * 5,
        "xoxb-1234567890-abcdefABCDEF",
        "AKIA" + "Q3EGRABCDEFGHIJK",
        "AIza" + "SyA1_b" * 6,
        "hf_" + "abcdEF" * 6,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJl",
    ],
    "private key": [PEM],
    "named secret": ["password=hunter2hunter2", "API_KEY: 0123456789abcdef", '"client_secret": "very-secret-value"'],
    "password in an address": ["postgres://ada:lovelace1815@db.example.org/main"],
    "home path": ["/home/ada/project", "/Users/ada/project", "C:\\Users\\ada\\project", "/root/notes"],
}
HEX = "0123456789abcdef" * 8
LETTERS = "aB3dE5gH7jK9mN1pQ2sT4vW6xY8z" * 10
MORE_SHAPES = {
    "Docker": ("dckr_pat_" + LETTERS[:27], "docker login -u ada -p Hunter2xyzzy", "dckr_oat_" + LETTERS[:32]),
    "Shopify": tuple(f"shp{kind}_{HEX[:32]}" for kind in ("at", "ca", "pa", "ss")),
    "Square": ("sq0atp-" + LETTERS[:22], "sq0csp-" + LETTERS[:43], "EAAA" + LETTERS[:60], "X=EAAA" + LETTERS[:60]),
    "Linear": ("lin_api_" + LETTERS[:40], "lin_oauth_" + HEX[:64]),
    "Notion": ("ntn_12345678901" + LETTERS[:35], "secret_" + LETTERS[:43]),
    "Figma": ("figd_" + LETTERS[:40],),
    "Databricks": ("dapi" + HEX[:32], "dapi" + HEX[:32] + "-2"),
    "Doppler": ("dp.pt." + LETTERS[:43], "dp.st.prd." + LETTERS[:43], "dp.st." + LETTERS[:40]),
    "PlanetScale": tuple(f"pscale_{kind}_{LETTERS[:43]}" for kind in ("tkn", "oauth", "pw")),
    "Supabase": ("sbp_" + HEX[:40], "sb_secret_" + LETTERS[:31]),
    "Sentry": ("sntryu_" + HEX[:64], "sntrys_eyJpYXQiO" + LETTERS[:100] + "_" + LETTERS[:43]),
    "New Relic": (
        "NRAK-" + LETTERS[:27].upper(),
        "NRII-" + LETTERS[:32],
        "NRJS-" + HEX[:19],
        HEX[:36] + "NRAL",
        HEX[:32] + "FFFFNRAL",
    ),
    "New Relic in Europe": ("eu01xx" + HEX[:26] + "FFFFNRAL",),
    "Grafana": ("glc_" + LETTERS[:60] + "==", "glsa_" + LETTERS[:32] + "_" + HEX[:8], "eyJrIjoi" + LETTERS[:80]),
    "Postman": ("PMAK-" + HEX[:24] + "-" + HEX[:34],),
    "Atlassian": ("ATATT3" + LETTERS[:186], "ATBB" + LETTERS[:32]),
    "Perplexity": ("pplx-" + LETTERS[:48],),
    "webhooks of Slack": ("https://hooks.slack.com/services/" + "T0ABCDEFG/B0HIJKLMN/" + LETTERS[:24],),
    "webhooks of Discord": ("https://discord.com/api/webhooks/" + "123456789012345678/" + LETTERS[:68],),
    "webhooks of Stripe": ("whsec_" + LETTERS[:32],),
    "clients of Google": ("GOCSPX-" + LETTERS[:28],),
    "Mailgun": ("key-" + HEX[:32], "mailgun signs with " + HEX[:32] + "-" + HEX[:8] + "-" + HEX[8:16]),
    "Airtable": ("pat" + LETTERS[:14] + "." + HEX[:64], "airtable = new Airtable({k: 'keyA1b2C3d4E5f6G7'})"),
    "Telegram": ("123456789:A" + LETTERS[:34], "https://api.telegram.org/bot123456789:A" + LETTERS[:34] + "/getMe"),
    "Discord": ("MTIzNDU2Nzg5MDEyMzQ1Njc4.GhIjKl." + LETTERS[:38], "OTg3NjU0MzIxMDk4NzY1NDMy.X8abcd." + LETTERS[:27]),
    "mysql -p": ("mysql -u root -pHunter2 shop", "mysqldump -h db -p'correct horse' shop > a.sql", "mariadb -pHunter2"),
    "sshpass -p": (
        "sshpass -p hunter ssh ada@host",
        "sshpass -pHunter2 scp a b",
        "sshpass -p 'correct horse' ssh host",
    ),
    ".pgpass": (
        "db.example.org:5432:shop:ada:Hunter2",
        "*:*:*:postgres:a\\\\:b",
        "$ cat ~/.pgpass\nlocalhost:9999:shop:ada:xyzzy",
        "echo 'db.example.org:5432:shop:ada:Hunter2' >> ~/.pgpass",
        'echo "*:*:*:ada:Hunter2">f; chmod 600 f',
        "+localhost:5432:shop:ada:xyzzy",
    ),
    "passwords of letters before a word": (
        "Enter passphrase: rjmAxyzzyRip then go on",
        "PGPASSWORD=xyzzyplugh psql -h db",
        "mysql --password=xyzzyplugh shop",
    ),
    ".netrc": (
        "machine example.org login bob password Hunter",
        "machine example.org\n  login bob\n  password Hunter\nmachine b.org login c password xyzzy",
    ),
    "Kubernetes": (
        "apiVersion: v1\nkind: Secret\nmetadata:\n  name: shop\ntype: Opaque\ndata:\n  a: YWRh\n  b: SHVudGVyMg==\n",
        "apiVersion: v1\ndata:\n  user: YWRh\n  word: SHVudGVyMg==\nkind: Secret\nmetadata:\n  name: shop\n",
        "kind: Secret\nstringData:\n  word: Hunter2",
        '{"kind": "Secret", "metadata": {"name": "shop"}, "data": {"word": "SHVudGVyMg=="}}',
        '{"apiVersion": "v1", "data": {"word": "SHVudGVyMg=="}, "kind": "Secret"}',
        r'{"applied": "{\"apiVersion\":\"v1\",\"data\":{\"word\":\"SHVudGVyMg==\"},\"kind\":\"Secret\"}"}',
        r'{"applied": "{\"kind\":\"Secret\",\"data\":{\"word\":\"SHVudGVyMg==\"}}"}',
        "+kind: Secret\n+data:\n+  word: SHVudGVyMg==\n",
        "   1→apiVersion: v1\n   2→data:\n   3→  word: SHVudGVyMg==\n   4→kind: Secret\n",
        "kubectl create secret generic shop --from-literal=user=ada --from-literal='word=Hunter2'",
        "users:\n- name: ada\n  user:\n    client-key-data: SHVudGVyMgSHVudGVyMgSHVudGVyMg==\n",
    ),
    "passphrases": (
        "passphrase: correct horse battery staple",
        "The passphrase is orbit-velvet-cactus-lantern",
        "gpg --batch --passphrase hunter -d a.gpg",
        "openssl rsa -in a.pem -passin pass:hunter",
        "ssh-keygen -t ed25519 -N 'open sesame' -f id",
        "seed phrase: ripple scissors kick mammal hire column oak sun offer wealth tomorrow wagon",
    ),
    "GitLab": tuple(f"gl{kind}-{LETTERS[:20]}" for kind in ("dt", "rt", "ptt", "ft", "soat", "imt", "agent", "oas")),
    "GitLab jobs": ("glcbt-64_" + LETTERS[:20],),
    "DigitalOcean": ("doo_v1_" + HEX[:64], "dor_v1_" + HEX[:64]),
    "HubSpot": ("pat-na1-01234567-89ab-cdef-0123-456789abcdef",),
    "Netlify": ("nfp_" + LETTERS[:36],),
    "Render": ("rnd_" + LETTERS[:28],),
    "Fly": ("FlyV1 fm2_" + LETTERS[:80], "fo1_" + LETTERS[:43]),
    "Heroku": ("HRKU-AA" + LETTERS[:58],),
    "Azure": ("abc8Q~" + LETTERS[:34],),
    "LangSmith": ("lsv2_pt_" + HEX[:32] + "_" + HEX[:10],),
    "Pinecone": ("pcsk_" + LETTERS[:70],),
    "Typeform": ("tfp_" + LETTERS[:44],),
    "Contentful": ("CFPAT-" + LETTERS[:43],),
    "Buildkite": ("bkua_" + HEX[:40],),
    "CircleCI": ("CCIPAT_" + LETTERS[:22] + "_" + HEX[:40],),
    "Terraform": (LETTERS[:14] + ".atlasv1." + LETTERS[:60],),
    "Pulumi": ("pul-" + HEX[:40],),
    "RubyGems": ("rubygems_" + HEX[:48],),
    "redis": ("redis-cli -h cache -a Hunter2 ping",),
    "MongoDB": ("mongosh --host db -u ada -p Hunter2 shop", "mongodump -p 'Hunter2' -d shop"),
    "LDAP": ("ldapsearch -x -D cn=ada -w Hunter2 uid=x",),
    "az login": ("az login --service-principal -u ada -p Hunter2 --tenant t",),
    "openssl enc": ("openssl enc -aes-256-cbc -k Hunter2 -in a",),
    "smbclient": ("smbclient //host/share -U ada%Hunter2",),
    "1Password": ("A3-" + LETTERS[:6].upper() + "-" + LETTERS[:11].upper() + "-ABCDE" * 3, "ops_eyJ" + LETTERS[:250]),
    "Adafruit": ("aio_" + LETTERS[:28],),
    "Adobe": ("p8e-" + LETTERS[:32],),
    "Alibaba": ("LTAI" + LETTERS[:20],),
    "Amazon Bedrock": ("ABSK" + LETTERS[:112] + "==", "bedrock-api-key-" + LETTERS[:60]),
    "Amazon MWS": ("amzn.mws.01234567-89ab-cdef-0123-456789abcdef",),
    "Apify": ("apify_api_" + LETTERS[:36],),
    "Artifactory": ("AKCp" + LETTERS[:69], "cmVmd" + LETTERS[:59]),
    "Asana": ("1/1234567890123456:" + HEX[:32], "2/1234567890123456/1234567890123456:" + HEX[:32]),
    "Authress": ("sc_" + LETTERS[:20] + ".abc1.acc_" + LETTERS[:12] + "." + LETTERS[:40],),
    "Brave": ("BSA" + LETTERS[:28],),
    "Brevo": ("xkeysib-" + HEX[:64] + "-" + LETTERS[:16],),
    "Browserbase": ("bb_live_" + LETTERS[:27],),
    "Cerebras": ("csk-" + HEX[:48],),
    "ClickHouse": ("4b1d" + LETTERS[:38],),
    "ClickUp": ("pk_12345678_" + LETTERS[:32].upper(),),
    "Clojars": ("CLOJARS_" + LETTERS[:60],),
    "Cloudflare": ("v1.0-" + HEX[:24] + "-" + (HEX * 2)[:146], "CLOUDFLARE = '" + LETTERS[:40] + "'"),
    "Composio": ("ak_" + LETTERS[:20],),
    "crates.io": ("cio" + LETTERS[:32],),
    "Defined Networking": ("dnkey-" + LETTERS[:26] + "-" + LETTERS[:52],),
    "Dropbox": (
        *("sl." + LETTERS[:135], "sl.u." + (LETTERS * 5)[:1200], LETTERS[:11] + "AAAAAAAAAA" + LETTERS[:43]),
        "dropbox: " + LETTERS[:64],
    ),
    "Duffel": ("duffel_live_" + LETTERS[:43],),
    "Dynatrace": ("dt0c01." + LETTERS[:24].upper() + "." + LETTERS[:64].upper(),),
    "E2B": ("e2b_" + HEX[:40],),
    "EasyPost": ("EZAK" + LETTERS[:54], "EZTK" + LETTERS[:54]),
    "ElevenLabs": ("sk_" + HEX[:48],),
    "Facebook": ("EAAM" + LETTERS[:120], "facebook app 123456789012345|" + LETTERS[:27]),
    "Firebase": ("AAAA" + LETTERS[:7] + ":APA91b" + LETTERS[:134],),
    "Firecrawl": ("fc-" + HEX[:32],),
    "Fireworks": ("fw_" + LETTERS[:24],),
    "Flutterwave": ("FLWSECK_TEST-" + HEX[:32] + "-X", "FLWPUBK_TEST-" + HEX[:32] + "-X"),
    "Frame.io": ("fio-u-" + LETTERS[:64],),
    "GitLab runners": ("GR1348941" + LETTERS[:20], "glffct-" + LETTERS[:20], "_gitlab_session=" + HEX[:32]),
    "GoCardless": ("live_" + LETTERS[:40],),
    "Google accounts": ("1//0" + LETTERS[:60], "4/0A" + LETTERS[:70]),
    "Harness": ("pat." + LETTERS[:22] + "." + HEX[:24] + "." + LETTERS[:20],),
    "Heroku, the old format": ("HRKU-01234567-89ab-cdef-0123-456789abcdef",),
    "Hugging Face organizations": ("api_org_" + "".join(filter(str.isalpha, LETTERS))[:34],),
    "Infracost": ("ico-" + LETTERS[:32],),
    "Intercom": ("dG9rO" + LETTERS[:54] + "=",),
    "Jina": ("jina_" + LETTERS[:60],),
    "LaunchDarkly": tuple(f"{kind}-01234567-89ab-cdef-0123-456789abcdef" for kind in ("sdk", "api", "mob")),
    "Lob": ("live_" + HEX[:35], "test_pub_" + HEX[:31]),
    "Mailchimp": (HEX[:32] + "-us20",),
    "Mapbox": ("sk.eyJ1Ijoi" + LETTERS[:60] + "." + LETTERS[:22], "pk." + HEX[:60] + "." + HEX[:22]),
    "MaxMind": (LETTERS[:6] + "_" + LETTERS[:29] + "_mmk",),
    "Modal": ("ak-" + LETTERS[:22], "as-" + LETTERS[:22]),
    "Neon": ("napi_" + HEX[:64],),
    "NuGet": ("oy2" + HEX[:43],),
    "Octopus Deploy": ("API-" + LETTERS[:26].upper(),),
    "OpenShift": ("sha256~" + LETTERS[:43],),
    "Packagist": ("packagist_uut_" + HEX[:64],),
    "Plaid": ("access-production-01234567-89ab-cdef-0123-456789abcdef",),
    "PostHog": ("phx_" + LETTERS[:43],),
    "Prefect": ("pnu_" + LETTERS[:36],),
    "ReadMe": ("rdme_" + (HEX + HEX)[:70],),
    "Resend": ("re_" + LETTERS[:8] + "_" + LETTERS[:24],),
    "Scalingo": ("tk-us-" + LETTERS[:48],),
    "Segment": ("sgp_" + LETTERS[:50],),
    "services": ("codecov_upload: '" + HEX[:32] + "'", 'SNYK="' + HEX[:36] + '"', "okta => 00" + LETTERS[:40]),
    "SettleMint": tuple(f"sm_{kind}_{LETTERS[:16]}" for kind in ("aat", "pat", "sat")),
    "Shippo": ("shippo_live_" + HEX[:40],),
    "Slack browsers": ("xoxc-123456789012-123456789012-" + HEX[:64], "xoxd-" + LETTERS[:80] + "%3D"),
    "SonarQube": tuple(f"sq{kind}_{HEX[:40]}" for kind in "upa"),
    "Sourcegraph": ("sgp_" + HEX[:16] + "_" + HEX[:40], "sgp_local_" + HEX[:40]),
    "Stripe": ("sk_prod_" + LETTERS[:24],),
    "Tailscale": ("tskey-auth-" + LETTERS[:16] + "-" + LETTERS[:32],),
    "Tavily": ("tvly-" + LETTERS[:32], "tvly-dev-" + LETTERS[:32]),
    "tokens in base64": ("ZXlKaGJHY2lPaU" + LETTERS[:80],),
    "Trello": ("ATTA" + HEX[:64],),
    "Twilio": ("SK" + HEX[:32], "TWILIO_AUTH_TOKEN=" + HEX[:32]),
    "Twitter": ("A" * 22 + LETTERS[:30] + "%2F" + LETTERS[:50],),
    "Vault, the old format": ("s." + LETTERS[:24],),
    "Vercel": ("vck_" + LETTERS[:56], "vercel_blob_rw_" + LETTERS[:16] + "_" + LETTERS[:30]),
    "Voyage": ("pa-" + LETTERS[:43],),
    "Weights & Biases": ("wandb_v1_" + LETTERS[:78],),
    "Yandex": ("t1." + LETTERS[:20] + "." + LETTERS[:86], "AQVN" + LETTERS[:36], "YC" + LETTERS[:38]),
    "Zapier": ("https://hooks.zapier.com/hooks/catch/" + "1234567/" + LETTERS[:16],),
    "42": ("s-s4t2ud-" + HEX[:64],),
    "htpasswd": (
        *("htpasswd -b ada Hunter2", "htpasswd -cb .htpasswd ada Hunter2", "htpasswd -nbB ada 'correct horse'"),
        *("htpasswd -B -C 10 -b /etc/users ada Hunter2 > log", "htpasswd -bn ada Hunter2 prints a line"),
    ),
    "passwords in pipes": (
        *("echo Hunter2 | sudo -S apt update", "echo -n 'correct horse' | sudo -k -S ls", "echo Hunter2|sudo -kS id"),
        *("printf '%s\\n' Hunter2 | sudo -S ls", "echo Hunter2 | docker login -u ada --password-stdin"),
        *("echo Hunter2 | passwd --stdin ada", 'echo "ada:Hunter2" | sudo chpasswd'),
    ),
    "Ionic": ("ion_" + LETTERS[:42],),
    "key_": ("key_" + HEX[:64],),
    "Okta": ("curl https://shop.okta.com/api/v1/users with 00" + LETTERS[:40],),
    "passphrases of three words": ("passphrase: orbit velvet cactus", "Passphrase = velvet orbit lantern."),
}
"""Examples of each kind of secret."""
SECRET_PARTS = (  # none of these may remain
    *(HEX[:19], LETTERS[:14], LETTERS[:22].upper(), "keyA1b2", "MTIzNDU2", "OTg3NjU0", "123456789:A"),
    *(
        "Hunter2",
        "hunter",
        "correct",
        "horse",
        "Hunter",
        "SHVudGVyMg",
        "velvet",
        "sesame",
        "mammal",
        "a\\\\:b",
        "xyzzy",
    ),
    "456789abcdef",
)
NO_SECRETS = [
    "s.configure(options), live_view, test_a_sentence_about_behaviour, pk_index_of_users, sm_size, re_compiled_pattern",
    "task SK-12, the SKU, ciotat, pa-4 grid, as-of-now, ak-47, YCombinator, BSA, fw_version, sl.count, pat.match(text)",
    "https://cloudflare.com, uses: codecov/codecov-action, twitter: @ada, dropbox_folder = 'documents'",
    "sha256~ is a prefix, API-FIRST, tskey-, tvly-, sdk-core, mob-programming, fc-list, HRKU-, ops_team, t1.micro",
    "glrt-runner, pul-request-number, rnd_seed = 4, nfp_, tfp_rate, fo1_score, pat-na1, CFPAT-, rubygems_version 3",
    "EAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA is zeros, and Q~ is nothing",
    "commit " + HEX[:40],
    "sha256:" + HEX[:64],
    "md5 " + HEX[:32],
    "id 123e4567-e89b-12d3-a456-426614174000",
    "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "/9j/4AAQSkZJRgABAQEAYABgAAD/2wBDAAgGBgcGBQgHBwcJCQgKDBQNDAsLDBkSEw8UHRofHh0aHBwgJC4nICIsIxwcKDcpLDAxNDQ0",
    "The passphrase is used to unlock the key, and it must be long.",
    "passphrase: at least four words that you can keep in mind",
    "A mnemonic is a word that helps you remember something else",
    "mysql -u root -p shop",
    "mysql -h db -P 3306",
    "pip install -p 3 mysqlclient",
    "sshpass -e ssh host",
    "src/app.py:12:5:error:unused",
    "12:30:45:67:89",
    "localhost:8080:80:tcp:http",
    "kind: ConfigMap\ndata:\n  word: SHVudGVyMg==\n",
    "kubectl create configmap shop --from-literal=mode=debug; kubectl create secret generic a --from-literal=a=$WORD",
    "the password is: word by word",
    "on this machine, login asks for a password before it starts",
    "Password: Please enter it again",
    "kind: Deployment\nspec:\n  data:\n    word: abc\n",
    "The kind: Secret is described in the manual\nand data: here",
    '{"kind": "ConfigMap", "data": {"colour": "green-and-blue"}}',
    "key-value store, patch.release, patient.record, dapifying, secret_santa, figure_of_eight, shpat_not",
    "MyClassName.method.another_method_of_this_class_here",
    "NoSuchModuleIsInstalled.inside.packages_of_this_environment",
    "https://discord.com/api/webhooks and https://hooks.slack.com/services/",
    "lin_api_, dckr_pat_, whsec_, GOCSPX-, pplx-, PMAK- and sntrys_ are how tokens begin",
    "docker login registry.example.org",
    "redis-cli -h cache ping",
    "mongosh -p --host db",
    "the mongo shell asks with -p, mongodb-server -p 27017",
    "ldapsearch -x uid=x",
    "openssl enc -aes-256-cbc -in a -out b",
    "smbclient -U ada //host/share",
    "ssh-keygen -t ed25519 -f id",
    "openssl rsa -in a.pem -passin env:WORD",
    "mysql -p$PASSWORD shop",
    "htpasswd -c .htpasswd ada\nhtpasswd -nb ada $WORD\nhtpasswd -i .htpasswd ada",
    "echo done | sudo tee /etc/motd; echo $WORD | sudo -S ls; echo 'a | b' and sudo -S",
    "passphrase: the wrong words\npassphrase: optional string value\nPassphrase: orbit velvet cactus, and so on",
    "passphrase is orbit velvet cactus\na passphrase: hidden input field\nEnter passphrase: please try again",
    "ion_exchange_column, region_" + HEX[:42] + ", cache_key_" + HEX[:64] + ", key_" + HEX[:63],
    "00" + HEX[:40] + " is not a token of okta, and 00" + "1" * 40 + " is not either",
    "without its name, 00" + LETTERS[:40] + " is nothing",
    "1234567:Ada wrote the first program for a machine that was not built",
]

PRIVATE = ["lovelace1815", "hunter2hunter2", "0123456789abcdef", "very-secret-value", "b3BlbnNzaC1rZXktdjEAAAA"]

MADE_UP = "Hunter2xyzzyPlugh"
WRITTEN = [
    *(
        "TOKEN=¤",
        "export GITHUB_TOKEN=¤",
        "VAULT_TOKEN=hvs.¤AAAAAAAAAAAA",
        '{"token": "¤"}',
        "DB_PASS=¤",
        "SSHPASS=¤ sshpass -e ssh host",
        "secret_key: ¤=",
        "password: ¤==\nuser: ada",
        "sk_org_live_¤",
        "MYSQL_PWD=¤",
    ),
    *(
        "https://x/y?token=¤&a=1",
        "https://x/y?key=¤",
        "https://x/y?a=1&sig=¤",
        "AccountKey=¤==;",
        "_auth=¤",
        "PGPASSWORD=¤",
    ),
    *('{"auths": {"x": {"auth": "¤"}}}', "//packages.example/:_authToken=¤", "dbPassword: ¤", "X-API-Key: ¤"),
    *(
        "password := '¤'",
        "'password' => '¤'",
        "password == '¤'",
        'password = b"¤"',
        "password=f'¤'",
        'config["password"] = "¤"',
    ),
    *(
        "<password>¤</password>",
        "<db:password>¤</db:password>",
        "password: |\n  ¤\n",
        "password:\n  ¤",
        "password: `¤`",
    ),
    *("mysql --password ¤", "deploy --api-token '¤'", "curl -s -u bob:¤ https://x", "machine h login u password ¤"),
    *(
        'password="ab,¤"',
        r'password="a\"b¤"',
        r"{\"password\": \"¤\"}",
        r"{\\\"password\\\": \\\"a ¤\\\"}",
        "password%3D¤",
    ),
    *("**password:** ¤", "| password | ¤ |", "the password is ¤", "password&quot;:&quot;¤&quot;", "secret=abc¤"),
    *(
        "https://¤@github.com/x/y",
        "postgres://u:ab/¤@db/x",
        "postgres://u:ab@¤@db/x",
        "st_¤_abcdefghijklmnopqrstuvwxyz012345",
    ),
    *("Authorization: ApiKey ¤", 'Authorization: Digest username="bob", response="¤"', "Proxy-Authorization: Basic ¤"),
    *(
        "Authorization: AWS4-HMAC-SHA256 Credential=x, Signature=¤",
        "Cookie: theme=dark; sid=¤; x=1",
        "Set-Cookie: sid=¤",
    ),
    *("AAAA\n  ¤\n-----END RSA PRIVATE KEY-----", "PuTTY-User-Key-File-3: ssh-rsa\nPrivate-Lines: 1\n¤\n"),
]
PROSE = [
    *("the tokens are few", "src/home/page.py", "https://example.org/home/page", "sk-8", "a secret garden"),
    *(
        "the password is checked",
        "The secret: practice every day",
        "a token is read; the key is lost",
        "password: string",
    ),
    *(
        "basic understanding of it",
        "Bearer authentication",
        "Authorization: users have to log in",
        "use --password instead",
    ),
    *(
        "http://localhost:3000/@vite/client",
        "https://medium.com/@ada",
        "ssh://git@github.com/x",
        "http://[::1]:80/@vite",
    ),
    *(
        "| API_KEY | openai/gpt-oss-120b |",
        "monkey=a1b2c3d4e5",
        "bypass: a1b2c3d4e5",
        "PWD=/srv/work2/app",
        "max_tokens=4096",
    ),
]
CODE = [
    *(
        "token = next(tokens)",
        "sorted(x, key=lambda x: x)",
        "key = names[0]",
        "password = getpass.getpass()",
        "pass: int = 3",
    ),
    *(
        "connect(password=password)",
        "api_key=settings.api_key",
        "password = self._password",
        "token: str = read_token(x1)",
    ),
    *("def login(password: str, token: str | None = None)", "api_key = os.environ['API_KEY']", "PASSWORD=$DB_PASSWORD"),
    *("f'Authorization: Bearer {token}'", "headers = {'Authorization': f'Bearer {token}'}", "TOKEN=${GITHUB_TOKEN}"),
    *(
        '{"password": "string"}',
        'credentials: "omit"',
        'password = ""',
        "if password == None:",
    ),
    *('cache_key = "users_by_name_2024"', "token_type = 'x1y2z3a4b5'", 'fetch(url, {cookie: "include"})'),
]


def is_redacted(text: str, shape: str) -> bool:
    """Return whether the private part of an example is no longer in the text."""
    hidden = next((word for word in PRIVATE if word in shape), shape)
    return hidden not in text and "ada" not in text.replace("metadata", "")


@pytest.mark.parametrize(("what", "shape"), [(what, shape) for what, shapes in SHAPES.items() for shape in shapes])
def test_every_shape_of_a_secret_is_redacted_and_counted_by_kind(what: str, shape: str) -> None:
    redactor = Redactor()

    assert is_redacted(redactor.redact_text(f"before {shape} after"), shape)
    assert redactor.redact_text(shape) != shape
    assert what in redactor.report.counts


@pytest.mark.parametrize("text", [*PROSE, *CODE])
def test_text_without_secrets_is_unchanged(text: str) -> None:
    assert Redactor().redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [pytest.param(text, id=f"{kind} {at}") for kind, texts in MORE_SHAPES.items() for at, text in enumerate(texts)],
)
def test_known_kinds_of_secrets_are_redacted(text: str) -> None:
    redactor = Redactor()

    clean = redactor.redact_text(f"Look:\n{text}\nThat is it.")

    assert redactor.report.total >= 1
    assert [part for part in SECRET_PARTS if part in clean] == []
    assert clean.startswith("Look:\n")
    assert clean.endswith("\nThat is it.")


@pytest.mark.parametrize("text", NO_SECRETS)
def test_text_that_resembles_a_secret_is_unchanged(text: str) -> None:
    assert Redactor().redact_text(text) == text


def test_values_of_a_json_manifest_are_redacted() -> None:
    manifest = {"kind": "Secret", "data": {"word": "SHVudGVyMg==", "more": {"a": "YWRh"}}}
    line = write_object({"type": "custom", "id": "aaaaaaaa", "customType": "it", "data": manifest})

    (clean,) = Redactor().redact_lines([line])

    assert b"SHVudGVyMg" not in clean
    assert b"YWRh" not in clean


@pytest.mark.parametrize("text", WRITTEN)
def test_a_secret_is_found_in_every_spelling(text: str) -> None:
    redacted = Redactor().redact_text(text.replace("¤", MADE_UP))

    assert MADE_UP not in redacted
    assert Redactor().redact_text(redacted) == redacted


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("Authorization: token ¤ now\nHost: x", "Authorization: [redacted authorization]\nHost: x"),
        ("curl -H 'Cookie: a=b; sid=¤' https://x", "curl -H 'Cookie: [redacted authorization]' https://x"),
        ('password: "correct horse ¤", user: "ada"', 'password: "[redacted named secret]", user: "ada"'),
        ("secret: |\n  one\n  ¤\nuser: ada", "secret: |\n  [redacted named secret]\nuser: ada"),
        ("redis://:¤@cache:6379/0", "redis://[redacted password in an address]@cache:6379/0"),
        ("token = login(password='¤')", "token = login(password='[redacted named secret]')"),
        ("const password: string = '¤'", "const password: string = '[redacted named secret]'"),
    ],
)
def test_a_whole_secret_is_redacted_and_its_surroundings_stay(text: str, redacted: str) -> None:
    assert Redactor().redact_text(text.replace("¤", MADE_UP)) == redacted


@pytest.mark.parametrize(
    "data",
    [
        *({name: MADE_UP} for name in ("dbPassword", "openaiApiKey", "PGPASSWORD", "clientSecretValue", "Api Key")),
        *({name: MADE_UP} for name in ("token", "GITHUB_TOKEN", "pwd", "DB_PASS", "auth", "jwt", "STRIPE_KEY")),
        *({"password": [MADE_UP]}, {"X-Api-Key": [[MADE_UP]]}, {"credentials": {"user": "u", "is": {"it": MADE_UP}}}),
        *({"name": "DB_PASSWORD", "value": MADE_UP}, ["Authorization", MADE_UP], ["mysql", "--password", MADE_UP]),
        *({"password": 9182736450}, {"secret": "letmein"}, {"cookies": {"Cookie": "letmein"}}),
    ],
)
def test_everything_below_a_secret_field_is_redacted(data: Any) -> None:
    line = json.dumps({"type": "custom", "id": "x", "parentId": None, "customType": "y", "data": data}).encode()

    (redacted,) = Redactor().redact_lines([line])

    assert not any(word in redacted for word in (MADE_UP.encode(), b"9182736450", b"letmein"))


@pytest.mark.parametrize(
    "data",
    [
        *(
            {"token": "return"},
            {"key": "users_by_name_2024"},
            {"pwd": "/srv/work2"},
            {"password": None},
            {"secret": True},
        ),
        *({"tokens": 4096}, {"token": 17}, {"keyboard": "a1b2c3d4e5"}, {"cacheKey": "users/17/profile"}),
        {"password": {"type": "string", "description": "at least 12 characters"}},
    ],
)
def test_a_field_whose_name_only_resembles_a_secret_keeps_its_bytes(data: Any) -> None:
    line = {"type": "custom", "id": "x", "parentId": None, "customType": "y", "data": data}
    raw = json.dumps(line, separators=(",", ":")).encode()

    assert Redactor().redact_lines([raw]) == [raw]


@pytest.mark.parametrize("form", FORMATS)
def test_no_export_format_contains_a_secret_of_any_field(form: str) -> None:
    lines = make_hostile_lines([SECRET])

    exported = export(lines, form, redactor=Redactor())

    assert SECRET in b"".join(lines).decode()
    assert SECRET.encode() not in exported.content
    assert exported.report is not None
    assert exported.report.counts["token"] > 100


def test_an_empty_redaction_exports_nothing() -> None:
    class Strict(Redactor):
        def redact_lines(self, lines: Iterable[bytes]) -> list[bytes]:
            return []

    assert export(make_hostile_lines([SECRET]), "jsonl", redactor=Strict()).content == b""


@pytest.mark.parametrize("shape", [shape for shapes in SHAPES.values() for shape in shapes])
def test_every_shape_is_redacted_in_every_field(shape: str) -> None:
    lines = make_hostile_lines([shape])

    text = export(lines, "jsonl", redactor=Redactor()).content.decode()

    assert is_redacted(text.replace("\\\\", "\\"), shape)


REPEATED = (
    *(
        "-----BEGIN PRIVATE KEY",
        "-----BEGIN " + " " * 50,
        "eyJaaaaaaaa-",
        "eyJaaaaaaaa.",
        "SG.aaaaaaaaaaaaaaaa-",
        "sk-",
    ),
    *(
        "://a:b",
        "://",
        "x@",
        "password ",
        "password= ",
        "password='",
        "password: ",
        'password=\\"a',
        "secret_",
        "token=",
    ),
    *("Authorization: a", "cookie:", "password: |\n  ", "<password>", "curl -u ", "--token", "api_", "key", "aaaa\n"),
    *("/home/", "-home-", "\\", "1.", "st_", "A", "|", "is ", " ", "ya29.aaaaaaaaaaaaaaaaaaaa-"),
    *(
        "kind: Secret\n",
        "kind: Secret ",
        "data:\n  a: b\n",
        "data:\n",
        " data:\n",
        '"kind": "Secret" ',
        '"data": {',
        '"data": {}',
    ),
    *(
        '"kind": "Secret" {}',
        "0123456789abcdef",
        "0123456789abcdef0123456789abcdef-",
        "EAAA",
        "Ma",
        "Ma.",
        "1:A",
        "123456:A",
    ),
    *(
        "mysql ",
        "mysql -",
        "mysql -p'",
        "mysql -p",
        "sshpass -p ",
        "docker login ",
        "redis-cli ",
        "mongo -p ",
        "smbclient -U ",
        "openssl enc ",
        "ssh-keygen ",
        "airtable ",
        "htpasswd -b ",
        "htpasswd -b a ",
        "echo ",
        "echo '",
        "echo 'a |sudo ",
        "|sudo -",
    ),
    *(
        "passphrase ",
        "passphrase: a",
        "passphrase: ab ",
        "ab ",
        "a:5432:",
        "a:5432:b:",
        "'a:*:",
        "--from-literal=a=",
        "machine login a password ",
        "machine login ",
        " secret --from-literal=a=",
        "1\tdata:\n1\t a\n",
        "+data:\n+ a\n",
        "12",
        "*:",
        "a.",
        "glc_",
        "dp.st.a.",
        "pat",
        "key-",
    ),
    *("hooks.slack.com/services/", "-passin pass:", "--passphrase ", "sntrys_", "NRAK-", "ATATT3", "pscale_pw_"),
)
BEGUN = {"-----BEGIN ": "PRIVATE KEY", "eyJaaaaaaaa.": "-eyJaaaaaaaa", "://": "a:", "password": " ", "C:": "\\"}
BEGUN |= {
    "passphrase: ": "ab ",
    "kind: Secret\n": "a\n",
    "data:\n": " a\n",
    '"data": {': "a",
    "mysql -p'": "a",
    "a:5432:b:c:": "d",
    "1→data:\n": "1→ a\n",
    "data: \n": "1\n",
    " secret --from-literal=a='": "a ",
    "htpasswd -b": " a",
    "sudo echo '": "a ",
}
REDACTS = """
import json, resource, sys
from sessiontree.export import Redactor
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
for text in json.load(sys.stdin):
    Redactor().redact_text(text)
"""


def test_redaction_of_adversarial_texts_takes_linear_time() -> None:
    """Quadratic time would take many minutes of CPU time here."""
    texts = [piece * (80_000 // len(piece)) for piece in REPEATED]
    texts += [start + piece * (400_000 // len(piece)) for start, piece in BEGUN.items()]

    done = subprocess.run([sys.executable, "-c", REDACTS], input=json.dumps(texts), text=True, timeout=170)

    assert done.returncode == 0


def test_the_tree_stays_intact_when_ids_and_branch_names_contain_secrets() -> None:
    session = st.memory()
    session.append(st.user("one"))
    for number in range(3):
        session.create_branch(f"{SECRET}{number}", at="main")
        session.append(st.assistant(f"branch {number}"))

    whole = read_snapshot(export(session.read_lines(), "jsonl", redactor=Redactor()).content.split(b"\n")[:-1])

    assert len(whole.heads.heads) == 4
    assert len(set(whole.heads.heads.values())) == 4
    assert SECRET not in "".join(whole.heads.heads)
    assert not whole.problems


def test_branches_named_only_in_a_head_record_stay_separate_when_their_names_contain_secrets() -> None:
    session = st.memory()
    one, two = session.append(st.user("one")), session.append(st.user("two"))
    heads = {"main": two.id, SECRET: one.id, f"{SECRET}2": two.id}
    record = Custom(custom_type=HEAD_RECORD, data={"current": f"{SECRET}2", "heads": heads})
    written = write_entry(record, id="ffffffff", parent=two.id, timestamp=two.timestamp, branch="main")
    lines = [*session.read_lines(), written.raw]

    whole = read_snapshot(Redactor().redact_lines(lines))

    assert len(whole.heads.heads) == 3
    assert whole.leaf == read_snapshot(lines).leaf == two.id


def test_branches_named_like_a_secret_keep_their_heads() -> None:
    session = st.memory()
    session.append(st.user("one"))
    for name in ("auth", "fix-token", "password"):
        session.create_branch(name, at="main")
        session.append(st.assistant(name))
    session.navigate_sync("auth")
    session.switch("main")

    assert read_snapshot(Redactor().redact_lines(session.read_lines())).heads.heads == session.heads.heads


def test_redacted_jsonl_is_marked_and_read_only(tmp_path: Any) -> None:
    file = tmp_path / "redacted.jsonl"
    file.write_bytes(export(make_story().read_lines(), "jsonl", redactor=Redactor()).content)

    session = st.open(file)

    assert read_object(file.read_bytes().split(b"\n")[0])["redacted"] is True
    assert session.read_only is not None
    with pytest.raises(st.ReadOnly, match="redacted"):
        session.append(st.user("more"))
    with pytest.raises(st.ReadOnly, match="redacted"):
        session.fork()


def test_a_subset_of_a_redacted_session_is_marked_as_redacted() -> None:
    redacted = export(make_story().read_lines(), "jsonl", redactor=Redactor()).content.split(b"\n")[:-1]

    part = export(redacted, "jsonl", branch="cache").content.split(b"\n")[0]

    assert read_object(part)["redacted"] is True


def test_user_patterns_are_redacted_and_format_words_stay() -> None:
    redactor = Redactor([r"(?i)dict", "message"])

    whole = read_snapshot(export(make_story().read_lines(), "jsonl", redactor=redactor).content.split(b"\n")[:-1])

    assert b"Take the dict" not in b"".join(whole.lines)
    assert any(entry.type == "message" for entry in whole.tree)
    assert redactor.report.counts["pattern 1"] > 2


def test_an_invalid_regular_expression_is_refused() -> None:
    with pytest.raises(InvalidOperation, match="not a regular expression"):
        Redactor(["("])


def test_an_unusual_home_folder_is_redacted_if_it_is_given() -> None:
    assert Redactor(homes=["/srv/people/ada"]).redact_text("in /srv/people/ada/work") == "in ~/work"


def test_an_unreadable_line_is_omitted_and_counted() -> None:
    lines = [*make_story().read_lines(), b'{"broken": "' + SECRET.encode()]

    exported = export(lines, "jsonl", redactor=Redactor())

    assert SECRET.encode() not in exported.content
    assert exported.report is not None
    assert exported.report.skipped_lines == 1


def test_a_secret_behind_a_duplicate_key_is_redacted() -> None:
    raw = b'{"type":"custom","id":"x","parentId":null,"customType":"y","data":"' + SECRET.encode() + b'","data":"fine"}'

    assert SECRET.encode() not in export([make_story().read_lines()[0], raw], "jsonl", redactor=Redactor()).content


def test_lines_without_secrets_keep_their_bytes() -> None:
    lines = make_story().read_lines()

    redacted = Redactor().redact_lines(lines)

    assert redacted[1:] == lines[1:]


words = st_.sampled_from([*PRIVATE[:3], SECRET, "fine", "/home/ada/x", "password"])
values = st_.recursive(words, lambda inner: st_.lists(inner, max_size=3) | st_.dictionaries(words, inner, max_size=3))


@given(values)
def test_a_token_is_found_at_any_depth(value: Any) -> None:
    line = json.dumps({"type": "custom", "id": "x", "parentId": None, "customType": "y", "data": value}).encode()

    (redacted,) = Redactor().redact_lines([line])

    assert SECRET.encode() not in redacted
    assert b"/home/ada" not in redacted
