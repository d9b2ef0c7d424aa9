"""Shapes of the tokens that services issue. `secret_patterns` makes rules of them.

Every pattern is bounded, or its last repeat ends it, so that it runs in linear time. The shapes follow what services
publish, and what scanners such as gitleaks look for.
"""

from __future__ import annotations

TOKEN_END = r"(?![A-Za-z0-9_+/=-])"

COMMON_TOKENS = (
    r"sk-[A-Za-z0-9_-]{16,}",  # OpenAI, Anthropic and compatible providers
    r"(?:sk|rk|pk)_(?:org_)?(?:live|test|prod)_[A-Za-z0-9]{10,}",  # Stripe
    r"gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}",
    r"glpat-[A-Za-z0-9_-]{16,}",
    r"xox[a-eo-s]-[A-Za-z0-9%-]{10,}|xapp-[A-Za-z0-9-]{10,}",  # Slack
    r"hf_[A-Za-z0-9]{20,}|gsk_[A-Za-z0-9]{20,}|r8_[A-Za-z0-9]{20,}|nvapi-[A-Za-z0-9_-]{20,}|xai-[A-Za-z0-9]{20,}",
    r"pypi-[A-Za-z0-9_-]{16,}|npm_[A-Za-z0-9]{20,}|dop_v1_[a-f0-9]{32,}",
    r"AIza[A-Za-z0-9_-]{30,}|ya29\.[A-Za-z0-9_-]{20,}",  # Google
    r"(?:A3T[A-Z0-9]|AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",  # AWS
    r"SG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
    r"hv[brs]\.[A-Za-z0-9_-]{20,}",  # Vault
    r"AGE-SECRET-KEY-1[A-Z0-9]{40,}",
    r"st_[A-Za-z0-9_-]{40,}",  # sessiontree servers
    r"(?<![_-])eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",  # JSON web tokens
)
"""Shapes that are looked for in one pass."""

_UUID = r"[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}"

