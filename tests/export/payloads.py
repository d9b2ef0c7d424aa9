"""Texts that try to run code or send requests from an exported page."""

RUN = "window.owned=1"
ASK = "http://127.0.0.1:9"

PAYLOADS = [
    f"<script>{RUN}</script>",
    f"</script><script>{RUN}</script>",
    f"<img src=x onerror={RUN}>",
    f'"><svg onload={RUN}>',
    f"' onmouseover='{RUN}' autofocus onfocus='{RUN}' x='",
    f"javascript:{RUN}",
    f"[x](javascript:{RUN}) [y](vbscript:{RUN}) <javascript:{RUN}>",
    f"[x](data:text/html,<script>{RUN}</script>)",
    f"![x]({ASK}/a.png) <img src={ASK}/b.png>",
    f"</noscript><img src=x onerror={RUN}>",
    f'<noscript><p title="</noscript><img src=x onerror={RUN}>">',
    f"</style><script>{RUN}</script>",
    f"</title></head><body onload={RUN}>",
    f"<!--<script>{RUN}//--></script><!-- ",
    f"<iframe srcdoc='<script>parent.{RUN}</script>' src={ASK}/c></iframe>",
    f"<link rel=stylesheet href={ASK}/d.css><style>@import '{ASK}/e.css';</style>",
    f"<meta http-equiv=refresh content='0;url={ASK}/f'><base href={ASK}/>",
    f"<form action={ASK}/g><button autofocus formaction=javascript:{RUN}>",
    f"<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src=1 onerror={RUN}&gt;'>",
    f"```html\n<script>{RUN}</script>\n```\n<details open ontoggle={RUN}>",
    f"{{{{ 7 * 7 }}}}{{% raw %}}${{{RUN}}}<%= {RUN} %>",
    f"&lt;script&gt;{RUN}&lt;/script&gt;\u2028\u202e\x00\x1b]0;owned\x07\ud800",
    f"<object data={ASK}/h><embed src={ASK}/i><video src={ASK}/j autoplay><audio src={ASK}/k>",
]
