"""Answers that try to be more than text, and how to tell whether one has succeeded."""

from __future__ import annotations

#: What would work sets `window.pwned`.
HOSTILE = [
    "<script>window.pwned = 1</script>",
    "<img src=x onerror='window.pwned = 1'>",
    "<svg onload=window.pwned=1><animate onbegin=window.pwned=1></svg>",
    "<svg><script href='data:text/javascript,window.pwned=1'></script></svg>",
    "<iframe srcdoc='<script>parent.pwned=1</script>'></iframe>",
    "<a href='javascript:window.pwned=1'>a</a>",
    "<style>* { display: none }</style>",
    "<base href='https://evil.example/'>",
    "<meta http-equiv=refresh content='0;url=https://evil.example/'>",
    "<form action=https://evil.example/><button>ok</button></form>",
    "<math><mtext><table><mglyph><style><img src=x onerror=window.pwned=1></style>",
    "<div id=question><input name=textContent></div>",
    "<!-- --!><img src=x onerror=window.pwned=1> -->",
    "[js](javascript:window.pwned=1)",
    "[js](JaVaScRiPt:window.pwned=1)",
    "[js](&#106;avascript:window.pwned=1)",
    "[js](java&#10;script:window.pwned=1)",
    "[js](<java\tscript:window.pwned=1>)",
    "[js]( \x01javascript:window.pwned=1)",
    "[data](data:text/html,<script>window.pwned=1</script>)",
    "[vb](vbscript:window.pwned=1) [file](file:///etc/passwd) [blob](blob:x)",
    "[rel](/v1/engine) [rel](//evil.example) [id](#question)",
    "[title](https://a.example \"x' onmouseover='window.pwned=1\")",
    '[quote](https://a.example/"onmouseover="window.pwned=1)',
    '![x](x" onerror="window.pwned=1)',
    "![x](https://evil.example/seen.png)",
    "![<img src=x onerror=window.pwned=1>](data:image/svg+xml,<svg/onload=window.pwned=1>)",
    "<javascript:window.pwned=1>",
    "[ref][r] ![ref][r]\n\n[r]: javascript:window.pwned=1",
    "`<img src=x onerror=window.pwned=1>` **<img src=x onerror=window.pwned=1>**",
    "```<img src=x onerror=window.pwned=1>\n</code></pre><script>window.pwned=1</script>\n```",
    "| <img src=x onerror=window.pwned=1> |\n|---|\n| <script>window.pwned=1</script> |",
    "> <script>window.pwned=1</script>\n> - <b onclick=window.pwned=1>b</b>",
    "# <img src=x onerror=window.pwned=1>",
    "- [ ] <input autofocus onfocus=window.pwned=1>",
    "<b>[<i onclick=window.pwned=1>x](javascript:window.pwned=1)</b>",
    "&lt;img src=x onerror=window.pwned=1&gt; &#60;script&#62;window.pwned=1&#60;/script&#62;",
    "<" * 50 + "[" * 50 + ">" * 50 + "*" * 50 + "`" * 50,
]
#: All that an answer may be made of.
ELEMENTS = "P H3 H4 H5 H6 UL OL LI BLOCKQUOTE DIV SPAN TABLE THEAD TBODY TR TH TD PRE CODE BUTTON "
ELEMENTS += "STRONG EM S BR HR A"
ATTRIBUTES = ["class", "title", "href", "target", "rel", "start", "type", "tabindex"]

#: What an answer has of elements, attributes and links that it should not have.
STRANGE_IN = """
  const [allElements, allAttributes] = [arguments[0].split(" "), arguments[1]];
  const strangeIn = (root) => [...root.querySelectorAll("*")].filter((e) =>
    !allElements.includes(e.tagName) ||
    [...e.attributes].some((a) => !allAttributes.includes(a.name)) ||
    (e.href && !/^(https?|mailto):/.test(e.protocol))).map((e) => e.outerHTML);
"""
EVERY_PREFIX = """
  const [hostile, done] = [arguments[2], arguments[3]];
  import(new URL("page/markdown.js", document.baseURI).href).then(({ MarkdownView }) => {
    const strange = [];
    for (const text of hostile) {
      const root = document.body.appendChild(document.createElement("div"));
      const view = new MarkdownView(root);
      for (let length = 1; length <= text.length; length += 1) {
        view.update(text.slice(0, length));
        strange.push(...strangeIn(root));
      }
      root.querySelectorAll("[title]:not(a)").forEach((e) => e.click());
      root.remove();
    }
    done(strange);
  }, (error) => done([String(error)]));
"""