MORE_TOKENS = (
    ("dckr_", r"dckr_[po]at_[A-Za-z0-9_-]{20,}"),  # Docker
    ("shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32,}"),  # Shopify
    ("sq0", r"sq0(?:atp|csp|idp)-[A-Za-z0-9_-]{22,}"),  # Square
    ("eaaa", rf"(?<![+/_-])EAAA(?=[A-Za-z_-]{{0,60}}[0-9])[A-Za-z0-9_-]{{22,60}}{TOKEN_END}"),
    ("lin_", r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}"),  # Linear
    ("ntn_", r"ntn_[A-Za-z0-9]{40,}"),  # Notion
    ("secret_", rf"secret_[A-Za-z0-9]{{43}}{TOKEN_END}"),
    ("fig", r"fig[dour]_[A-Za-z0-9_-]{30,}"),  # Figma
    ("dapi", rf"dapi[a-f0-9]{{32}}(?:-[0-9]{{1,2}})?{TOKEN_END}"),  # Databricks
    (
        "dp.",
        r"dp\.(?:pt|ct|sa|scim|audit)\.[A-Za-z0-9]{40,}|dp\.st\.(?:[a-z0-9_-]{2,40}\.)?[A-Za-z0-9]{40,}",
    ),  # Doppler
    ("pscale_", r"pscale_(?:tkn|oauth|pw|pass)_[A-Za-z0-9_=.-]{32,}"),  # PlanetScale
    ("sbp_", r"sbp_(?:v0_)?[a-f0-9]{40,}"),  # Supabase
    ("sb_secret_", r"sb_secret_[A-Za-z0-9_-]{20,}"),
    ("sntry", r"sntrys_[A-Za-z0-9+/=_-]{40,}|sntry[ua]_[a-f0-9]{64}"),  # Sentry
    *((f"nr{kind}-", rf"NR{kind.upper()}-[A-Za-z0-9_-]{{18,}}") for kind in ("ak", "js", "ii", "iq", "ra", "aa")),
    # New Relic, above, and its license keys
    ("nral", rf"[A-Za-z0-9]{{36}}NRAL{TOKEN_END}"),
    ("glc_", r"glc_[A-Za-z0-9+/]{32,}={0,3}"),  # Grafana
    ("glsa_", r"glsa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8}"),
    ("eyjrijoi", r"(?<![+/])eyJrIjoi[A-Za-z0-9]{40,}={0,3}"),
    ("pmak-", r"PMAK-[a-f0-9]{24}-[a-f0-9]{34}"),  # Postman
    ("tt3", r"AT[ACS]TT3[A-Za-z0-9_=-]{40,}"),  # Atlassian
    ("atbb", r"(?<![+/])ATBB[A-Za-z0-9]{24,}"),
    ("pplx-", r"pplx-[A-Za-z0-9]{32,}"),  # Perplexity
    ("whsec_", r"whsec_[A-Za-z0-9+/=_-]{24,}"),  # Stripe webhooks
    ("gocspx-", r"GOCSPX-[A-Za-z0-9_-]{20,}"),  # Google clients
    ("key-", rf"(?<![_-])(?:pub)?key-[a-f0-9]{{32}}{TOKEN_END}"),  # Mailgun
    ("mailgun", rf"(?<![_-])[a-f0-9]{{32}}-[a-f0-9]{{8}}-[a-f0-9]{{8}}{TOKEN_END}"),
    ("pat", rf"pat[A-Za-z0-9]{{14}}\.[a-f0-9]{{64}}{TOKEN_END}"),  # Airtable
    *(  # GitLab
        (f"gl{kind}-", rf"gl{kind}-[A-Za-z0-9_-]{{20,}}")
        for kind in ("dt", "rt", "ptt", "ft", "ffct", "soat", "imt", "agent", "oas", "cbt")
    ),
    ("gr1348941", r"GR1348941[A-Za-z0-9_-]{20,}"),
    ("_gitlab_session=", r"(?<=_gitlab_session=)[a-z0-9]{32,}"),
    ("_v1_", r"do[or]_v1_[a-f0-9]{64}"),  # DigitalOcean
    ("pat-", r"pat-(?:na|eu|ap)[0-9]-[a-f0-9]{8}-(?:[a-f0-9]{4}-){3}[a-f0-9]{12}"),  # HubSpot
    ("nfp_", r"nfp_[A-Za-z0-9]{36,}"),  # Netlify
    ("rnd_", r"rnd_[A-Za-z0-9]{28,}"),  # Render
    ("fm", r"fm(?:1[ar]|2)_[A-Za-z0-9+/]{60,}={0,3}"),  # Fly
    ("fo1_", r"fo1_[A-Za-z0-9_-]{40,}"),
    ("hrku-", rf"HRKU-(?:AA[A-Za-z0-9_-]{{58}}|{_UUID})"),  # Heroku
    ("q~", rf"[A-Za-z0-9_~.]{{3}}[0-9]Q~[A-Za-z0-9_~.-]{{31,34}}{TOKEN_END}"),  # Azure
    ("lsv2_", r"lsv2_(?:pt|sk)_[a-f0-9]{32}_[a-f0-9]{10}"),  # LangSmith
    ("pcsk_", r"pcsk_[A-Za-z0-9_]{50,}"),  # Pinecone
    ("tfp_", r"tfp_[A-Za-z0-9_.-]{40,}"),  # Typeform
    ("cfpat-", r"CFPAT-[A-Za-z0-9_-]{43}"),  # Contentful
    ("bkua_", r"bkua_[A-Za-z0-9]{40}"),  # Buildkite
    ("ccipat_", r"CCIPAT_[A-Za-z0-9]{20,24}_[a-f0-9]{40}"),  # CircleCI
    (".atlasv1.", r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}"),  # Terraform
    ("pul-", rf"pul-[a-f0-9]{{40}}{TOKEN_END}"),  # Pulumi
    ("rubygems_", r"rubygems_[a-f0-9]{48}"),
    ("mfa.", r"mfa\.[A-Za-z0-9_-]{80,}"),  # Discord
    ("a3-", r"A3-[A-Z0-9]{6}-(?:[A-Z0-9]{11}|[A-Z0-9]{6}-[A-Z0-9]{5})(?:-[A-Z0-9]{5}){3}"),  # 1Password
    ("ops_", r"ops_eyJ[A-Za-z0-9+/_-]{200,}={0,3}"),
    ("p8e-", rf"p8e-[A-Za-z0-9]{{32}}{TOKEN_END}"),  # Adobe
    ("akcp", r"AKCp[A-Za-z0-9]{60,}"),  # Artifactory
    ("cmvmd", rf"(?<![+/])cmVmd[A-Za-z0-9]{{59}}{TOKEN_END}"),
    (
        ".acc",  # Authress
        r"(?:sc|ext|scauth|authress)_[A-Za-z0-9]{5,30}\.[A-Za-z0-9]{4,6}\.acc[_-][A-Za-z0-9-]{10,32}"
        r"\.[A-Za-z0-9+/_=-]{30,}",
    ),
    ("absk", r"(?<![+/])ABSK[A-Za-z0-9+/]{109,}={0,2}"),  # Amazon Bedrock
    ("bedrock-api-key-", r"bedrock-api-key-[A-Za-z0-9+/=_-]{20,}"),
    ("amzn.mws.", rf"amzn\.mws\.{_UUID}"),
    ("clojars_", r"(?i:CLOJARS_)[A-Za-z0-9]{60}"),
    ("v1.0-", r"v1\.0-[a-f0-9]{24}-[a-f0-9]{146}"),  # Cloudflare
    ("duffel_", r"duffel_(?:test|live)_[A-Za-z0-9_=-]{43}"),
    ("dt0", r"dt0[a-z][0-9]{2}\.[A-Z0-9]{24}\.[A-Z0-9]{64}"),  # Dynatrace
    ("ez", r"EZ[AT]K[A-Za-z0-9]{54}"),  # EasyPost
    ("eaa", r"(?<![+/])EAA[MC][A-Za-z0-9]{100,}"),  # Facebook
    ("facebook", rf"[0-9]{{15,16}}[|%][A-Za-z0-9_-]{{27,40}}{TOKEN_END}"),
    ("flw", r"FLW(?:SEC|PUB)K(?:_TEST)?-[a-h0-9]{32}-X|FLWSECK_TEST[A-Za-z0-9]{12}"),  # Flutterwave
    ("fio-u-", r"fio-u-[A-Za-z0-9_=-]{64}"),  # Frame.io
    ("at.", r"(?:pat|sat)\.[A-Za-z0-9_-]{22}\.[A-Za-z0-9]{24}\.[A-Za-z0-9]{20}"),  # Harness
    ("api_org_", r"api_org_[A-Za-z]{34}"),  # Hugging Face
    ("ico-", rf"ico-[A-Za-z0-9]{{32}}{TOKEN_END}"),  # Infracost
    ("s-s4t2", r"s-s4t2(?:ud|af)-[a-f0-9]{64}"),  # 42
    ("zxlk", r"(?<![+/])ZXlK[A-Za-z0-9+/_-]{60,}={0,3}"),  # JSON web tokens in base64
    ("_mmk", rf"[A-Za-z0-9]{{6}}_[A-Za-z0-9]{{29}}_mmk{TOKEN_END}"),  # MaxMind
    ("api-", rf"API-[A-Z0-9]{{26}}{TOKEN_END}"),  # Octopus Deploy
    ("sha256~", r"sha256~[A-Za-z0-9_-]{43}"),  # OpenShift
    ("pnu_", r"pnu_[A-Za-z0-9]{36}"),  # Prefect
    ("rdme_", r"rdme_[a-z0-9]{70}"),  # ReadMe
    ("tk-us-", r"tk-us-[A-Za-z0-9_-]{48}"),  # Scalingo
    ("xkeysib-", r"xkeysib-[a-f0-9]{64}-[A-Za-z0-9]{16}"),  # Brevo
    ("sm_", rf"sm_[aps]at_[A-Za-z0-9]{{16}}{TOKEN_END}"),  # SettleMint
    ("shippo_", r"shippo_(?:live|test)_[a-fA-F0-9]{40}"),
    ("sgp_", r"sgp_(?:(?:[a-fA-F0-9]{16}|local)_)?[a-fA-F0-9]{40}|sgp_[A-Za-z0-9]{50,}"),  # Sourcegraph, Segment
    ("sk", rf"SK[a-fA-F0-9]{{32}}{TOKEN_END}"),  # Twilio
    ("dnkey-", r"dnkey-[A-Za-z0-9_=-]{26}-[A-Za-z0-9_=-]{52}"),
    ("sl.", r"(?<![_.-])sl\.(?:u\.)?[A-Za-z0-9_=-]{130,}"),  # Dropbox
    ("aaaaaaaaaa", rf"(?<![+/])[A-Za-z0-9]{{11}}AAAAAAAAAA[A-Za-z0-9_=-]{{43}}{TOKEN_END}"),
    ("live_", rf"(?<!_)live_[A-Za-z0-9_=-]{{40}}{TOKEN_END}"),  # GoCardless
    *((f"{kind}_", rf"(?<!_){kind}_(?:pub_)?[a-f0-9]{{31,35}}{TOKEN_END}") for kind in ("live", "test")),  # Lob
    ("-us", rf"[a-f0-9]{{32}}-us[0-9]{{1,2}}{TOKEN_END}"),  # Mailchimp
    ("k.", r"(?<![_.-])[pst]k\.(?:eyJ[A-Za-z0-9_-]{40,200}|[a-z0-9]{60})\.[A-Za-z0-9_-]{22}"),  # Mapbox
    ("access-", rf"access-(?:sandbox|development|production)-{_UUID}"),  # Plaid
    ("sq", rf"sq[upa]_[a-f0-9]{{40}}{TOKEN_END}"),  # Sonar
    ("aaaaaaaaaaaaaaaaaaaaaa", r"(?<![+/])A{22}[A-Za-z0-9]{8,60}%[23][A-Za-z0-9%]{10,}"),  # Twitter
    ("t1.", r"t1\.[A-Za-z0-9_-]{10,300}={0,2}\.[A-Za-z0-9_-]{86}={0,2}"),  # Yandex
    ("aqvn", r"(?<![+/])AQVN[A-Za-z0-9_-]{35,38}"),
    ("cio", rf"cio[A-Za-z0-9]{{32}}{TOKEN_END}"),  # crates.io
    ("oy2", rf"oy2[a-z0-9]{{43}}{TOKEN_END}"),  # NuGet
    ("aio_", rf"aio_[A-Za-z0-9]{{28}}{TOKEN_END}"),  # Adafruit
    ("ltai", rf"(?<![+/])LTAI[A-Za-z0-9]{{20}}{TOKEN_END}"),  # Alibaba
    ("apa91b", r"[A-Za-z0-9_-]{11}:APA91b[A-Za-z0-9_-]{120,}"),  # Firebase
    (":", r"[12]/[0-9]{15,16}(?:/[0-9]{15,16})?:[a-f0-9]{32}"),  # Asana
    ("dg9ro", r"(?<![+/])dG9rO[A-Za-z0-9+/]{50,}={0,2}"),  # Intercom
    ("1//0", r"1//0[A-Za-z0-9_-]{40,}"),  # Google
    ("4/0a", r"4/0A[A-Za-z0-9_-]{60,}"),
    ("ph", r"ph[cx]_[A-Za-z0-9]{40,}"),  # PostHog
    ("tskey-", r"tskey-(?:[a-z]{2,20}-)?[A-Za-z0-9]{10,}(?:-[A-Za-z0-9]{20,})?"),  # Tailscale
    ("re_", r"re_[A-Za-z0-9]{8}_[A-Za-z0-9]{24}"),  # Resend
    ("vercel_", r"vercel_[a-z_]{2,20}_[A-Za-z0-9]{16,}(?:_[A-Za-z0-9]{20,})?"),
    ("vc", r"vc[acikpr]_[A-Za-z0-9]{50,}"),  # Vercel
    ("tvly-", r"tvly-(?:[a-z]{2,8}-)?[A-Za-z0-9_-]{30,}"),  # Tavily
    ("sk_", rf"sk_[a-f0-9]{{48}}{TOKEN_END}"),  # ElevenLabs
    ("csk-", r"csk-[a-z0-9]{40,}"),  # Cerebras
    ("wandb_v1_", r"wandb_v1_[A-Za-z0-9_]{40,}"),
    *((f"{kind}-", rf"{kind}-{_UUID}") for kind in ("sdk", "api", "mob")),  # LaunchDarkly
    ("pk_", rf"pk_[0-9]{{6,10}}_[A-Z0-9]{{32}}{TOKEN_END}"),  # ClickUp
    ("atta", r"ATTA[a-f0-9]{64}"),  # Trello
    ("packagist_", r"packagist_[a-z]{3}_[a-f0-9]{60,}"),
    ("napi_", r"napi_[a-z0-9]{60,}"),  # Neon
    ("apify_api_", r"apify_api_[A-Za-z0-9]{30,}"),
    ("jina_", r"jina_[A-Za-z0-9_-]{40,}"),
    ("e2b_", rf"e2b_[a-f0-9]{{40}}{TOKEN_END}"),
    ("bb_live_", r"bb_live_[A-Za-z0-9_-]{24,}"),  # Browserbase
    ("fc-", rf"fc-[a-f0-9]{{32}}{TOKEN_END}"),  # Firecrawl
    ("ion_", rf"(?<!_)ion_[A-Za-z0-9]{{42}}{TOKEN_END}"),  # Ionic
    ("key_", rf"(?<![_-])key_[a-f0-9]{{64}}{TOKEN_END}"),
)
"""A part of each shape in lower case, which is searched first, and its pattern."""

