"""Equations as MathML, which browsers display without a script. An unknown TeX command ends the build."""

import re
from html import unescape

from math_core import LatexError, LatexToMathML
from mkdocs.exceptions import PluginError
from mkdocs.structure.pages import Page

EQUATION = r'(?<=class="arithmatex">)\\(?:\(|(?P<block>\[))(?P<tex>.*?)\\[)\]](?=</)'
CONVERTER = LatexToMathML(fancy_error=False)


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Replace TeX that ``pymdownx.arithmatex`` found between dollar signs."""

    def mathml(match: re.Match[str]) -> str:
        try:
            tex = unescape(match["tex"]).strip()
            return CONVERTER.convert_with_local_state(tex, displaystyle=bool(match["block"]))
        except LatexError as error:
            raise PluginError(f"{page.file.src_path}: {match['tex']}: {error}") from None

    return re.sub(EQUATION, mathml, html, flags=re.DOTALL)