SHORT_TOKENS = (
    ("s.", rf"s\.[A-Za-z0-9]{{24}}{TOKEN_END}"),  # Vault, the old format
    ("4b1d", rf"4b1d[A-Za-z0-9]{{38}}{TOKEN_END}"),  # ClickHouse
    ("yc", rf"YC[A-Za-z0-9_-]{{38}}{TOKEN_END}"),  # Yandex
    ("fw_", rf"fw_[A-Za-z0-9]{{22,32}}{TOKEN_END}"),  # Fireworks
    ("bsa", rf"BSA[A-Za-z0-9_-]{{28}}{TOKEN_END}"),  # Brave
    ("pa-", rf"pa-[A-Za-z0-9_-]{{43}}{TOKEN_END}"),  # Voyage
    *((f"{kind}-", rf"{kind}-[A-Za-z0-9]{{22}}{TOKEN_END}") for kind in ("ak", "as")),  # Modal
    ("ak_", rf"ak_[A-Za-z0-9_-]{{20}}{TOKEN_END}"),  # Composio
    ("okta", rf"00(?=[A-Za-z0-9_-]{{0,40}}[a-z])(?=[A-Za-z0-9_-]{{0,40}}[A-Z])[A-Za-z0-9_-]{{40}}{TOKEN_END}"),
)
"""The same for shapes with a short beginning. A match counts only if it looks random."""

SERVICES = (
    *("adafruit", "adobe", "airtable", "algolia", "alibaba", "asana", "atlassian", "beamer", "bitbucket", "bittrex"),
    *("cloudflare", "codecov", "cohere", "coinbase", "confluence", "confluent", "contentful", "datadog", "dropbox"),
    *("droneci", "etsy", "fastly", "finicity", "finnhub", "flickr", "freshbooks", "gitter", "gocardless", "heroku"),
    *("hubspot", "intercom", "jfrog", "kraken", "kucoin", "launchdarkly", "linkedin", "looker", "mailchimp", "mapbox"),
    *("mattermost", "meraki", "messagebird", "netlify", "nytimes", "okta", "plaid", "privateai", "rapidapi"),
    *("sendbird", "sidekiq", "snyk", "sonarqube", "squarespace", "sumologic", "travisci", "twilio", "twitch"),
    *("twitter", "zendesk"),
)
"""Services whose tokens have no special shape. A random value that is assigned to such a name counts as a token."""
